"""SugarCrepe is read as it is published, each type under its own instruction; right is the strictly nearer caption."""

import json
from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.embed.evaluation.embedders import NoTextSide
from services.embed.evaluation.sugarcrepe import evaluate_sugarcrepe
from services.jobs.sugarcrepe import CaptionPair, load_sugarcrepe
from tests.embed.evaluation.data_sets import write_sugarcrepe
from tests.embed.evaluation.embedders import ColorWords, MeanColor
from tests.published_data import published


@pytest.fixture
def sugarcrepe(tmp_path: Path) -> Path:
    return write_sugarcrepe(tmp_path)


def test_the_published_files_have_the_published_counts() -> None:
    choices = load_sugarcrepe(published("sugar-crepe/refined"))
    counts = {kind: len(some) for kind, some in choices.items()}
    assert counts == {
        "replace_obj": 1652,
        "replace_att": 788,
        "replace_rel": 1406,
        "swap_obj": 245,
        "swap_att": 666,
        "add_obj": 2062,
        "add_att": 692,
    }
    assert sum(counts.values()) == 7511
    assert choices["swap_obj"][0] == CaptionPair(
        "000000222235.jpg",
        "A cat sits on its hind legs, and swats at the plant.",
        "A cat sits on the plant, and swats at its hind legs.",
    )


def test_the_file_that_was_published_first_takes_the_place_of_swap_obj() -> None:
    first = published("sugar-crepe/swap_obj_paper246.json")
    choices = load_sugarcrepe(published("sugar-crepe/refined"), swap_obj=first)
    assert len(choices["swap_obj"]) == 246
    assert sum(map(len, choices.values())) == 7512


def test_captions_of_the_images_colour_are_found_and_ties_are_wrong(sugarcrepe: Path) -> None:
    embedder = ColorWords()
    scores = evaluate_sugarcrepe(embedder, sugarcrepe / "val2017", load_sugarcrepe(sugarcrepe))
    # one of the four choices of each type has twice the same caption, and one of swap_att's is turned around
    assert scores == {**dict.fromkeys(scores, 75.0), "swap_att": 50.0}
    assert list(scores) == [
        "replace_obj",
        "replace_att",
        "replace_rel",
        "swap_obj",
        "swap_att",
        "add_obj",
        "add_att",
    ]


def test_each_type_is_asked_its_own_instruction_and_each_of_its_images_read_once(sugarcrepe: Path) -> None:
    embedder = ColorWords()
    evaluate_sugarcrepe(embedder, sugarcrepe / "val2017", load_sugarcrepe(sugarcrepe))
    assert embedder.asked == [
        "Focus on the presence of objects in the image.",
        "Focus on the color, patterns and other attributes of the objects in the image.",
        "What are the relationships between the objects in the image?",
        "What are the actions, states, colors, patterns and relationships of the objects in the image?",
        "What kind of objects are in the image?",
        "What is not in the image?",
        "What is not in the image?",
    ]
    assert embedder.num_images == 7 * 2


def test_a_limit_takes_the_first_choices_of_each_type(sugarcrepe: Path) -> None:
    choices = load_sugarcrepe(sugarcrepe, limit=3)
    assert {len(some) for some in choices.values()} == {3}
    assert choices["add_obj"] == load_sugarcrepe(sugarcrepe)["add_obj"][:3]


def test_missing_files_are_named_before_any_image_is_embedded(sugarcrepe: Path) -> None:
    choices = load_sugarcrepe(sugarcrepe)
    (sugarcrepe / "val2017" / choices["add_att"][-1].filename).unlink()
    embedder = ColorWords()
    with pytest.raises(BadFile, match=r"val2017/.*jpg is missing. It belongs to COCO"):
        evaluate_sugarcrepe(embedder, sugarcrepe / "val2017", choices)
    assert embedder.num_images == 0
    with pytest.raises(BadFile, match=r"other.json is missing. It belongs to SugarCrepe"):
        load_sugarcrepe(sugarcrepe, swap_obj=sugarcrepe / "other.json")


@pytest.mark.parametrize("content", ["[]", "{", json.dumps({"0": {"filename": "1.jpg", "caption": "a dog"}})])
def test_a_file_of_something_else_is_refused_by_name(sugarcrepe: Path, content: str) -> None:
    (sugarcrepe / "add_obj.json").write_text(content)
    with pytest.raises(BadFile, match=r"add_obj.json( does not contain SugarCrepe's|:1: not JSON|: 0: negative_)"):
        load_sugarcrepe(sugarcrepe)


def test_a_model_without_texts_is_told_apart(sugarcrepe: Path) -> None:
    with pytest.raises(NoTextSide):
        evaluate_sugarcrepe(MeanColor(), sugarcrepe / "val2017", load_sugarcrepe(sugarcrepe))
