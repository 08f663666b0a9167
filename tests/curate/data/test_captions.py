"""Captions to make false ones of, from COCO's files and from JSON lines."""

import json
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.curate.data.captions import Caption, Fields, read_captions

COCO = {
    "info": {"description": "COCO 2017 Dataset"},
    "images": [{"id": 42, "file_name": "000000000042.jpg"}, {"id": 7, "file_name": "000000000007.jpg"}],
    "annotations": [
        {"image_id": 42, "id": 1, "caption": "A dog  sleeps.\n"},
        {"image_id": 7, "id": 2, "caption": "Two cats"},
        {"image_id": 42, "id": 3, "caption": "a dog sleeps."},
        {"image_id": 42, "id": 4, "caption": "A sleeping dog"},
        {"image_id": 7, "id": 5, "caption": " "},
    ],
}


def test_cocos_captions_have_their_image_and_another_caption_of_it(tmp_path: Path) -> None:
    path = tmp_path / "captions_val2017.json"
    path.write_text(json.dumps(COCO))
    assert read_captions(path).captions == [
        Caption("1", "000000000042.jpg", "A dog sleeps.", "A sleeping dog"),
        Caption("3", "000000000042.jpg", "a dog sleeps.", "A sleeping dog"),
        Caption("4", "000000000042.jpg", "A sleeping dog", "A dog sleeps."),
        Caption("2", "000000000007.jpg", "Two cats", None),
    ]
    assert [one.id for one in read_captions(path, limit=2).captions] == ["1", "3"]


def test_lines_may_name_their_fields_as_they_like(tmp_path: Path) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text(
        '{"title": "A dog", "url": "a.png", "score": 3}\n\n{"title": "A cat", "url": "b.png", "alt": "Cat"}\n'
    )
    fields = Fields(caption="title", image="url", second="alt")
    found = read_captions(path, fields)
    assert found.captions == [Caption("1", "a.png", "A dog"), Caption("3", "b.png", "A cat", "Cat")]


@pytest.mark.parametrize(
    "text",
    [
        '{"filename": "a.png", "caption": "A dog"}\n',
        '{"images": [{"id": 1, "file_name": "a.png"}], "annotations": [{"id": 1, "image_id": 1, "caption": "A dog"}]}',
    ],
)
def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path, text: str) -> None:
    path = tmp_path / "captions.json"
    path.write_text(text, encoding="utf-8-sig")
    assert read_captions(path).captions == [Caption("1", "a.png", "A dog")]


def test_empty_and_repeated_captions_are_left_out_and_counted_in_both_forms(tmp_path: Path) -> None:
    captions = [("a", "A dog"), ("a", " "), ("a", "Caf\u00e9"), ("a", "Cafe\u0301 "), ("b", "A dog"), ("a", "a dog")]
    images = [{"id": name, "file_name": name} for name in "ab"]
    annotations = [{"image_id": name, "id": n, "caption": text} for n, (name, text) in enumerate(captions, 1)]
    coco, lines = tmp_path / "coco.json", tmp_path / "captions.jsonl"
    coco.write_text(json.dumps({"images": images, "annotations": annotations}))
    lines.write_text("".join(json.dumps({"filename": name, "caption": text}) + "\n" for name, text in captions))
    for path in (coco, lines):
        found = read_captions(path)
        assert sorted(one.id for one in found.captions) == ["1", "3", "5", "6"]
        assert found.told() == [
            "Captions that are empty: 1, left out",
            "Captions that are repeated for the same image: 1, left out",
            "Captions that are equal to one of another image: 1, used; each has negatives of its own",
        ]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "contains no captions"),
        ("[1]", "record 1: a JSON object is needed, not 1. Captions are COCO's"),
        ("1\n2", "1: a JSON object is needed, not 1. Captions are COCO's"),
        ("image,caption\n1.jpg,A dog", "1: not JSON .* Captions are COCO's .* or JSON lines"),
        (
            '{"caption": "A dog", "image": "a"}',
            "1: filename is missing; there is caption, image. Name another with --field image=NAME",
        ),
        ('{"caption": "A dog", "filename": ""}', "1: filename is empty"),
        ('{"caption": 3, "filename": "a"}', "1: caption: a text is needed, not 3"),
        (
            '{"caption": "A", "filename": "a", "id": 1}\n{"caption": "B", "filename": "b", "id": "1"}',
            "2: id: '1' was used",
        ),
        ("{", "1: not JSON"),
        (json.dumps({**COCO, "images": []}), "annotations.0: image_id: there is no image 42"),
        (json.dumps({"annotations": []}), "images: not in COCO's form, a list of objects"),
    ],
)
def test_a_bad_file_is_named_with_line_and_field(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "captions.jsonl"
    path.write_text(content)
    with pytest.raises(BadFile, match=complaint):
        read_captions(path)
