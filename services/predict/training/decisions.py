"""`fovea distill decisions`: teach a student each question of a log of `/v1/decisions`, and tell when to trust it.

The rows of a question are divided by their inputs, the same way for every seed: a fifth tests the student; of the rest,
a fifth fits its confidence and chooses the threshold, and a tenth of what then remains chooses its step.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.console import Console

from services.core.text_files import BadFile
from services.jobs.interruption import interruptible, resumable
from services.jobs.options import StoreUrl, command_line
from services.jobs.tables import MISSING, Table
from services.nn.devices import DeviceOptions
from services.predict.confidence import calibration_error, error_interval, hand_over_below
from services.predict.data.decision_log import DecidedTask, read_decisions
from services.predict.data.inputs import content_digest, hold_out
from services.predict.data.rows import VALIDATION_SHARE, TeachingData
from services.predict.model.student import Student
from services.predict.model.task_description import TaskDescription
from services.predict.training.initialisation import SHAPES
from services.predict.training.marking import marked
from services.predict.training.recipe import BatchSize, LearningRate, Recipe, RecipeFile, Steps, recipe_of
from services.predict.training.sources import Source
from services.predict.training.train import (
    Licence,
    Metrics,
    Output,
    Publish,
    Seed,
    Statement,
    StudentRun,
    one_line_errors,
    train_and_publish,
)

HELD_OUT_SHARE = 0.2
HEADER = ("question", "rows", "declined", "tested", "agrees", "most frequent", "calibration error")
HANDOVER = ("hands over below", "answers", "of these wrong", "95% interval")


@dataclass(frozen=True)
class DecisionSource(Source):
    """The decisions about one question in logs, of which the command has read everything; `digest` is theirs."""

    logs: tuple[Path, ...]
    taught: InitVar[TeachingData]
    digest: InitVar[str]

    def __post_init__(self, taught: TeachingData, digest: str) -> None:
        vars(self).update(_taught=taught, _digest=digest)  # no fields, by which runs are told apart

    def content(self) -> str:
        return str(vars(self)["_digest"])

    def read(self, recipe: Recipe) -> TeachingData:
        taught: TeachingData = vars(self)["_taught"]
        return taught


def divided(decided: DecidedTask) -> TeachingData:
    """Divide the rows of a question. Raises BadFile for too few."""
    rest, test = hold_out(decided.rows, HELD_OUT_SHARE, 0)
    rest, confided = hold_out(rest, HELD_OUT_SHARE, 0)
    train, valid = hold_out(rest, VALIDATION_SHARE, 0)
    if not train:
        raise BadFile(
            f"{decided.place}: {decided.task.name}: {len(decided.rows)} answers are too few to learn from and to test"
            " with; log at least 4 about different inputs, or hundreds to learn something"
        )
    return TeachingData(decided.task, train, valid, test, confided)


def measure(data: TeachingData, recipe: Recipe, max_error: float, checkpoint: Path) -> dict[str, Any]:
    """Measure a student beside its teacher, with the confidence of its checkpoint."""
    student = Student.load(checkpoint, DeviceOptions())
    calibration = TaskDescription.read(checkpoint).confidence
    assert calibration is not None
    judged = []
    for examples in (data.confided, data.test):
        probabilities, is_right = marked(student, data.task, examples, recipe)
        judged.append(([calibration.confidence(probability) for probability in probabilities], is_right))
    labels = [example.label for example in data.test]
    told = handover(hand_over_below(*judged[0], max_error), *judged[1])
    return {**told, "max_error": max_error, **by_label(labels, judged[1][1])}


def by_label(labels: Sequence[str], is_right: Sequence[bool]) -> dict[str, Any]:
    """Tell of rows with the teacher's labels the share of the most frequent one, and the agreement on each."""
    return {
        "most_frequent_label": max(Counter(labels).values()) / len(labels),
        "agreement_by_label": {
            label: fmean(right for right, own in zip(is_right, labels, strict=True) if own == label)
            for label in dict.fromkeys(labels)
        },
    }


def handover(threshold: float | None, confidences: Sequence[float], is_right: Sequence[bool]) -> dict[str, Any]:
    """Tell of rows that chose nothing how a student agrees, and how often it is wrong from a threshold on."""
    answered = [
        right
        for confidence, right in zip(confidences, is_right, strict=True)
        if threshold is not None and confidence >= threshold
    ]
    num_wrong = answered.count(False)
    return {
        "agreement": fmean(is_right),
        "calibration_error": calibration_error(confidences, is_right),
        "threshold": threshold,
        "num_answered": len(answered),
        "num_wrong": num_wrong,
        "error_interval": error_interval(num_wrong, len(answered)) if answered else None,
    }


app = command_line()


@app.command()
@interruptible(resumable)
def decisions(
    *,
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG...", help="Requests and answers of /v1/decisions, as JSON lines.")
    ],
    output: Output,
    model: Annotated[str, typer.Option(help=f"A Hugging Face T5 directory; from scratch: {', '.join(SHAPES)}.")],
    max_error: Annotated[
        float, typer.Option(min=0.001, max=0.999, help="Share of its own answers that may differ from the teacher's.")
    ] = 0.05,
    recipe: RecipeFile = None,
    steps: Steps = None,
    batch_size: BatchSize = None,
    learning_rate: LearningRate = None,
    seed: Seed = 0,
    name: Annotated[
        str | None,
        typer.Option(help="Name in the model store; of several questions, before each one's.", show_default="theirs"),
    ] = None,
    licence: Licence = None,
    statement: Statement = None,
    publish: Publish = True,
    store_url: StoreUrl = None,
) -> None:
    """Train a student for each question of a log, and tell below which confidence it should ask the teacher.

    Run the same command again to continue an interrupted run.
    """
    options: dict[str, Any] = dict(locals())
    with one_line_errors("fovea distill decisions"):
        found, digest = read_decisions(logs), content_digest(logs)
        divided_rows = {task: divided(decided) for task, decided in found.items()}
        measured = {}
        for task, data in divided_rows.items():
            method = "step-by-step" if any(example.rationale for example in data.train) else "standard"
            source = DecisionSource(task, tuple(logs), data, digest, labels="llm")
            run = StudentRun(source, model, recipe_of(Recipe, {**options, "method": method}))
            own = {"name": f"{name}-{task}" if name and len(found) > 1 else name or task, "output": output / task}
            judge = partial(measure, data, run.recipe, max_error)
            measured[task] = train_and_publish(run, {**options, **own}, measure=judge)
            if measured[task] and measured[task]["threshold"] is None:
                few = f"no confidence shows at most {max_error:.1%} wrong answers on {len(data.confided)} rows"
                told = f"hand every answer over to the teacher: {few}; log more decisions, or raise --max-error"
                typer.echo(f"{task}: {told}", err=True)
        if all(measured.values()):
            table = Table.of_texts(f"At most {max_error:.1%} wrong", (*HEADER, *HANDOVER), _rows(found, measured))
            Console(width=200, highlight=False).print(table.to_rich())


def _rows(found: dict[str, DecidedTask], measured: dict[str, Metrics]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for task, metrics in measured.items():
        threshold, interval = metrics["threshold"], metrics["error_interval"]
        rows.append((
            task, f"{len(found[task].rows)}", f"{found[task].num_refused}", f"{metrics['num_test']}",
            f"{metrics['agreement']:.1%}", f"{metrics['most_frequent_label']:.1%}",
            f"{metrics['calibration_error']:.1%}",
            "every confidence" if threshold is None else f"{threshold:.3f}",
            f"{metrics['num_answered']}", f"{metrics['num_wrong']}",
            MISSING if interval is None else f"{interval[0]:.1%} to {interval[1]:.1%}",
        ))  # fmt: skip
    return rows


if __name__ == "__main__":
    app()
