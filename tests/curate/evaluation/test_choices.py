"""Choices between captions are read from every form of file that benchmarks come in."""

import gzip
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.core.refusals import Refused
from services.core.text_files import BadFile
from services.curate.authoring.candidates import write_outcomes
from services.curate.evaluation.choices import Choice, Fields, read_choices
from services.jobs.sugarcrepe import Pair, write_pairs, write_published
from tests.published_data import published
from tests.score.evaluation import tiny_suite

PAIR = Pair(id="a", kind="negate", filename="1.jpg", caption="A dog.", negative_caption="No dog.")
ARO = "\ttitle\tfilepath\tneg_caption\n7\tA dog and a cat.\tx.jpg\t['A cat and a dog.', \"A dog's cat.\"]\n"


def valse(*, votes: int = 3) -> dict[str, Any]:
    return {"caption": "Two dogs.", "foil": "Three dogs.", "mturk": {"foil": 0, "caption": votes, "other": 3 - votes}}


def test_our_own_pairs_and_sugarcrepes_folder_are_read(tmp_path: Path) -> None:
    write_pairs(tmp_path / "pairs.jsonl", [PAIR])
    assert read_choices(tmp_path / "pairs.jsonl") == [Choice("negate", "a", "A dog.", ("No dog.",))]
    write_published(tmp_path / "folder", [PAIR.model_copy(update={"kind": "add_obj"})])
    assert read_choices(tmp_path / "folder") == [Choice("add_obj", "add_obj-0", "A dog.", ("No dog.",))]
    assert read_choices(tmp_path / "folder" / "add_obj.json") == [Choice("add_obj", "0", "A dog.", ("No dog.",))]


def test_folders_of_published_benchmarks_are_told_by_their_files(tmp_path: Path) -> None:
    tiny_suite.write_aro(tmp_path / "aro")
    tiny_suite.write_crepe(tmp_path)
    tiny_suite.write_vl_checklist(tmp_path / "vl")
    tiny_suite.write_negbench(tmp_path / "negbench")
    tiny_suite.write_whatsup(tmp_path / "whatsup")
    for folder in ("vg", "swig", "hake"):
        shutil.rmtree(tmp_path / "vl" / folder)
    (aro, *_) = read_choices(tmp_path / "aro")
    assert aro == Choice("VG_Relation", "0", "a red cup is on the table", ("a green cup is on it",))
    crepe = read_choices(tmp_path / "crepe")
    assert Counter(one.task for one in crepe) == {"atom": 9, "swap": 9, "negate": 9}
    assert crepe[0].negatives == ("green roof and wall", "no roof, 'blue' wall")
    assert len(read_choices(tmp_path / "vl")) == 112
    assert [one.task for one in read_choices(tmp_path / "negbench/images")] == ["COCO_val_mcq_llama3.1_rephrased"]
    assert len(read_choices(tmp_path / "whatsup")) == 6
    with pytest.raises(Refused, match=r"nor those that tell the folder of ARO, CREPE"):
        read_choices(tmp_path / "visual_genome")


def test_what_unicode_ends_lines_with_ends_no_line_of_pairs(tmp_path: Path) -> None:
    odd = PAIR.model_copy(update={"id": "b", "caption": "one\u2028two\u2029three\u0085four"})
    write_outcomes(tmp_path, [odd, PAIR], [])
    text = (tmp_path / "pairs.jsonl").read_text(encoding="utf-8")
    assert text.splitlines() == text.split("\n")[:-1]
    assert [one.caption for one in read_choices(tmp_path / "pairs.jsonl")] == [odd.caption, PAIR.caption]


def test_the_folder_above_sugarcrepes_is_refused_with_the_names_below(tmp_path: Path) -> None:
    for name in ("refined", "unrefined"):
        write_published(tmp_path / name, [PAIR.model_copy(update={"kind": "add_obj"})])
    (tmp_path / "swap_obj_246.json").write_text((tmp_path / "refined" / "add_obj.json").read_text())
    with pytest.raises(Refused, match="seven files itself: choose of refined, unrefined in it"):
        read_choices(tmp_path)


def test_valses_items_are_those_that_annotators_agreed_with(tmp_path: Path) -> None:
    content = json.dumps({"x": valse(), "y": valse(votes=1), "z": valse(votes=2)}).encode()
    (tmp_path / "plurals.json.gz").write_bytes(gzip.compress(content))
    (tmp_path / "existence.json").write_bytes(content)
    for path in (tmp_path, tmp_path / "plurals.json.gz"):
        assert [one.id for one in read_choices(path) if one.task == "plurals"] == ["x", "z"]
    assert Counter(one.task for one in read_choices(tmp_path)) == {"plurals": 2, "existence": 2}


def test_aros_captions_have_several_false_ones(tmp_path: Path) -> None:
    (tmp_path / "valid.tsv").write_text(ARO)
    assert read_choices(tmp_path / "valid.tsv") == [
        Choice("valid", "7", "A dog and a cat.", ("A cat and a dog.", "A dog's cat."))
    ]


def test_lines_of_any_project_are_read_by_the_names_of_their_fields(tmp_path: Path) -> None:
    lines = [{"pos": "A dog.", "neg": "A cat.", "part": 1}, {"id": 9, "pos": "A cow.", "neg": ["A", "B"], "part": "x"}]
    (tmp_path / "mine.jsonl").write_text("\n\n".join(map(json.dumps, lines)))
    assert read_choices(tmp_path / "mine.jsonl", Fields("pos", "neg")) == [
        Choice("mine", "1", "A dog.", ("A cat.",)),
        Choice("mine", "9", "A cow.", ("A", "B")),
    ]
    assert [one.task for one in read_choices(tmp_path / "mine.jsonl", Fields("pos", "neg", "part"))] == ["1", "x"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "[]", "a.json holds no choices between captions"),
        ("a.json", '{"x": {"caption": "A dog."}}', "a.json: x: negative_caption is missing; there is caption"),
        ("a.json", "{}", "holds no choices"),
        ("a.json.gz", "{}", "a.json.gz holds no choices"),
        ("a.tsv", "title\tneg_caption\nA dog.\t[]\n", "a.tsv: the first line lacks the columns ''"),
        ("a.tsv", "\ttitle\tneg_caption\n1\tA dog.\t[]\n", "1 has no false caption"),
        ("a.tsv", "\ttitle\tneg_caption\n1\tA dog.\t[\n", "holds no choices"),
    ],
)
def test_a_file_of_another_form_is_refused_by_name(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(Refused, match=message):
        read_choices(tmp_path / name)


def test_lines_that_lack_a_field_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"pos": 3, "neg": "A cat."}\n')
    with pytest.raises(Refused, match=r"mine.jsonl:1: other is missing; there is pos, neg"):
        read_choices(tmp_path / "mine.jsonl", Fields("pos", "other"))
    with pytest.raises(Refused, match=r"mine.jsonl:1: pos: a text is needed, not 3"):
        read_choices(tmp_path / "mine.jsonl", Fields("pos", "neg"))
    with pytest.raises(BadFile, match=r"mine.jsonl:1: id: .* --caption-field, --negative-field"):
        read_choices(tmp_path / "mine.jsonl")
    with pytest.raises(Refused, match=r"holds no .json files"):
        read_choices(tmp_path)


def test_published_benchmarks_have_their_published_numbers_of_items() -> None:
    assert len(read_choices(published("sugar-crepe/refined"))) == 7_511
    assert len(read_choices(published("sugar-crepe/unrefined"))) == 17_478
    of_valse = Counter(one.task for one in read_choices(published("valse")))
    assert of_valse["existence"] == 505 and of_valse["foil-it"] == 943 and len(of_valse) == 11
    aro = read_choices(published("aro/valid_neg_clip.tsv"))
    assert len(aro) == 4_839 and all(1 <= len(one.negatives) <= 5 for one in aro)
