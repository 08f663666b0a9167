"""Judges from references on the command line, and what the commands that evaluate them share."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from safetensors import SafetensorError

from services.core.openai_client import Endpoint
from services.core.refusals import Refused
from services.core.settings import DeviceName
from services.core.store.errors import StoreError
from services.jobs.checkpoints import find_checkpoint
from services.jobs.interruption import one_line_errors
from services.score.evaluation.judges import Judge, Similarity

if TYPE_CHECKING:
    import torch

    from services.score.evaluation.clip_judge import ClipJudge

JudgeKind = Literal["clip", "vera", "grammar", "chat", "vqa", "answers"]
ENDPOINT_KINDS: tuple[JudgeKind, ...] = ("chat", "vqa")


Limit = Annotated[int | None, typer.Option(min=1, help="Use at most this many records of each task.")]
SimilarityOption = Annotated[
    Similarity,
    typer.Option(
        help="How captions are compared with images. global: pooled features. local: single tokens. mix: the "
        "checkpoint's weighting, or else global."
    ),
]


def exits(command: str, stopped: str) -> AbstractContextManager[None]:
    """End with one line where a judge can't go on, and at Ctrl-C, which tells what is kept."""
    console = Console(stderr=True, highlight=False)
    return one_line_errors(command, console, (Refused,), stopped=f"Stopped. {stopped}")


@dataclass(frozen=True)
class JudgeOptions:
    """The shared options of a run's judges.

    The endpoint's are only for `chat` and `vqa`, `similarity` only for `clip`.
    """

    kind: JudgeKind
    device: DeviceName = "auto"
    store_url: str | None = None
    similarity: Similarity = "mix"
    base_url: str = "http://127.0.0.1:8000/v1"
    key: str | None = None
    log: Path | None = None
    concurrency: int = 8


@dataclass(frozen=True)
class Named:
    """A judge's name in tables, and the reference to it."""

    name: str
    reference: str

    @classmethod
    def parse(cls, text: str) -> "Named":
        """Parse `NAME=REFERENCE`, or a reference that is its own name, such as any existing path.

        Raises Refused if either is empty.
        """
        name, separator, reference = text.partition("=")
        if not separator or Path(text).exists():
            return cls(text, text)
        if not (name and reference):
            raise Refused(f"{text!r} is not NAME=REFERENCE")
        return cls(name, reference)


def load_judges(models: Sequence[str], options: JudgeOptions) -> Iterator[Judge]:
    """Load the judges one after the other, so that only one is in memory.

    `models` are, by kind of judge: names in the store, folders, or open_clip's `name:pretrained`; names or Hugging Face
    folders of Vera or of a classifier of acceptable sentences; models behind the endpoint; files of answers. Raises
    Refused, at once if one does not exist, later if it can't be loaded.
    """
    named = [Named.parse(model) for model in models]
    if len({one.name for one in named}) < len(named):
        raise Refused(
            f"several judges have the same name: {', '.join(one.name for one in named)}; name them with NAME=…"
        )
    places = [find_model(one.reference, options) for one in named]
    return (load_judge(one, place, options) for one, place in zip(named, places, strict=True))


def find_model(reference: str, options: JudgeOptions) -> Path | str:
    """Find a judge's files; a name for an endpoint or open_clip is returned unchanged. Raises Refused."""
    if options.kind in ENDPOINT_KINDS:
        return reference
    path = Path(reference)
    if path.exists():
        return path
    if options.kind == "answers":
        raise Refused(f"{path} is missing")
    if ":" in reference and options.kind == "clip":
        return reference
    try:
        return find_checkpoint(reference, options.store_url).directory
    except StoreError as error:
        is_open_clips = options.kind == "clip" and "/" not in reference
        told = f"; a model of open_clip is {reference}:TAG, with the tag of its weights" if is_open_clips else ""
        raise Refused(f"{error}{told}") from error


def load_judge(named: Named, place: Path | str, options: JudgeOptions) -> Judge:
    """Load a judge, and import only what it needs: transformers for texts, an HTTP client for endpoints."""
    if isinstance(place, str) and options.kind in ENDPOINT_KINDS:
        return _load_endpoint_judge(named, place, options)
    if isinstance(place, Path) and options.kind == "answers":
        from services.score.evaluation.judges import ReleasedAnswers

        return ReleasedAnswers(place, name=named.name)
    if isinstance(place, Path) and options.kind in ("vera", "grammar"):
        from services.score.evaluation.text_judges import load_grammar, load_vera

        load = load_vera if options.kind == "vera" else load_grammar
        return load(place, name=named.name, device=choose_device(options))
    return load_clip_judge(named, place, options)


def load_clip_judge(named: Named, place: Path | str, options: JudgeOptions) -> "ClipJudge":
    """Load a CLIP or FSC-CLIP, and import torch only now. Raises Refused."""
    from services.score.evaluation.clip_judge import Clip, ClipJudge

    device = choose_device(options)
    try:
        clip = Clip.load(place, device=device)
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise Refused(f"{named.reference} can't be loaded: {error}") from error
    name = named.name if options.similarity == "mix" else f"{named.name}, {options.similarity}"
    return ClipJudge(clip, name=name, similarity=options.similarity)


def _load_endpoint_judge(named: Named, model: str, options: JudgeOptions) -> Judge:
    from services.score.evaluation.endpoint import ChatJudge, ChatModel, VqaJudge

    endpoint = Endpoint(options.base_url, key=options.key)
    behind = ChatModel(endpoint, model, named.name, options.concurrency, options.log)
    return ChatJudge(behind) if options.kind == "chat" else VqaJudge(behind)


def choose_device(options: JudgeOptions) -> "torch.device":
    """Choose the device of local judges. Raises Refused if it is not there."""
    from services.nn.devices import DeviceOptions  # imports torch, which endpoints and published answers do without

    try:
        return DeviceOptions(device=options.device).choose_device()
    except ValueError as error:
        raise Refused(str(error)) from error
