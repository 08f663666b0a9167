"""Generated inferences: labels and reasons checked in every scene that a premise allows."""

import random
import re
from collections import Counter
from collections.abc import Mapping
from itertools import product

import pytest

from services.predict.data.rows import Row
from services.predict.tasks import EOS
from starters.predict.drawing import draw_distinct
from starters.predict.inferences import ASPECTS, INFERENCES, conclude, draw_inference

ENDS = {
    "entailment": {"So it is true", "So it follows"},
    "neutral": {"So it may be true or not", "So it is left open"},
    "contradiction": {"So it is false", "So it cannot be true"},
}
WORDS = {name: (*aspect.wider, *aspect.exact) for name, aspect in ASPECTS.items()}


def draw_inferences(num_rows: int, seed: int) -> list[Row]:
    return draw_distinct(draw_inference, num_rows, random.Random(f"inferences {seed}"), set())


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return draw_inferences(1200, seed=5)


def words_of(text: str, aspect: str) -> str | None:
    """The longest words of an aspect that a text holds."""
    found = [words for words in WORDS[aspect] if re.search(rf"\b{words}\b", text, re.IGNORECASE)]
    return max(found, key=len, default=None)


def claims_of(hypothesis: str) -> Mapping[str, str]:
    """Return the words of a hypothesis about each aspect; "the boy" only refers to the person again."""
    said = {aspect: words_of(hypothesis, aspect) for aspect in ASPECTS}
    return {aspect: words for aspect, words in said.items() if words is not None}


def verdict(premise: str, hypothesis: str) -> str:
    """In every scene that the premise allows, in some of them, or in none."""
    told = {aspect: words_of(premise, aspect) for aspect in ASPECTS}
    said = claims_of(hypothesis)
    allowed = [
        aspect.exact if (words := told[name]) is None else sorted(aspect.things(words))
        for name, aspect in ASPECTS.items()
    ]
    holds = {
        all(scene[name] in ASPECTS[name].things(words) for name, words in said.items())
        for scene in (dict(zip(ASPECTS, things, strict=True)) for things in product(*allowed))
    }
    return "neutral" if len(holds) == 2 else "entailment" if True in holds else "contradiction"


def test_an_inference_is_a_premise_a_hypothesis_a_label_and_its_reasons() -> None:
    row = draw_inferences(2, seed=0)[1]
    assert row.output is not None
    assert row.input == (
        "A boy in a red shirt is reading in the garden.</s>The boy is among trees and the boy wears a white shirt."
    )
    assert row.label == row.output.label == "contradiction"
    assert row.output.rationale == (
        "In the garden is among trees. A red shirt is not a white shirt. So it cannot be true."
    )
    assert row.output.text == f"{row.output.rationale} So the answer is contradiction."


@pytest.mark.slow
def test_a_label_tells_in_which_of_all_scenes_of_the_premise_the_hypothesis_holds(rows: list[Row]) -> None:
    for row in rows:
        assert verdict(*row.input.split(EOS)) == row.label, row


def test_the_reasons_are_a_true_step_for_each_claim_and_the_label(rows: list[Row]) -> None:
    steps = {"entailment": "is", "contradiction": "is not", "neutral": "may be"}
    for row in rows:
        assert row.output is not None
        premise, hypothesis = row.input.split(EOS)
        *reasons, end = row.output.rationale.removesuffix(".").split(". ")
        assert end in ENDS[row.label], row
        relations = []
        for (name, words), reason in zip(claims_of(hypothesis).items(), reasons, strict=True):
            told = words_of(premise, name)
            relation = "neutral" if told is None else ASPECTS[name].relation(told, words)
            relations.append(relation)
            if told is None:
                assert reason.endswith("was not told"), row
            elif told == words:
                assert reason.lower() == f"{words} is what was told", row
            else:
                open_end = " or not" if relation == "neutral" else ""
                assert reason.lower() == f"{told} {steps[relation]} {words}{open_end}", row
        assert conclude(relations) == row.label


def test_labels_are_as_likely(rows: list[Row]) -> None:
    counts = Counter(row.label for row in rows)
    assert set(counts) == set(INFERENCES.labels or ())
    assert all(340 < count < 460 for count in counts.values())


def test_neither_what_is_said_nor_how_much_tells_a_label(rows: list[Row]) -> None:
    by_claim: dict[tuple[str, bool], Counter[str]] = {}
    for row in rows:
        for name, words in claims_of(row.input.split(EOS)[1]).items():
            by_claim.setdefault((name, words in ASPECTS[name].wider), Counter())[row.label] += 1
    for claim, counts in by_claim.items():
        assert max(counts.values()) < 0.75 * counts.total(), claim


def test_wider_words_hold_some_of_the_exact_ones_and_no_words_belong_to_two_aspects() -> None:
    every = [words for name in ASPECTS for words in WORDS[name]]
    assert len(set(every)) == len(every)
    for aspect in ASPECTS.values():
        assert all(1 < len(things) < len(aspect.exact) for things in aspect.wider.values())
        assert not set(aspect.wider) & set(aspect.exact)


def test_inputs_differ_and_a_draw_is_the_same_for_its_seed(rows: list[Row]) -> None:
    assert len({row.input for row in rows}) == len(rows)
    assert draw_inferences(50, seed=5) == rows[:50]
    assert draw_inferences(50, seed=6) != rows[:50]
