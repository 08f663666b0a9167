"""Everyday word problems and inferences, written by hand before any student was trained on such sentences."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from starters.visitor.questions import Question

LABELS = ("entailment", "neutral", "contradiction")
README_PROBLEM = {
    "body": "Dora split 63 spoons evenly into 9 bags.",
    "question": "How many spoons are in each bag of Dora?",
    "right": 7,
}
CAR = {"premise": "The car is red.", "hypothesis": "The car is blue.", "right": "contradiction"}


def read_sentences(name: str) -> list[dict[str, Any]]:
    """Read one of the package's files: `problems`, `two_step_problems` or `inferences`."""
    lines = files("starters.visitor").joinpath(f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def groups(name: str) -> list[str]:
    """List the groups of a file, in their order."""
    return list(dict.fromkeys(row["group"] for row in read_sentences(name)))


def problem_questions(rows: Sequence[Mapping[str, Any]]) -> list[Question]:
    return [
        Question("number", _body("word-problems", {"body": row["body"], "question": row["question"]}), row["right"])
        for row in rows
    ]


def inference_questions(rows: Sequence[Mapping[str, Any]]) -> list[Question]:
    fields = ("premise", "hypothesis")
    return [
        Question("label", _body("inferences", {field: row[field] for field in fields}), row["right"], LABELS)
        for row in rows
    ]


def _body(task: str, values: Mapping[str, str]) -> dict[str, Any]:
    return {"task": task, "inputs": [dict(values)]}
