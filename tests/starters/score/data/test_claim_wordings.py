"""Captions say what their claims claim, in many wordings, some of which no training uses."""

import re
from random import Random

import pytest

from starters.pictures.variety import Variety, draw_picture
from starters.score.data.claim_wordings import PAIRS, RELATED, Style, caption, claim_vocabulary, is_held_out
from starters.score.data.claims import COLORS, RELATIONS, Claim, Noun, alternatives, draw_claim

RED_CIRCLE, BLUE_SQUARE = Noun(color="red", shape="circle"), Noun(color="blue", shape="square")


def worded(claim: Claim, count: int = 400) -> set[str]:
    random = Random(2)
    return {caption(claim, Style.draw(random)) for _ in range(count)}


def test_two_things_are_listed_in_many_wordings() -> None:
    found = worded(Claim(RED_CIRCLE, BLUE_SQUARE))
    assert "a red circle and a blue square" in found
    assert any("the circle is red and the square is blue" in text for text in found)
    assert len(found) > 100
    for text in found:
        assert "red" in text
        assert "blue" in text


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_relation_is_named_or_both_sides_are(relation: str) -> None:
    sides = {"left": "left", "right": "left", "above": "top", "below": "top"}
    for text in worded(Claim(RED_CIRCLE, BLUE_SQUARE, relation=relation)):
        assert any(word in text for word in RELATED[relation]) or sides[relation] in text, text


def test_the_things_of_two_sides_stand_on_them() -> None:
    said = [
        text for text in worded(Claim(RED_CIRCLE, BLUE_SQUARE, relation="right"), 2000) if "on the left and" in text
    ]
    assert said
    for text in said:
        assert text.index("blue") < text.index("left") < text.index("red")


def test_absence_is_said() -> None:
    for text in worded(Claim(RED_CIRCLE, number=0)):
        assert re.search(r"\b(no|not|isn't|without|missing|nowhere)\b", text), text
    for text in worded(Claim(RED_CIRCLE, BLUE_SQUARE, second_number=0)):
        assert re.search(r"\b(no|not|without)\b", text), text


def test_numbers_are_words_or_numerals_with_plurals() -> None:
    found = worded(Claim(Noun(shape="cross"), number=3))
    assert any("three crosses" in text for text in found)
    assert any("3 crosses" in text for text in found)
    assert not any(re.search(r"\bcross\b", text) for text in found)


def test_claims_of_one_style_differ_only_in_their_facts() -> None:
    style = Style((0.01,) * 12)
    one, other = (caption(Claim(first, second), style) for first, second in [(RED_CIRCLE, BLUE_SQUARE)] * 2)
    assert one == other
    exchanged = caption(Claim(Noun(color="blue", shape="circle"), Noun(color="red", shape="square")), style)
    assert sorted(exchanged.split()) == sorted(one.split())
    assert exchanged != one


def test_some_frames_are_held_out_with_some_words() -> None:
    # in one order: a set has another in each process
    pairs = [(frame, word) for frame in dict.fromkeys(PAIRS) for word in COLORS]
    held_out = [pair for pair in pairs if is_held_out(*pair)]
    assert 0.04 < len(held_out) / len(pairs) < 0.2
    middles = {frame: frame.replace("{a}", "").replace("{b}", "").strip() for frame in PAIRS}
    # of frames that no other one contains
    frame, word = next(
        (frame, word)
        for frame, word in held_out
        if "{r}" not in frame and sum(middles[frame] in middle for middle in middles.values()) == 1
    )
    middle = middles[frame]
    claim = Claim(Noun(color=word, shape="circle"), Noun(color="green", shape="star"))
    if frame.startswith("{a}") and frame.endswith("{b}"):
        assert not any(f"circle {middle} a green star" in text for text in worded(claim))


def test_the_vocabulary_has_every_word_but_invented_ones() -> None:
    known = set(re.findall(r"[a-z]+", " ".join(claim_vocabulary()).lower()))
    random = Random(6)
    unknown = 0
    for _ in range(400):
        picture = draw_picture(Variety(), random)
        claim = draw_claim(picture, random)
        for one in (claim, *alternatives(claim, picture, 3, random)):
            text = caption(one, Style.draw(random))
            unknown += bool(set(re.findall(r"[a-z]+", text.lower())) - known)
    assert unknown < 0.08 * 1600
