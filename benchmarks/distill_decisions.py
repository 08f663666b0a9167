"""Students of logged decisions: `python -m benchmarks.distill_decisions --data DATA --output RUNS`.

PaLM's released answers to SVAMP's, e-SNLI's and CommonsenseQA's rows are logs of `/v1/decisions` with its reasons; one
more log is generated, whose teacher errs on a share of the rows at random. Each log teaches a small T5 from scratch by
`fovea distill decisions`. DATA is the folder of the published data sets.
"""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.record import record
from services.predict.data.inputs import split_input
from services.predict.data.published import Split, read_outputs, read_rows
from services.predict.data.rows import Row, join
from services.predict.tasks import CQA, ESNLI, SVAMP, Task
from starters.predict.problems import draw_problem

OPERATIONS = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
MAX_LINES = 3_000
ERRING_SHARE = 0.03
RECIPE = "vocab_size = 2000\nevaluate_every = 100\nmax_evaluated = 400\nmax_target_tokens = 48\n"
OPTIONS = ("--model", "tiny", "--steps", "300", "--batch-size", "16", "--learning-rate", "2e-3")
Decided = tuple[str, dict[str, Any], str]


def question(name: str, instructions: str, options: tuple[str, ...] = ()) -> dict[str, Any]:
    """A choice among options, or a predicate without any."""
    choices = [{"value": option} for option in options]
    return {"name": name, "instructions": instructions} | (
        {"type": "choice", "choices": choices} if choices else {"type": "predicate"}
    )


def operations(data: Path) -> Iterator[Decided]:
    """Yield SVAMP's problems with the one operation of PaLM's equation."""
    for row, values in _answered(SVAMP, data, "train"):
        assert row.output is not None
        for operation in _operation(row.output.label):
            yield f"{values['body']} {values['question']}", _choice(operation), row.output.rationale


def inferences(data: Path) -> Iterator[Decided]:
    """Yield e-SNLI's pairs with PaLM's label."""
    for row, values in _answered(ESNLI, data, "valid"):
        assert row.output is not None
        if row.output.label in (ESNLI.labels or ()):
            yield f"{values['premise']}\n{values['hypothesis']}", _choice(row.output.label), row.output.rationale


def answers(data: Path) -> Iterator[Decided]:
    """Yield CommonsenseQA's questions with an answer, which is PaLM's in half of them."""
    generator = random.Random(0)
    for row, values in _answered(CQA, data, "train"):
        assert row.output is not None
        others = [choice for choice in values["choices"] if choice != row.output.label]
        if len(others) < len(values["choices"]):
            is_right = generator.random() < 0.5
            proposed = row.output.label if is_right else generator.choice(others)
            answer = {"type": "predicate", "probability": float(is_right)}
            yield f"{values['question']}\n{proposed}", answer, row.output.rationale if is_right else ""


def generated() -> Iterator[Decided]:
    """Yield generated problems with the one operation that solves them, or with another one where the teacher errs."""
    generator = random.Random(0)
    while True:
        row = draw_problem(generator)
        for operation in _operation(row.label):
            if generator.random() < ERRING_SHARE:
                yield row.input, _choice(generator.choice([one for one in OPERATIONS.values() if one != operation])), ""
            else:
                yield row.input, _choice(operation), "" if row.output is None else row.output.rationale


def _operation(equation: str) -> list[str]:
    """The operation of an equation that has one; empty for others."""
    found = [OPERATIONS[sign] for sign in equation if sign in OPERATIONS]
    return found if len(found) == 1 else []


def _choice(option: str) -> dict[str, Any]:
    return {"type": "choice", "choice": option}


SOLVES = question("operation", "Which operation solves it?", tuple(OPERATIONS.values()))
FOLLOWS = question("inference", "Does the hypothesis follow from the premise?", ESNLI.labels or ())
LOGS = {
    "SVAMP": (operations, SOLVES),
    "e-SNLI": (inferences, FOLLOWS),
    "CommonsenseQA": (answers, question("answer", "Is the answer right?")),
    "generated": (lambda _: generated(), SOLVES),
}


def write_log(path: Path, asked: dict[str, Any], decided: Iterator[Decided]) -> None:
    """Write a log as a proxy does."""
    with path.open("w") as file:
        for text, answer, reason in islice(decided, MAX_LINES):
            line = {
                "request": {"model": "teacher", "input": text, "questions": [asked]},
                "response": {"model": "teacher", "answers": [answer]},
                "reasons": [reason or None],
            }
            file.write(json.dumps(line) + "\n")


def _answered(task: Task, data: Path, split: Split) -> Iterator[tuple[Row, Any]]:
    rows = join(read_rows(task, data, split), read_outputs(task, data, split))
    return ((row, split_input(task, row.input)) for row in rows if row.output is not None)


def main(
    data: Annotated[Path, typer.Option(help="Folder of the published data sets.")],
    output: Annotated[Path, typer.Option(help="Folder for logs and students.")],
) -> None:
    """Write the logs, teach a student each, and record how far it agrees."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "recipe.toml").write_text(RECIPE)
    measured = {}
    for name, (decided, asked) in LOGS.items():
        log, folder = output / f"{name}.jsonl", output / name
        write_log(log, asked, decided(data))
        fovea = [sys.executable, "-m", "services.cli.main", "distill", "decisions", log, *OPTIONS]
        options = ["--recipe", output / "recipe.toml", "--output", folder, "--no-publish"]
        subprocess.run([str(one) for one in (*fovea, *options)], check=True)
        described = json.loads((folder / asked["name"] / "checkpoint" / "checkpoint.json").read_text())
        measured[name] = described["metrics"]
    record("distill_decisions", {"options": OPTIONS, "logs": measured})


if __name__ == "__main__":
    typer.run(main)
