"""Published files become the published examples, in the published splits, with a teacher's outputs row by row."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from services.core.text_files import BadFile
from services.predict.arithmetic import evaluate
from services.predict.data.published import read_outputs, read_rows
from services.predict.data.rows import (
    LabelSource,
    Row,
    TeacherOutput,
    join,
    make_splits,
    split_off,
    subsample,
    taught_rows,
)
from services.predict.tasks import ANLI1, ASDIV, CQA, ESNLI, SVAMP, TASKS, Task
from tests.predict.published_outputs import GOLDENS, digest, folder
from tests.published_data import published

SPLITS = GOLDENS["splits"]


@pytest.mark.parametrize("name", ["esnli", "anli1", "cqa", "svamp"])
def test_published_test_splits_are_the_released_inputs_and_labels(name: str) -> None:
    expected = GOLDENS["inputs"][name]
    rows = read_rows(TASKS[name], folder(), "test")
    assert len(rows) == expected["n_test"]
    assert digest([row.input for row in rows]) == expected["test_inputs_sha256"]
    assert digest([row.label for row in rows]) == expected["test_labels_sha256"]


@pytest.mark.parametrize("name", ["cqa", "svamp"])
def test_published_training_splits_are_the_released_inputs(name: str) -> None:
    rows = read_rows(TASKS[name], folder(), "train")
    assert len(rows) == GOLDENS["inputs"][name]["n_train"]
    assert digest([row.input for row in rows]) == GOLDENS["inputs"][name]["train_inputs_sha256"]


def test_svamp_as_its_authors_publish_it_is_the_released_split() -> None:
    for split in ("train", "test"):
        assert read_rows(SVAMP, published("svamp").parent, split) == read_rows(SVAMP, folder(), split)


def test_all_of_asdiv_is_read_with_the_numbers_that_its_answers_begin_with() -> None:
    rows = read_rows(ASDIV, published("asdiv").parent, "train")
    assert len(rows) == 2305
    text = "Seven red apples and two green apples are in the basket.\nHow many apples are in the basket?"
    assert rows[0] == Row(text, "9")
    assert sum(evaluate(row.label) is None for row in rows) == 137  # names, times, ordinals, yes and no


@pytest.mark.parametrize(
    ("task", "sizes"),
    [(CQA, (8766, 975, 1221)), (SVAMP, (720, 80, 200)), (ANLI1, (None, 1000, 1000)), (ESNLI, (None, 9842, 9824))],
    ids=["cqa", "svamp", "anli1", "esnli"],
)
@pytest.mark.slow
def test_splits_have_the_sizes_of_table_a1(task: Task, sizes: tuple[int | None, int, int]) -> None:
    test = read_rows(task, folder(), "test")
    if sizes[0] is None:  # published here without their training rows
        splits = make_splits(task, [Row("", "")], read_rows(task, folder(), "valid"), test)
        assert (len(splits.valid), len(splits.test)) == sizes[1:]
    else:
        splits = make_splits(task, read_rows(task, folder(), "train"), None, test)
        assert (len(splits.train), len(splits.valid), len(splits.test)) == sizes


@pytest.mark.parametrize(("name", "num_rows"), [("svamp_valid10", 800), ("cqa_valid10", 9741)])
def test_validation_rows_are_the_released_ones(name: str, num_rows: int) -> None:
    train, valid = split_off(num_rows, 0.1, 0)
    assert digest(train) == SPLITS[name]["train_idx_sha256"]
    assert digest(valid) == SPLITS[name]["valid_idx_sha256"]
    assert train[:10] == SPLITS[name]["train_first10"]


@pytest.mark.parametrize("name", SPLITS["svamp_subsample"])
def test_a_share_of_the_training_rows_is_the_released_one(name: str) -> None:
    fraction, seed = name.split("_seed")
    kept = subsample(800, float(fraction), int(seed))
    assert len(kept) == SPLITS["svamp_subsample"][name]["n"]
    assert digest(kept) == SPLITS["svamp_subsample"][name]["sha"]


@pytest.mark.parametrize(
    "name",
    [
        "cqa_test_palm_cot",
        "svamp_test_palm_cot",
        "anli1_test_palm_cot",
        "esnli_test_palm_cot",
        "anli1_valid_palm_cot",
        "esnli_valid_palm_cot",
    ],
)
def test_the_teacher_is_as_accurate_as_published(name: str) -> None:
    task, split = TASKS[name.split("_")[0]], name.split("_")[1]
    rows = with_teacher(task, split)
    right = sum(task.is_right(row.output.label, row.label) for row in rows if row.output)
    assert right / len(rows) == GOLDENS["accuracy"][name]


def test_two_answers_that_python_reads_as_conditions_are_not_equations() -> None:
    rows = with_teacher(SVAMP, "train")
    right = sum(SVAMP.is_right(row.output.label, row.label) for row in rows if row.output)
    found = [row.output.label for row in rows if row.output and " and " in row.output.label]
    # `a and b` is b where a is not 0, which two of these happen to be right by
    assert {"((29/2) and (30/2))", "(34 + 40) and (62 - 17)"} < set(found)
    assert (right + 2) / len(rows) == GOLDENS["accuracy"]["svamp_train_palm_cot"]


def with_teacher(task: Task, split: Any) -> list[Row]:
    return join(read_rows(task, folder(), split), read_outputs(task, folder(), split))


def test_a_run_chooses_its_share_first_and_then_what_it_validates_on() -> None:
    rows = [Row(str(i), "") for i in range(800)]
    splits = make_splits(SVAMP, rows, None, [], fraction=0.25, seed=3)
    chosen = subsample(800, 0.25, 3)
    assert {row.input for row in (*splits.train, *splits.valid)} == set(map(str, chosen))
    assert [row.input for row in splits.valid] == [str(chosen[i]) for i in split_off(200, 0.1, 0)[1]]
    assert (len(splits.train), len(splits.valid)) == (180, 20)
    assert splits == make_splits(SVAMP, rows, None, [], fraction=0.25, seed=3)
    assert splits != make_splits(SVAMP, rows, None, [], fraction=0.25, seed=4)


def test_rows_to_validate_on_stay_whole_where_they_are_published() -> None:
    rows = [Row(str(i), "") for i in range(80)]
    splits = make_splits(SVAMP, rows[:60], rows[60:70], rows[70:], fraction=0.5)
    assert (len(splits.train), splits.valid, splits.test) == (30, rows[60:70], rows[70:])
    assert make_splits(SVAMP, rows[:60], rows[60:70], rows[70:], seed=5).train == rows[:60]


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_is_above_nothing_and_at_most_everything(fraction: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        subsample(800, fraction, 0)


def test_a_share_that_leaves_no_row_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves none of 5 rows"):
        subsample(5, 0.1, 0)


READ = Row("x", "1", TeacherOutput("…", "because", "2"))
UNREAD = Row("y", "1", TeacherOutput("…", " ", " ", "no_answer"))
UNLABELLED = Row("z", "1", TeacherOutput("…", "because", " ", "no_label"))


def taught(rows: list[Row], labels: LabelSource, *, drop_empty: bool = False) -> list[tuple[str, str, str | None]]:
    return [(one.input, one.label, one.rationale) for one in taught_rows(rows, labels, drop_empty=drop_empty)]


def test_rationales_are_the_teachers_and_labels_whose_they_should_be() -> None:
    rows = [READ, UNREAD, UNLABELLED, Row("w", "1")]
    assert taught(rows, "human") == [("x", "1", "because"), ("y", "1", " "), ("z", "1", "because"), ("w", "1", None)]
    assert taught(rows, "llm") == [("x", "2", "because"), ("y", " ", " "), ("z", " ", "because")]


def test_rows_with_nothing_to_learn_can_be_left_out() -> None:
    rows = [READ, UNREAD, UNLABELLED, Row("w", "1")]
    assert [row for row, *_ in taught(rows, "human", drop_empty=True)] == ["x", "z", "w"]
    assert [row for row, *_ in taught(rows, "llm", drop_empty=True)] == ["x"]


def test_outputs_belong_to_rows_by_their_order_and_some_may_be_missing() -> None:
    rows = [Row("x", "1"), Row("y", "1")]
    assert join(rows, [READ.output, None]) == [READ, Row("y", "1")]
    with pytest.raises(BadFile, match="1 outputs of a teacher do not match 2 rows"):
        join(rows, [READ.output])


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_inferences_have_labels_by_number_and_strange_line_ends_stay_in_a_text(tmp_path: Path, suffix: str) -> None:
    records = [{"premise": "A\u2028b\x85c", "hypothesis": str(i), "label": i, "explanation_1": ""} for i in range(3)]
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write(tmp_path / "esnli" / f"esnli_train{suffix}", lines)
    rows = read_rows(ESNLI, tmp_path, "train")
    assert rows[1] == Row("A\u2028b\x85c</s>1", "neutral")
    assert [row.label for row in rows] == ["entailment", "neutral", "contradiction"]


@pytest.mark.parametrize(
    ("task", "line"),
    [
        (ESNLI, "{"),
        (ESNLI, "[1]"),
        (ESNLI, '{"premise": "a", "hypothesis": "b", "label": -1}'),
        (ESNLI, '{"premise": null, "hypothesis": "b", "label": 1}'),
        (ANLI1, '{"premise": "a", "label": 1}'),
        (CQA, '{"question": "a", "answer": "b", "choices": ["b"]}'),
        (SVAMP, '{"input": "a", "label": 2.0}'),
    ],
)
def test_a_line_of_another_form_is_named(tmp_path: Path, task: Task, line: str) -> None:
    write(tmp_path / task.name / f"{task.name}_test.json", line)
    with pytest.raises(BadFile, match=f"{task.name}_test.json:1: (not a row of|not JSON)|record 1: a JSON object"):
        read_rows(task, tmp_path, "test")


def test_outputs_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in range(11):
        suffix = ".gz" if number % 2 else ""
        path = tmp_path / "svamp" / "palm" / f"train_CoT_{number}.json{suffix}"
        write(path, json.dumps([f" {number}. The answer is ({number})."] * 2))
    outputs = read_outputs(SVAMP, tmp_path, "train")
    assert [output.label for output in outputs] == [f"({number})" for number in range(11) for _ in range(2)]
    assert outputs[0].rationale == " 0."
    (tmp_path / "svamp" / "palm" / "train_CoT_4.json").unlink()
    with pytest.raises(BadFile, match=r"train_CoT_4.json is missing"):
        read_outputs(SVAMP, tmp_path, "train")


def test_a_teacher_without_files_is_missed(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"train_CoT_0.json is missing"):
        read_outputs(SVAMP, tmp_path, "train")


@pytest.mark.parametrize(
    ("text", "message"), [("[", "not JSON"), ("{}", "not a list"), ("[1]", "not a list of strings")]
)
def test_outputs_of_another_form_are_refused(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "svamp" / "palm" / "train_CoT_0.json", text)
    with pytest.raises(BadFile, match=message):
        read_outputs(SVAMP, tmp_path, "train")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a", "not ASDiv's XML"),
        ('<a><Problem ID="p7"><Body>b</Body></Problem></a>', "the problem p7 lacks its text or its answer"),
    ],
)
def test_problems_of_another_form_are_refused(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "asdiv" / "ASDiv.xml", text)
    with pytest.raises(BadFile, match=message):
        read_rows(ASDIV, tmp_path, "train")


def test_an_original_problem_without_its_equation_is_named(tmp_path: Path) -> None:
    write(tmp_path / "svamp" / "SVAMP.json", '[{"Body": "b", "Question": "q", "Equation": 7}]')
    with pytest.raises(BadFile, match="problem 1: not one of SVAMP's"):
        read_rows(SVAMP, tmp_path, "test")


def test_a_split_that_is_not_there_is_missed(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"cqa_train.json is missing"):
        read_rows(CQA, tmp_path, "train")
    with pytest.raises(BadFile, match="only a training split"):
        read_rows(ASDIV, tmp_path, "test")
    with pytest.raises(BadFile, match="not ASDiv's XML"):
        read_rows(ASDIV, tmp_path, "train")
