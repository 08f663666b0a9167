"""Inputs of calibration and evaluation: questions, a checkpoint, numbers and positions of documents."""

import typer

from services.core.store.errors import StoreError
from services.generate.data.question_sets import Part, QuestionSet, question_set
from services.generate.data.questions import BadData, Example
from services.generate.model.language_model import LanguageModel
from services.jobs.checkpoints import CheckpointSource, find_checkpoint
from services.jobs.options import parse_numbers
from services.nn.devices import DeviceName, DeviceOptions


def load(
    data: str, checkpoint: str, device: DeviceName, store_url: str | None
) -> tuple[QuestionSet, CheckpointSource, LanguageModel]:
    """Load data, then checkpoint, then model. Raises BadParameter for one that does not exist."""
    try:
        questions = question_set(data)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint="--data") from error
    try:
        source = find_checkpoint(checkpoint, store_url)
        return questions, source, LanguageModel.load(source.directory, DeviceOptions(device=device))
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
