"""Conditions are worded in many ways, those held out by rule are never used in tuning, and no suite was copied."""

import re
from random import Random

import pytest

from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS
from starters.embed import wordings
from starters.embed.condition_words import ENGLISH, FOREIGN, FOREIGN_SENTENCES, OWN_QUESTIONS
from starters.embed.questions import CONDITIONS, draw_wording
from starters.visitor.wordings import COLOR_WORDINGS, SHAPE_WORDINGS


def plain(text: str) -> str:
    """A text without capitals and marks, as the tokenizer nearly reads it."""
    return " ".join(re.findall(r"\w+", text.lower()))


@pytest.mark.parametrize("family", list(ENGLISH))
def test_an_attribute_is_asked_for_in_thousands_of_wordings(family: str) -> None:
    random = Random(0)
    assert len({draw_wording(family, random) for _ in range(6000)}) > 3000


def test_every_family_has_words_and_sentences_of_other_languages() -> None:
    assert set(ENGLISH) == set(FOREIGN) == set(FOREIGN_SENTENCES) == set(OWN_QUESTIONS)


def test_held_out_patterns_are_not_used_in_tuning() -> None:
    random = Random(0)
    patterns = (*wordings.KEYWORDS, *wordings.IMPERATIVES, *wordings.QUESTIONS)
    held_out = [pattern for pattern in patterns if wordings.is_held_out(pattern)]
    assert 8 < len(held_out) < len(patterns) / 4
    starts = tuple(pattern.split("{")[0] for pattern in held_out if len(pattern.split("{")[0]) > 12)
    drawn = [draw_wording("color", random) for _ in range(5000)]
    assert [text for text in drawn if text.startswith(starts)] == []
    drawn = [draw_wording("color", random, held_out=True) for _ in range(5000)]
    assert [text for text in drawn if text.startswith(starts)] != []


def test_the_instructions_of_the_evaluation_are_not_among_the_wordings() -> None:
    random = Random(0)
    drawn = {plain(draw_wording(condition, random)) for condition in CONDITIONS for _ in range(5000)}
    assert drawn.isdisjoint(map(plain, TEST_INSTRUCTIONS.values()))
    # both lists have usual words, such as "colour"; no sentence is in both
    sentences = {plain(text) for text in (*COLOR_WORDINGS, *SHAPE_WORDINGS) if len(text.split()) > 2}
    assert drawn.isdisjoint(sentences)


def test_unrelated_conditions_name_no_attribute_and_held_out_nouns_stay_so() -> None:
    known = {word for family in ENGLISH.values() for pair in family for word in pair}
    tuned, held_out = (set(wordings.unrelated_nouns(held_out=side)) for side in (False, True))
    assert not (tuned | held_out) & known
    assert not tuned & held_out
    assert len(tuned) > 5 * len(held_out) > 500
    random = Random(0)
    assert len({wordings.draw_unrelated(random) for _ in range(2000)}) > 1500


def test_the_instructions_asked_are_worded_as_no_training_wording_is() -> None:
    random = Random(0)
    trained = {draw_wording(condition, random) for condition in CONDITIONS for _ in range(500)}
    assert not any(text.startswith("What is the") and "the image" in text for text in trained)
    assert all(text.startswith("What is the") and "the image" in text for text in TEST_INSTRUCTIONS.values())
