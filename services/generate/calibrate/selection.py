"""Inputs of calibration and evaluation: questions, a checkpoint, numbers and positions of documents."""

import os
from pathlib import Path
from typing import Annotated

import typer

from services.core.store.errors import StoreError
from services.generate.calibrate.bench import AnyBench, Bench, VllmBench
from services.generate.capacity import DEFAULT_SHARE
from services.generate.data.questions import BadData, Example, Part, QuestionSet, question_set
from services.generate.model.language_model import CPU_CACHED_TOKENS, LanguageModel, ModelConfig, fitting_tokens
from services.generate.vllm.client import VllmAddress
from services.generate.vllm.engine import VllmEngine
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.options import parse_numbers
from services.nn.devices import DeviceName, DeviceOptions

Checkpoint = Annotated[str, typer.Argument(help="A Hugging Face folder, or NAME[@ALIAS] in the store.")]
Data = Annotated[str, typer.Option(help="Questions: a file of lost-in-the-middle (.jsonl.gz) or SynthWiki (.csv).")]
VllmUrl = Annotated[
    str | None,
    typer.Option(
        help="A server of vLLM with Fovea's plug-in that serves the checkpoint, to measure and answer with instead of "
        "this process; FOVEA_GENERATE_VLLM_KEY is its key. It cannot estimate by tree: exact is used for it."
    ),
]
VllmModel = Annotated[
    str, typer.Option(help="The name by which vLLM serves it, or an adapter of it; by default the checkpoint's.")
]


def vllm_address(checkpoint: str, url: str | None, model: str) -> VllmAddress | None:
    """The server that is asked, None for this process; without a name, it serves the checkpoint by its own."""
    if url is None:
        return None
    named = model or Path(checkpoint).name.partition("@")[0]
    return VllmAddress(url, named, os.environ.get("FOVEA_GENERATE_VLLM_KEY", ""))


def open_bench(
    data: str, checkpoint: str, store_url: str | None, device: DeviceName, address: VllmAddress | None
) -> tuple[AnyBench, CheckpointSource, ModelConfig]:
    """Read the data, then the checkpoint, then the model. Raises BadParameter for one that does not exist.

    With an address, the checkpoint is compared with what vLLM serves.
    """
    try:
        questions = question_set(data)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error
    try:
        source = find_checkpoint(checkpoint, store_url)
        if address is not None:
            engine = VllmEngine.load(source.directory, address)
            return VllmBench(engine, questions), source, engine.config
        model = LanguageModel.load(source.directory, DeviceOptions(device=device))
        max_cached_tokens = min(CPU_CACHED_TOKENS, fitting_tokens(model, DEFAULT_SHARE))
        return Bench(model, questions, max_cached_tokens), source, model.config
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
