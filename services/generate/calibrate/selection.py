"""Inputs of calibration and evaluation: questions, a checkpoint, numbers and positions of documents."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from services.core.store.errors import StoreError
from services.generate.data.question_sets import Part, QuestionSet, question_set
from services.generate.data.questions import BadData, Example
from services.generate.model.language_model import LanguageModel
from services.generate.vllm.client import VllmAddress
from services.generate.vllm.engine import VllmEngine
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.options import parse_numbers
from services.nn.devices import DeviceName, DeviceOptions

ModelT = TypeVar("ModelT")
VllmUrl = Annotated[
    str | None,
    typer.Option(
        help="A server of vLLM with Fovea's plug-in that serves the checkpoint, to measure and answer with instead of "
        "this process. It cannot estimate by tree: exact is used for it."
    ),
]
VllmModel = Annotated[
    str, typer.Option(help="The name by which vLLM serves it, or an adapter of it; by default the checkpoint's.")
]
VllmKey = Annotated[
    str, typer.Option(envvar="FOVEA_GENERATE_VLLM_KEY", help="vLLM's key (`--api-key`).", show_default=False)
]


def load(
    data: str, checkpoint: str, device: DeviceName, store_url: str | None
) -> tuple[QuestionSet, CheckpointSource, LanguageModel]:
    """Load data, then checkpoint, then model. Raises BadParameter for one that does not exist."""
    return _load(data, checkpoint, store_url, lambda folder: LanguageModel.load(folder, DeviceOptions(device=device)))


def load_over_vllm(
    data: str, checkpoint: str, store_url: str | None, address: VllmAddress
) -> tuple[QuestionSet, CheckpointSource, VllmEngine]:
    """Load data and checkpoint, and compare the checkpoint with what vLLM serves. Raises BadParameter as `load`.

    Without a name in the address, vLLM serves it by the checkpoint's.
    """
    named = replace(address, model=address.model or Path(checkpoint).name.partition("@")[0])
    return _load(data, checkpoint, store_url, lambda folder: VllmEngine.load(folder, named))


def _load(
    data: str, checkpoint: str, store_url: str | None, load_model: Callable[[Path], ModelT]
) -> tuple[QuestionSet, CheckpointSource, ModelT]:
    try:
        questions = question_set(data)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error
    try:
        source = find_checkpoint(checkpoint, store_url)
        return questions, source, load_model(source.directory)
    except (OSError, StoreError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="CHECKPOINT") from error


def drawn(
    questions: QuestionSet, part: Part, num_documents: int, count: int | None, seed: int, option: str
) -> list[Example]:
    """Call `QuestionSet.examples`. Raises BadParameter if there are not as many documents, naming `option`."""
    try:
        return questions.examples(part, num_documents, count, seed)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint=f"--data, {option}") from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def parse_positions(text: str, num_documents: int) -> tuple[int, ...]:
    """Parse `all`, or numbers separated by commas. Raises BadParameter for a position that does not exist."""
    found = tuple(range(num_documents)) if text == "all" else tuple(sorted(parse_numbers(text, int, "--positions")))
    if found[0] < 0 or found[-1] >= num_documents:
        message = f"the positions of {num_documents} documents are 0 to {num_documents - 1}"
        raise typer.BadParameter(message, param_hint="--positions")
    return found
