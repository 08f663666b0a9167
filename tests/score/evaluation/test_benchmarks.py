"""Published benchmarks are read as their owners publish them, with the published counts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.core.text_files import BadFile
from services.score.evaluation.benchmarks.aro import load_negclip_captions
from services.score.evaluation.benchmarks.caption_choices import load_sugarcrepe_tasks, load_valse
from services.score.evaluation.benchmarks.image_choices import load_imagecode, load_winoground
from services.score.evaluation.benchmarks.record_files import load_pairs_tasks
from services.score.evaluation.records import Record, count, file_of
from tests.published_data import published
from tests.score.evaluation.stand_ins import write_image, write_sugarcrepe, write_valse

IMAGES = Path("images")
VALSE_ENTRY = {
    "dataset": "visual7w",
    "image_file": "v7w_1.jpg",
    "caption": "There are exactly 4 cars parked.",
    "foil": "There are exactly 0 cars parked.",
    "mturk": {"foil": 0, "caption": 2, "other": 1},
}


def test_sugarcrepe_has_7511_choices_in_seven_types() -> None:
    tasks = load_sugarcrepe_tasks(published("sugar-crepe/refined"), IMAGES)
    assert {task.name: len(task.records) for task in tasks} == {
        "replace_obj": 1652,
        "replace_att": 788,
        "replace_rel": 1406,
        "swap_obj": 245,
        "swap_att": 666,
        "add_obj": 2062,
        "add_att": 692,
    }
    assert count(tasks).startswith("7,511 records: replace_obj 1,652, ")
    assert {(task.benchmark, task.kind) for task in tasks} == {("sugarcrepe", "image-to-text")}
    assert tasks[3].records[0] == Record(
        "0",
        (IMAGES / "000000222235.jpg",),
        (
            "A cat sits on its hind legs, and swats at the plant.",
            "A cat sits on the plant, and swats at its hind legs.",
        ),
    )
    # one choice was withdrawn, and the others kept their ids
    ids = {record.id for record in tasks[3].records}
    assert "108" not in ids
    assert "245" in ids


def test_the_file_that_was_published_first_makes_it_7512() -> None:
    first = published("sugar-crepe/swap_obj_paper246.json")
    tasks = load_sugarcrepe_tasks(published("sugar-crepe/refined"), IMAGES, swap_obj=first)
    assert sum(len(task.records) for task in tasks) == 7512
    assert {record.id for record in tasks[3].records} >= {"107", "108", "109"}


@pytest.mark.slow
def test_types_without_choices_are_left_out_unless_all_are_empty(tmp_path: Path) -> None:
    write_sugarcrepe(tmp_path)
    (tmp_path / "add_obj.json").write_text("{}")
    assert [task.name for task in load_sugarcrepe_tasks(tmp_path, IMAGES)][-2:] == ["swap_att", "add_att"]
    for path in tmp_path.glob("*.json"):
        path.write_text("{}")
    with pytest.raises(BadFile, match="contains none of SugarCrepe's choices"):
        load_sugarcrepe_tasks(tmp_path, IMAGES)


def test_valse_has_the_published_number_of_valid_captions_in_eleven_files() -> None:
    tasks = load_valse(published("valse"), IMAGES)
    assert {task.name: len(task.records) for task in tasks} == {
        "existence": 505,
        "plurals": 851,
        "counting-hard": 868,
        "counting-small-quant": 900,
        "counting-adversarial": 691,
        "relations": 535,
        "action-replacement": 648,
        "actant-swap": 949,
        "coreference-standard": 708,
        "coreference-hard": 104,
        "foil-it": 943,
    }


def test_valses_images_are_in_the_folders_of_their_data_sets() -> None:
    files = {task.name: task.records[0].images[0] for task in load_valse(published("valse"), IMAGES)}
    assert {name: file_of(image).relative_to(IMAGES).as_posix() for name, image in files.items()} == {
        "existence": "visual7w/v7w_2371044.jpg",
        "plurals": "val2017/000000291619.jpg",
        "counting-hard": "visual7w/v7w_2396743.jpg",
        "counting-small-quant": "visual7w/v7w_2349294.jpg",
        "counting-adversarial": "visual7w/v7w_1.jpg",
        "relations": "val2017/000000462576.jpg",
        "action-replacement": "swig/exercising_255.jpg",
        "actant-swap": "swig/exercising_255.jpg",
        "coreference-standard": "train2014/COCO_train2014_000000254009.jpg",
        "coreference-hard": "VisualDialog_val2018/VisualDialog_val2018_000000284024.jpg",
        "foil-it": "val2014/COCO_val2014_000000165831.jpg",
    }


def test_negclips_captions_are_4839_with_one_to_five_swaps_each() -> None:
    (task,) = load_negclip_captions(published("aro/valid_neg_clip.tsv"), IMAGES)
    counts = [len(record.captions) - 1 for record in task.records]
    assert (task.name, len(task.records)) == ("negclip", 4839)
    assert [counts.count(number) for number in range(1, 6)] == [2891, 1418, 480, 47, 3]
    assert task.records[0] == Record(
        "0",
        (IMAGES / "coco/val2014/COCO_val2014_000000184613.jpg",),
        (
            "A child holding a flowered umbrella and petting a yak.",
            "A umbrella holding a flowered child and petting a yak .",
            "A child petting a flowered umbrella and holding a yak .",
        ),
    )


def test_pairs_are_a_task_for_each_type_with_their_own_ids(tmp_path: Path) -> None:
    pairs = [
        {"id": f"{kind}-{i}", "kind": kind, "filename": f"{i}.png", "caption": "a cat", "negative_caption": "no cat"}
        for kind in ("negate", "swap_obj")
        for i in range(3)
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    negations, swaps = load_pairs_tasks(path, tmp_path / "images", limit=2)
    assert (negations.name, swaps.name, negations.benchmark) == ("negate", "swap_obj", "mine")
    assert [record.id for record in negations.records] == ["negate-0", "negate-1"]
    assert negations.records[0].captions == ("a cat", "no cat")
    assert negations.records[0].images == (tmp_path / "images" / "0.png",)
    path.write_text(json.dumps({**pairs[0], "kind": "deny"}))
    with pytest.raises(BadFile, match=r"mine\.jsonl:1: kind"):
        load_pairs_tasks(path, tmp_path)
    path.write_text("")
    with pytest.raises(BadFile, match="holds no pairs"):
        load_pairs_tasks(path, tmp_path)


def test_a_limit_takes_the_first_records_of_each_task(tmp_path: Path) -> None:
    tasks = load_sugarcrepe_tasks(write_sugarcrepe(tmp_path), IMAGES, limit=2)
    assert {tuple(record.id for record in task.records) for task in tasks} == {("0", "2")}
    write_valse(tmp_path, VALSE_ENTRY)
    assert {len(task.records) for task in load_valse(tmp_path, IMAGES, limit=1)} == {1}


def test_valse_is_read_gzipped_or_not_and_what_people_doubt_is_left_out(tmp_path: Path) -> None:
    write_valse(tmp_path, VALSE_ENTRY)
    assert [[record.id for record in task.records] for task in load_valse(tmp_path, IMAGES)] == [["first"]] * 11


def test_winoground_pairs_two_images_with_two_captions(tmp_path: Path) -> None:
    lines = [
        {
            "id": number,
            "image_0": f"ex_{number}_img_0",
            "image_1": f"ex_{number}_img_1",
            "caption_0": "x",
            "caption_1": "y",
        }
        for number in range(3)
    ]
    (tmp_path / "examples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (task,) = load_winoground(tmp_path, IMAGES, limit=2)
    assert task.kind == "group"
    assert task.records[1] == Record("1", (IMAGES / "ex_1_img_0.png", IMAGES / "ex_1_img_1.png"), ("x", "y"))
    assert len(task.records) == 2


def test_imagecode_asks_for_the_described_one_of_ten_images(tmp_path: Path) -> None:
    for name in ("open-images-7_x", "MSRVTT_y"):
        for number in range(1, 11):
            write_image(tmp_path / "sets" / name / f"img{number}.jpg", size=(2, 2))
    data = tmp_path / "valid_data.json"
    data.write_text(json.dumps({"open-images-7_x": {"3": "a"}, "MSRVTT_y": {"0": "b", "9": "c"}}))
    videos, static = load_imagecode(data, tmp_path / "sets")
    assert (videos.name, static.name, static.kind) == ("videos", "static", "text-to-image")
    (record,) = static.records
    # the fourth by number; by name, img10 would stand beside img1
    assert [file_of(image).name for image in record.images] == [f"img{n}.jpg" for n in (4, 1, 2, 3, 5, 6, 7, 8, 9, 10)]
    assert [one.id for one in videos.records] == ["MSRVTT_y/0", "MSRVTT_y/9"]
    (tmp_path / "sets" / "MSRVTT_y").rename(tmp_path / "sets" / "elsewhere")
    with pytest.raises(BadFile, match=r"MSRVTT_y is missing. It belongs to ImageCoDe"):
        load_imagecode(data, tmp_path / "sets")


@pytest.mark.parametrize(
    ("load", "file"),
    [
        (lambda path: load_sugarcrepe_tasks(path, IMAGES), "replace_obj.json"),
        (lambda path: load_valse(path, IMAGES), "existence.json"),
        (lambda path: load_negclip_captions(path / "valid.tsv", IMAGES), "valid.tsv"),
        (lambda path: load_winoground(path, IMAGES), "examples.jsonl"),
        (lambda path: load_imagecode(path / "valid_data.json", IMAGES), "valid_data.json"),
    ],
)
def test_a_missing_file_is_named(tmp_path: Path, load: Callable[[Path], Any], file: str) -> None:
    with pytest.raises(BadFile, match=f"{file} is missing. It belongs to "):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no attribute 'items'"),
        (json.dumps({"0": {"caption": "x", "foil": "y"}}), "there is no 'mturk'"),
        (json.dumps({"0": {**VALSE_ENTRY, "dataset": "flickr"}}), "there is no 'flickr'"),
        (json.dumps({"0": {**VALSE_ENTRY, "mturk": {"caption": 0}}}), "existence has no records"),
    ],
)
def test_a_file_of_something_else_is_named_with_what_it_lacks(tmp_path: Path, content: str, message: str) -> None:
    write_valse(tmp_path, VALSE_ENTRY)
    (tmp_path / "existence.json").write_text(content)
    with pytest.raises(BadFile, match=rf"existence.json holds no captions and foils of VALSE: .*{message}"):
        load_valse(tmp_path, IMAGES)


def test_a_broken_archive_and_broken_tables_are_named(tmp_path: Path) -> None:
    write_valse(tmp_path, VALSE_ENTRY)
    (tmp_path / "plurals.json.gz").write_bytes(b"not gzip")
    with pytest.raises(BadFile, match=r"plurals.json.gz:1: not JSON"):
        load_valse(tmp_path, IMAGES)
    table = tmp_path / "valid.tsv"
    table.write_text("\ttitle\tfilepath\tneg_caption\n0\ta\tb.jpg\t['c'\n")
    with pytest.raises(BadFile, match=r"valid.tsv:2 holds no captions and their negatives"):
        load_negclip_captions(table, IMAGES)
    table.write_text("\ttitle\tfilepath\tneg_caption\n0\ta\tb.jpg\t[]\n")
    with pytest.raises(BadFile, match=r"valid.tsv:2 holds no captions.*nothing to choose from"):
        load_negclip_captions(table, IMAGES)
