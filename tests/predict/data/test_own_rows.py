"""Rows of a task of one's own: which are held out, whose labels and reasons are learnt, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from services.core.text_files import BadFile
from services.predict.data.inputs import own_splits
from services.predict.data.rows import Row, TeachingData
from services.predict.data.task_file import OwnTask, read_task_file
from services.predict.data.teacher_outputs import read_output
from services.predict.tasks import Task
from tests.predict.data.tickets import ROWS, write_lines, write_task, write_tickets


def own_task(folder: Path, **given: Any) -> OwnTask:
    file = read_task_file(write_task(folder))
    return OwnTask(file.to_task(), file.label, file.rationale, **given)


def splits_of(own: OwnTask, data: Path, *, is_labelled: bool = True) -> TeachingData:
    return own_splits(own, data, None, fraction=1.0, seed=0, is_labelled=is_labelled)


def inputs(rows: list[Row]) -> list[str]:
    return [row.input for row in rows]


def test_a_share_chosen_by_a_seed_is_held_out_for_the_test(tmp_path: Path) -> None:
    data = write_tickets(tmp_path)
    splits = splits_of(own_task(tmp_path, test_share=0.3), data)
    assert len(splits.test) == 10
    assert len(splits.train) + len(splits.valid) + len(splits.test) == len(ROWS)
    learnt, chosen_by, tested = (set(inputs(rows)) for rows in (splits.train, splits.valid, splits.test))
    assert not tested & (learnt | chosen_by) and not learnt & chosen_by
    assert splits_of(own_task(tmp_path, test_share=0.3), data) == splits
    other = splits_of(own_task(tmp_path, test_share=0.3, split_seed=1), data)
    assert set(inputs(other.test)) != tested


def test_rows_of_one_input_are_not_learnt_and_tested(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "twice.jsonl", [dict(row) for row in ROWS + ROWS])
    splits = splits_of(own_task(tmp_path, test_share=0.5), data)
    assert not set(inputs(splits.test)) & set(inputs(splits.train) + inputs(splits.valid))


def test_files_of_a_folder_are_the_splits(tmp_path: Path) -> None:
    for name, rows in (("train", ROWS[:20]), ("valid", ROWS[20:26]), ("test", ROWS[26:])):
        write_lines(tmp_path / "tickets" / f"{name}.jsonl", [dict(row) for row in rows])
    splits = splits_of(own_task(tmp_path), tmp_path / "tickets")
    assert [len(rows) for rows in (splits.train, splits.valid, splits.test)] == [20, 6, 7]
    assert splits.test[0].label == ROWS[26]["team"]


def test_reasons_that_people_wrote_are_rationales_and_rows_may_lack_them(tmp_path: Path) -> None:
    splits = splits_of(own_task(tmp_path), write_tickets(tmp_path))
    reasons = {(row["subject"], row["body"]): row.get("reason") for row in ROWS}
    written = {f"Subject: {subject}\n{body}": reason for (subject, body), reason in reasons.items()}
    assert {row.input: row.output and row.output.rationale for row in splits.train}.items() <= written.items()
    assert any(row.output is None for row in splits.train)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"body": None}, "body is missing"),
        ({"body": 3}, "body must be a string"),
        ({"team": None}, "team is missing; known are subject, body"),
        ({"team": "biling"}, "team is 'biling', which is not a label; the nearest is 'billing'"),
        ({"team": 1}, "team must be a string"),
        ({"reason": ["No."]}, "reason must be a string"),
        ({"body": None, "boddy": "Hello."}, "body is missing; the nearest is 'boddy'"),
        ({"body": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_a_row_that_does_not_fit_is_named_by_file_line_and_field(
    tmp_path: Path, changes: dict[str, object], complaint: str
) -> None:
    rows: list[dict[str, object]] = [dict(row) for row in ROWS]
    rows[6] = {name: value for name, value in {**rows[6], **changes}.items() if value is not None}
    path = tmp_path / "tickets.jsonl"
    write_lines(path, rows)
    with pytest.raises(BadFile) as refused:
        splits_of(own_task(tmp_path), path)
    assert str(refused.value).startswith(f"{path}:7: ")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("team", "team must be a string, not null"),
        ("body", "body must be a string, not null"),
    ],
)
def test_a_null_is_told_from_a_key_that_is_missing(tmp_path: Path, key: str, complaint: str) -> None:
    rows: list[dict[str, object]] = [dict(row) for row in ROWS]
    rows[6][key] = None
    path = write_lines(tmp_path / "tickets.jsonl", rows)
    with pytest.raises(BadFile) as refused:
        splits_of(own_task(tmp_path), path)
    assert str(refused.value) == f"{path}:7: {complaint}"


def test_a_row_with_a_repeated_key_is_refused_with_its_line(tmp_path: Path) -> None:
    path = write_tickets(tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:-1] + ', "team": "bug"}', *lines[4:]]))
    with pytest.raises(BadFile) as refused:
        splits_of(own_task(tmp_path), path)
    assert str(refused.value) == f"{path}:4: the key 'team' occurs twice"


def test_rows_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write_tickets(tmp_path)
    own = own_task(tmp_path)
    splits = splits_of(own, path)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert splits_of(own, path) == splits


def test_rows_need_no_label_where_the_teachers_are_learnt(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [dict(row) for row in ROWS]
    for row in rows[:10]:
        del row["team"]
    data = write_lines(tmp_path / "tickets.jsonl", rows)
    splits = splits_of(own_task(tmp_path), data, is_labelled=False)
    assert all(row.label for row in splits.test + splits.valid)
    assert len(splits.train + splits.valid + splits.test) == len(ROWS)


def test_too_few_rows_for_all_splits_are_refused(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "tickets.jsonl", [dict(row) for row in ROWS[:2]])
    with pytest.raises(BadFile, match="no training rows; give more rows with labels"):
        splits_of(own_task(tmp_path), data)


TICKETS = Task("tickets", ("body",), "\n", labels=("billing", "bug"))
FREE = Task("titles", ("body",), "\n")
CHOICE = Task("picks", ("body", "options"), "\n", choices="options")


@pytest.mark.parametrize(
    ("task", "text", "rationale", "label", "problem"),
    [
        (TICKETS, "It crashes. So the answer is bug.", "It crashes.", "bug", None),
        (TICKETS, " It crashes.\nSo the answer is: **Bug**.", "It crashes.", "bug", None),
        (TICKETS, "It crashes. So the answer is <bug>.", "It crashes.", "bug", None),
        (TICKETS, "It crashes. So the answer is bug.\n\nInput:\nMore", "It crashes.", "bug", None),
        (TICKETS, "It crashes. So the answer is crash.", "It crashes.", "crash", "unknown_label"),
        (TICKETS, "bug", "", "", "no_answer"),
        (TICKETS, "So the answer is bug.", "", "bug", "no_rationale"),
        (TICKETS, "It crashes. So the answer is", "It crashes.", "", "no_label"),
        (TICKETS, "A. So the answer is bug. So the answer is bug.", "", "", "several_answers"),
        (FREE, "It is short. So the answer is Two words.", "It is short.", "Two words", None),
        (CHOICE, "Milk is cold. So the answer is (b) Fridge.", "Milk is cold.", "fridge", None),
    ],
)
def test_a_teachers_answer_about_a_task_of_ones_own_is_parsed(
    task: Task, text: str, rationale: str, label: str, problem: str | None
) -> None:
    parsed = read_output(task, {"body": "…", "options": ["garden", "fridge"]}, text)
    assert (parsed.rationale, parsed.label, parsed.problem) == (rationale, label, problem)
