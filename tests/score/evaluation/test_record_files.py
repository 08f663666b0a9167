"""Any benchmark can be brought as records in a file; what is wrong with it is told by line and field."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.core.text_files import BadFile
from services.score.evaluation.benchmarks.record_files import load_records
from services.score.evaluation.records import Record

IMAGES = Path("pictures")


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records) + "\n\n", encoding="utf-8")
    return path


def test_a_file_may_hold_all_three_kinds_as_tasks_of_their_own(tmp_path: Path) -> None:
    path = write(
        tmp_path / "pets.jsonl",
        {"id": "0", "images": ["a.jpg"], "captions": ["ein Hündchen", "ein Kätzchen"]},
        {"id": "1", "images": ["a.jpg", "b.jpg"], "captions": ["a dog"], "task": "found"},
        {"id": "2", "images": ["a.jpg", "b.jpg"], "captions": ["a dog", "a cat"], "task": "pairs"},
        {"id": "1", "images": ["b.jpg"], "captions": ["a cat", "a dog"]},
    )
    texts, found, pairs = load_records(path, IMAGES)
    assert [(task.name, task.benchmark, task.kind) for task in (texts, found, pairs)] == [
        ("pets", "pets", "image-to-text"),
        ("found", "pets", "text-to-image"),
        ("pairs", "pets", "group"),
    ]
    assert texts.records == (
        Record("0", (IMAGES / "a.jpg",), ("ein Hündchen", "ein Kätzchen")),
        Record("1", (IMAGES / "b.jpg",), ("a cat", "a dog")),
    )
    assert {task.benchmark for task in load_records(path, IMAGES, benchmark="crepe")} == {"crepe"}


def test_records_with_categories_are_averaged_over_them(tmp_path: Path) -> None:
    record = {"images": ["a.jpg"], "captions": ["on", "under"]}
    path = write(tmp_path / "a.jsonl", {"id": "0", **record, "category": "on"}, {"id": "1", **record, "category": "in"})
    (task,) = load_records(path, IMAGES)
    assert task.by_category
    assert [one.category for one in task.records] == ["on", "in"]
    write(path, {"id": "0", **record, "category": "on"}, {"id": "1", **record})
    with pytest.raises(BadFile, match=r"a.jsonl: only some records of a have a category"):
        load_records(path, IMAGES)


def test_a_limit_takes_the_first_records_of_each_task(tmp_path: Path) -> None:
    record = {"images": ["a.jpg"], "captions": ["on", "under"]}
    path = write(tmp_path / "a.jsonl", *({"id": str(n), **record, "task": "xyz"[n % 3]} for n in range(9)))
    tasks = load_records(path, IMAGES, limit=2)
    assert [[one.id for one in task.records] for task in tasks] == [["0", "3"], ["1", "4"], ["2", "5"]]


GOOD = {"id": "0", "images": ["a.jpg"], "captions": ["on", "under"]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"id": "1", "captions": ["on", "under"]}, "2: images: Field required"),
        ({**GOOD, "id": 1}, "2: id: Input should be a valid string"),
        ({**GOOD, "id": "1", "image": "a.jpg"}, "2: image: Extra inputs are not permitted"),
        ({**GOOD, "id": "1", "captions": ["on", None]}, "2: captions.1: Input should be a valid string"),
        ({**GOOD, "id": "1", "captions": ["on"]}, "2: one image and one caption: nothing to choose from"),
        ({**GOOD, "id": "1", "images": []}, "2: 0 images and 2 captions"),
        ({**GOOD, "id": "1", "images": ["a.jpg", "b.jpg"]}, "a has records of several kinds: group, image-to-text"),
        (GOOD, "a holds '0' twice"),
        ("nothing", "2: the line: Input should be an object"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_with_its_number_and_field(tmp_path: Path, line: Any, message: str) -> None:
    path = write(tmp_path / "a.jsonl", GOOD, line)
    with pytest.raises(BadFile, match=rf"a\.jsonl[,:] ?{message}"):
        load_records(path, IMAGES)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", GOOD)
    path.write_text(path.read_text(), encoding="utf-8-sig")
    assert len(load_records(path, IMAGES)) == 1


def test_a_file_of_no_text_of_no_record_or_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with pytest.raises(BadFile, match=r"a\.jsonl is missing"):
        load_records(path, IMAGES)
    path.write_text("\n")
    with pytest.raises(BadFile, match=r"a\.jsonl has no records"):
        load_records(path, IMAGES)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match=r"a\.jsonl:1: not text in UTF-8 but in UTF-16"):
        load_records(path, IMAGES)
