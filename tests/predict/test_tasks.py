"""Inputs are the published texts to the character, and what a task cannot be asked with is named by its field."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.predict.tasks import (
    ANLI1,
    ASDIV,
    CQA,
    ESNLI,
    MAX_CHOICES,
    MAX_INPUT_TOKENS,
    MAX_NEW_TOKENS,
    MAX_TARGET_TOKENS,
    NO_PREFIXES,
    RELEASED_PREFIXES,
    SVAMP,
    TASKS,
    FieldError,
    Task,
    explained_input,
    joint_target,
    split_joint,
)

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "distill_text.json").read_text())


def test_questions_list_their_choices_by_letter() -> None:
    values = {"question": "Where?", "choices": ["park", "zoo", "sea", "sky", "bed"]}
    expected = "Where?\nAnswer Choices:\n(a) park\n(b) zoo\n(c) sea\n(d) sky\n(e) bed"
    assert CQA.input_text(values) == expected
    assert CQA.candidates(values) == ("park", "zoo", "sea", "sky", "bed")


@pytest.mark.parametrize("task", [SVAMP, ASDIV], ids=["svamp", "asdiv"])
def test_problems_are_two_lines_and_answers_are_free(task: Task) -> None:
    values = {"question": "How many?", "body": "There are 2 bags."}
    assert task.input_text(values) == "There are 2 bags.\nHow many?"
    assert task.candidates(values) is None


@pytest.mark.parametrize("task", [ESNLI, ANLI1], ids=["esnli", "anli1"])
def test_the_end_of_a_sequence_stands_between_premise_and_hypothesis_and_nowhere_else(task: Task) -> None:
    values = {"premise": "A</s>B</s>", "hypothesis": "<</s>/s>"}
    text = task.input_text(values)
    assert text.count("</s>") == 1
    assert text.startswith("A< /s>B< /s></s>")
    assert task.input_text({"premise": "A b.", "hypothesis": " C d"}) == "A b.</s> C d"
    assert task.candidates(values) == ("entailment", "neutral", "contradiction")


def test_choices_that_are_named_twice_are_candidates_once() -> None:
    assert CQA.candidates({"question": "?", "choices": ["a", "b", "a"]}) == ("a", "b")


@pytest.mark.parametrize(
    ("task", "values", "field", "message"),
    [
        (ESNLI, {"premise": "A"}, "hypothesis", "hypothesis is missing"),
        (ESNLI, {"premise": "A", "hypothesis": "B", "label": "C"}, "label", "esnli has no field 'label'"),
        (SVAMP, {"body": ["A"], "question": "B"}, "body", "body must be a string"),
        (CQA, {"question": "A"}, "choices", "choices is missing"),
        (CQA, {"question": "A", "choices": "ab"}, "choices", "choices must be a list of strings"),
        (CQA, {"question": "A", "choices": ["a", 1]}, "choices", "choices must be a list of strings"),
        (CQA, {"question": "A", "choices": ["a"]}, "choices", "2 to 26 strings, not 1"),
        (CQA, {"question": "A", "choices": ["a"] * (MAX_CHOICES + 1)}, "choices", "2 to 26 strings, not 27"),
    ],
)
def test_values_that_do_not_fit_are_named_by_their_field(
    task: Task, values: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(FieldError, match=message) as raised:
        task.input_text(values)
    assert raised.value.field == field
    if field == "choices":
        with pytest.raises(FieldError, match=message):
            task.candidates(values)


def test_labels_are_right_as_texts_and_equations_by_their_value() -> None:
    assert ESNLI.is_right("neutral", "neutral")
    assert not ESNLI.is_right("Neutral", "neutral")
    assert not CQA.is_right("2", "1 + 1")
    assert SVAMP.is_right("(1 + 1)", "( 4.0 / 2.0 )")
    assert not SVAMP.is_right("two", "two")
    assert SVAMP.value("( 10.0 * 45.0 )") == 450
    assert SVAMP.value("some bags") is None
    assert CQA.value("2") is None


def test_prefixes_and_lengths_are_the_released_ones() -> None:
    released = GOLDENS["prefixes"]
    assert (RELEASED_PREFIXES.label, RELEASED_PREFIXES.rationale) == (released["label"], released["rationale"])
    assert NO_PREFIXES.label == released["standard"]
    lengths = (released["max_input_length"], released["max_target_length"], released["gen_max_len"])
    assert lengths == (MAX_INPUT_TOKENS, MAX_TARGET_TOKENS, MAX_NEW_TOKENS)


def test_a_joint_answer_is_read_back_from_its_last_marker() -> None:
    assert joint_target("It is wet.", "sea") == "It is wet. So the answer is sea"
    assert split_joint("It is wet. So the answer is sea") == ("It is wet.", "sea")
    assert split_joint("So. So the answer is a. So the answer is b ") == ("So. So the answer is a.", "b")
    assert split_joint(" It is wet. ") == ("It is wet.", None)
    assert split_joint("It is wet. So the answer is") == ("It is wet.", "")
    assert split_joint(joint_target("", "sea")) == ("", "sea")


def test_an_explained_input_holds_both() -> None:
    assert explained_input("x", "because") == "x\nRationale: because"


def test_tasks_are_found_by_their_names() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}
    assert list(TASKS) == ["esnli", "anli1", "cqa", "svamp", "asdiv"]
