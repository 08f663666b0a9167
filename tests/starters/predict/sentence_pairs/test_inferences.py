"""Everyday inferences: three labels of every kind of pair, in whole sentences."""

import random
import re
from collections import Counter

import pytest

from starters.predict.inferences import INFERENCES
from starters.predict.sentence_pairs.frames import judged
from starters.predict.sentence_pairs.inferences import DRAWS, draw_everyday_inference, draw_word_inference
from starters.predict.sentence_pairs.taxonomies import quality_groups, taxonomy


def test_labels_are_equally_likely_and_sentences_whole() -> None:
    generator = random.Random("claims")
    rows = [draw_everyday_inference(generator) for _ in range(1500)]
    counts = Counter(row.label for row in rows)
    assert set(counts) == set(INFERENCES.labels or ())
    assert min(counts.values()) > 400
    for row in rows:
        premise, hypothesis = row.input.split("</s>")
        assert premise and hypothesis
        assert not re.search(r"[\[\]{}|]|  ", row.input), row


def test_the_first_lesson_is_about_one_word_in_each_sentence() -> None:
    generator = random.Random("words")
    rows = [draw_word_inference(generator) for _ in range(300)]
    assert all(re.fullmatch(r"(it is .+</s>it is .+)", row.input, re.IGNORECASE) for row in rows)
    assert min(Counter(row.label for row in rows).values()) > 60
    assert draw_word_inference(random.Random(0), is_held_out=True) != draw_word_inference(random.Random(0))


@pytest.mark.parametrize("draw", [draw for draw, _ in DRAWS if draw.__name__ != "draw_open"])
def test_every_kind_of_claim_has_each_label(draw) -> None:  # type: ignore[no-untyped-def]
    generator = random.Random(draw.__name__)
    for label in ("entailment", "neutral", "contradiction"):
        drawn = [draw(label, generator) for _ in range(60)]
        found = [one for one in drawn if one is not None]
        assert len(found) > 5
        assert {one.label for one in found} == {label}


@pytest.mark.parametrize(
    ("name", "told", "said", "label"),
    [
        ("kinds", "poodle", "animal", "entailment"),
        ("kinds", "animal", "poodle", "neutral"),
        ("kinds", "dog", "cat", "contradiction"),
        ("kinds", "bike", "bicycle", "entailment"),
        ("activities", "sleeping", "running", "contradiction"),
        ("activities", "jogging", "moving about", "entailment"),
        ("cities", "in Paris", "in Europe", "entailment"),
        ("cities", "in Paris", "in Germany", "contradiction"),
        ("days", "on Monday", "on a weekday", "entailment"),
        ("months", "in July", "in winter", "contradiction"),
    ],
)
def test_words_include_exclude_or_leave_open(name: str, told: str, said: str, label: str) -> None:
    assert taxonomy(name).relation(told, said) == label


def test_colors_exclude_each_other_and_a_denial_turns_them_round() -> None:
    colors = quality_groups("any")[0]
    says = {"is_exclusive": True}
    assert judged(colors, "red", "blue", is_told=True, is_said=True, **says) == "contradiction"
    assert judged(colors, "red", "blue", is_told=True, is_said=False, **says) == "entailment"
    assert judged(colors, "red", "red", is_told=True, is_said=False, **says) == "contradiction"
    assert judged(colors, "red", "blue", is_told=False, is_said=True, **says) == "neutral"
    assert judged(colors, "dark red", "red", is_told=True, is_said=True, **says) == "entailment"


def test_held_out_pairs_of_words_are_not_drawn_for_training() -> None:
    generator = random.Random(3)
    held = {draw_everyday_inference(generator, is_held_out=True).input for _ in range(200)}
    taught = {draw_everyday_inference(generator).input for _ in range(2000)}
    assert not held & taught
