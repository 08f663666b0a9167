"""Hard negatives by ARO's and CREPE's rules."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.curate.authoring.candidates import Candidate
from services.curate.authoring.command import app
from services.curate.authoring.job import RULE_KINDS
from services.curate.authoring.rules import Rules, installed_rules
from services.curate.data.captions import Caption
from services.jobs.sugarcrepe import PairKind, read_pairs
from services.score.negatives.prompting.checks import compared_words
from tests.curate.scene_captions import write_scene_captions

CAPTIONS = (
    "A young woman in a red dress holds an old umbrella.",
    "a man riding a brown horse on the beach next to a woman",
    "Two small dogs are sleeping on a big bed under a white blanket.",
)


@pytest.fixture(scope="module")
def rules() -> Rules:
    return installed_rules()


def made(rules: Rules, text: str, kind: PairKind, draw: int = 0) -> str:
    return rules.make(Candidate(Caption("1", "1.jpg", text), kind, draw)).text


@pytest.mark.parametrize("caption", CAPTIONS)
def test_a_shuffle_has_the_same_words_in_another_order(rules: Rules, caption: str) -> None:
    for draw in range(8):
        text = made(rules, caption, "shuffle", draw)
        assert sorted(text.lower().strip(".").split()) == sorted(caption.lower().strip(".").split())
        assert text.lower() != caption.lower()


@pytest.mark.parametrize(
    ("caption", "negations"),
    [
        (
            "A shelf with books in a dark room.",
            {
                "A shelf not with books in a dark room.",
                "A shelf with books not in a dark room.",
                "Something with books in a dark room. There is no shelf.",
                "A shelf with something in a dark room. There is no books.",
                "A shelf with books in something. There is no dark room.",
            },
        ),
        (
            "a cat under a kitchen table",
            {
                "a cat not under a kitchen table",
                "something under a kitchen table. There is no cat",
                "a cat under something. There is no kitchen table",
            },
        ),
        ("Running away", set()),
    ],
)
def test_crepes_negations_state_that_there_is_no_such_thing(tmp_path: Path, caption: str, negations: set[str]) -> None:
    (tmp_path / "captions.jsonl").write_text(json.dumps({"filename": "1.jpg", "caption": caption}) + "\n")
    result = CliRunner().invoke(
        app,
        [str(tmp_path / "captions.jsonl"), "--method=rules", "--kinds=negate", "--per-kind=60",
         "--set=negation=crepe", f"--output={tmp_path / 'out'}"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert {pair.negative_caption for pair in read_pairs(tmp_path / "out" / "pairs.jsonl")} == negations


@pytest.mark.parametrize("caption", CAPTIONS)
def test_a_negation_adds_or_exchanges_one_word(rules: Rules, caption: str) -> None:
    texts = {made(rules, caption, "negate", draw) for draw in range(8)}
    assert all({"not", "no"} & set(text.lower().split()) for text in texts) and len(texts) > 1


@pytest.mark.parametrize(
    ("caption", "negations"),
    [
        ("A girl isn't wearing her helmet.", set()),
        ("Nobody has a hat", set()),
        ("The clock shows 9:30 a.m. on a wall", {"The clock shows 9:30 a.m. on no wall"}),
        ("Dogs can jump over a can", {"Dogs can not jump over a can", "Dogs can jump over no can"}),
        ("A few dogs have a ball", {"A few dogs have no ball"}),
    ],
)
def test_a_negation_leaves_contractions_times_and_amounts_whole(
    rules: Rules, caption: str, negations: set[str]
) -> None:
    made_of_it = {made(rules, caption, "negate", draw) for draw in range(12)}
    assert made_of_it == (negations or {""})


@pytest.mark.parametrize(
    "caption",
    [
        'A sign says "NO PARKING"; A red sofa & two chairs.',
        "Tom 's hat's larger, isn't it?",
        "Two brown dogs on a red sofa at 5 p.m., near a cat",
    ],
)
def test_a_shuffle_keeps_marks_contractions_and_the_capital_in_their_places(rules: Rules, caption: str) -> None:
    for draw in range(12):
        text = made(rules, caption, "shuffle", draw)
        assert re.sub(r"[\w'.]+", "", text) == re.sub(r"[\w'.]+", "", caption)
        assert all((word in text.lower()) == (word in caption.lower()) for word in ("isn't", "hat's", "p.m", "tom 's"))
        assert text[0].isupper() and "Two" not in text[1:]


def test_a_caption_without_verb_or_article_is_not_negated(rules: Rules) -> None:
    assert made(rules, "dogs under blankets", "negate") == ""


def test_replacements_are_of_the_type_that_was_asked_for(rules: Rules) -> None:
    words = CAPTIONS[0].split()
    changed = {
        kind: {word for word in words if word not in made(rules, CAPTIONS[0], kind, draw).split()}
        for kind in ("replace_obj", "replace_att", "replace_rel")
        for draw in range(4)
    }
    assert changed["replace_obj"] <= {"woman", "dress", "umbrella."}
    assert changed["replace_att"] <= {"A", "a", "an", "young", "red", "old"}
    assert changed["replace_rel"] <= {"in", "holds"}
    assert made(rules, "dogs", "replace_obj") == ""
    assert made(rules, CAPTIONS[1], "add_obj") == ""


def test_another_number_is_another_attribute_and_takes_no_articles_place(rules: Rules) -> None:
    caption = "Two nurses check a pump on a table"
    for draw in range(20):
        for kind in ("replace_obj", "replace_rel"):
            text = made(rules, caption, kind, draw)
            assert not text or (text.startswith("Two ") and re.search(r" an? .* an? ", text)), (kind, text)
        text = made(rules, caption, "replace_att", draw)
        assert not text or text.split(" ", 1)[1] == caption.split(" ", 1)[1]
    assert made(rules, "Two nurses check the pump on the table", "replace_att")


def test_words_of_a_phrase_of_place_and_measures_are_not_swapped(rules: Rules) -> None:
    caption = "a group of men in front of a bench near a tree"
    swapped = {made(rules, caption, "swap_obj", draw) for draw in range(20)}
    assert swapped - {""} == {"a group of men in front of a tree near a bench"}


def test_the_order_of_a_list_is_not_swapped(rules: Rules) -> None:
    for caption in ("a black and white cat", "some tea or coffee", "a small wooden table"):
        for kind in ("swap_obj", "swap_att"):
            assert not any(made(rules, caption, kind, draw) for draw in range(10)), caption
    assert made(rules, "a black cat and a white dog", "swap_att") == "a white cat and a black dog"


@pytest.mark.parametrize(
    "caption", ["Two kids laugh, ice cream on their faces.", "a girl and a boy laugh cream on their faces"]
)
def test_a_verb_that_is_tagged_as_a_noun_keeps_its_place_in_a_swap(rules: Rules, caption: str) -> None:
    place = compared_words(caption).index("laugh")
    texts = {made(rules, caption, kind, draw) for kind in ("swap_obj", "swap_att") for draw in range(20)} - {""}
    assert texts and {compared_words(text)[place] for text in texts} == {"laugh"}


def test_the_command_makes_the_same_negatives_again_without_a_model(tmp_path: Path) -> None:
    captions = write_scene_captions(tmp_path / "captions.jsonl", 20)
    for to in ("one", "other"):
        done = CliRunner().invoke(app, [str(captions), "--output", str(tmp_path / to), "--method", "rules"])
        assert done.exit_code == 0, done.output
    pairs = read_pairs(tmp_path / "one" / "pairs.jsonl")
    assert pairs == read_pairs(tmp_path / "other" / "pairs.jsonl")
    assert {pair.made_by for pair in pairs} == {"rules"}
    summary = json.loads((tmp_path / "one" / "summary.json").read_text())
    assert summary["candidates"] == 20 * len(RULE_KINDS) and summary["cost"] is None
    assert {"negate", "shuffle", "replace_att"} <= {pair.kind for pair in pairs}
