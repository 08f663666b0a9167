"""Teachers' texts are read by the released rules, to the character, and nothing that cannot be read is lost."""

import gzip
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.predict.data.published import read_outputs
from services.predict.data.rows import Problem
from services.predict.data.teacher_outputs import Dialect, parse_output, read_output
from services.predict.tasks import TASKS, Task
from tests.predict.published_outputs import GOLDENS, digest, folder

WHOLE = [
    ("cqa", "train"),
    ("cqa", "test"),
    ("svamp", "train"),
    ("svamp", "test"),
    ("esnli", "valid"),
    ("esnli", "test"),
    ("anli1", "valid"),
    ("anli1", "test"),
]


@pytest.mark.parametrize("unit", GOLDENS["parser_units"], ids=lambda unit: f"{unit['fn']} {unit['output'][:30]!r}")
def test_a_text_is_read_as_the_released_parser_reads_it(unit: dict[str, Any]) -> None:
    dialect: Dialect = "gpt" if "gpt" in unit["fn"] else "palm"
    output = parse_output(unit["dataset"], unit["output"], dialect)
    assert output.text == unit["output"]
    if unit["result"] == "raises ValueError":
        assert output.problem in ("no_answer", "several_answers")
        assert not output.label.strip()
    else:
        assert [output.rationale, output.label] == unit["result"]


@pytest.mark.parametrize(("task", "split"), WHOLE, ids=lambda part: part)
def test_all_published_outputs_are_read_as_the_released_parser_reads_them(task: str, split: Any) -> None:
    expected = GOLDENS["parse"][task][split]
    outputs = read_outputs(TASKS[task], folder(), split)
    assert len(outputs) == expected["n"]
    assert digest([output.label for output in outputs]) == expected["labels_sha256"]
    assert digest([output.rationale for output in outputs]) == expected["rationales_sha256"]
    assert digest([len(output.rationale) for output in outputs]) == expected["rationale_char_lengths_sha256"]
    assert sum(not output.label.strip() for output in outputs) == expected["empty_labels"]
    assert sum(not output.rationale.strip() for output in outputs) == expected["empty_rationales"]


@pytest.mark.parametrize(
    ("task", "split", "problems"),
    [
        ("cqa", "train", {"no_label": 3}),
        ("cqa", "test", {}),
        ("svamp", "train", {"no_answer": 11, "no_label": 2}),
        ("esnli", "valid", {"no_answer": 4}),
        ("esnli", "test", {"unknown_label": 1}),
        ("anli1", "valid", {"no_answer": 9}),
        ("anli1", "test", {"no_answer": 10}),
    ],
)
def test_published_outputs_that_cannot_be_read_are_counted(task: str, split: Any, problems: dict[Problem, int]) -> None:
    outputs = read_outputs(TASKS[task], folder(), split)
    assert Counter(output.problem for output in outputs if output.problem is not None) == problems


def test_the_first_outputs_of_a_split_that_is_published_in_part_are_read() -> None:
    path = folder() / "esnli" / "palm" / "train_CoT_0.json.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        outputs = [parse_output("esnli", text) for text in json.load(file)[:3]]
    assert [[output.rationale, output.label] for output in outputs] == GOLDENS["parse"]["esnli"]["train"]["first3"]


@pytest.mark.parametrize(
    ("task", "text", "problem"),
    [
        ("cqa", "Wet. So the answer is (a) sea.", None),
        ("cqa", "Wet.", "no_answer"),
        ("cqa", "So the answer is (a) x. So the answer is (b) y.", "several_answers"),
        ("cqa", "Wet. So the answer is sea.", "no_label"),
        ("cqa", "So the answer is (a) sea.", "no_rationale"),
        ("svamp", "2 and 3. The answer is (2 + 3).", None),
        ("svamp", "The answer is (1). The answer is (2).", "several_answers"),
        ("svamp", "2 and 3. The answer is 5.", "no_label"),
        ("svamp", "2 and 3. The answer is (2\n+ 3).", "no_label"),
        ("esnli", "Wet.\nAnswer: neutral\n\nPremise: A", None),
        ("esnli", "Wet.\nAnswer:neutral", "no_answer"),
        ("esnli", "Wet.\nAnswer: maybe", "unknown_label"),
        ("esnli", "Answer: neutral", "no_rationale"),
        ("anli1", "Wet. So the answer is neutral.\n\nPremise: A", None),
        ("anli1", "Wet. So the answer is neutral", "unknown_label"),
        ("anli1", "Wet. So the answer is", "no_label"),
        ("anli1", "", "no_answer"),
    ],
)
def test_what_is_wrong_with_a_text_is_said(task: str, text: str, problem: Problem | None) -> None:
    assert parse_output(task, text).problem == problem


def test_an_answer_that_two_labels_match_is_none_of_them() -> None:
    task = Task("countries", ("text",), "\n", labels=("US", "us", "It"))
    read = {said: read_output(task, {"text": "x"}, f"Why. So the answer is {said}.") for said in ("us", "Us", "IT")}
    assert [(one.label, one.problem) for one in read.values()] == [("us", None), ("Us", "unknown_label"), ("It", None)]


def test_an_equation_reaches_from_the_first_parenthesis_of_a_line_to_its_last() -> None:
    text = "So. The answer is ) none (\n x ((1) + 2) and (3) y\n(4)."
    assert parse_output("svamp", text).label == "((1) + 2) and (3)"


PARTS = [
    "So the answer is",
    "The answer is",
    "Answer:",
    "Answer: ",
    "Premise:",
    "Q:",
    "(a)",
    "(",
    ")",
    ".",
    "\n",
    " ",
    "x",
]


@given(
    st.sampled_from(list(TASKS)),
    st.one_of(st.text(), st.lists(st.sampled_from(PARTS)).map("".join)),
    st.sampled_from(["palm", "gpt"]),
)
@example("svamp", "The answer is " + "(" * 100_000, "palm")
def test_every_text_is_kept_and_read_or_counted(task: str, text: str, dialect: Dialect) -> None:
    output = parse_output(task, text, dialect)
    assert output.text == text
    is_usable = bool(output.label.strip() and output.rationale.strip())
    labels = TASKS[task].labels
    assert (output.problem is None) == (is_usable and (labels is None or output.label in labels))
