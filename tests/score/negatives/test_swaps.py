"""Swapped phrases and shuffled pairs equal those of the released code."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from services.score.negatives.annotation import Annotation, Span, TextBlobAnnotator
from services.score.negatives.swaps import bigram_shuffle, negclip

GOLDEN = json.loads((Path(__file__).parents[2] / "goldens" / "fsc_text_negatives.json").read_text())
DOCS: list[dict[str, Any]] = GOLDEN["docs"]


def spans_of(doc: dict[str, Any], phrases: list[str]) -> tuple[Span, ...]:
    """Return the spans of phrases that each occur once."""
    words = doc["words"]
    lengths = [len(phrase.split()) for phrase in phrases]
    return tuple(
        next((at, at + n) for at in range(len(words)) if " ".join(words[at : at + n]) == phrase)
        for phrase, n in zip(phrases, lengths, strict=True)
    )


def annotated(doc: dict[str, Any]) -> Annotation:
    longest = [phrase for phrase in doc["verb_phrases"] if not any(phrase in p != phrase for p in doc["verb_phrases"])]
    return Annotation(
        words=tuple(doc["words"]),
        spaces=tuple(" " * one for one in doc["spaces"]),
        tags=tuple(doc["tags"]),
        kinds=tuple(doc["pos"]),
        noun_chunks=spans_of(doc, doc["noun_phrases_gt2"]),
        verb_phrases=spans_of(doc, longest),
    )


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc["text"])
def test_swapped_phrases_equal_the_released_codes(doc: dict[str, Any]) -> None:
    annotation = annotated(doc)
    for golden in doc["negclip"]:
        swapped = negclip(annotation, Random(golden["seed"]))
        assert ([annotation.replaced(swapped)] if swapped else []) == golden["out"]


@pytest.mark.parametrize("doc", DOCS, ids=lambda doc: doc["text"])
def test_shuffled_pairs_equal_the_released_codes(doc: dict[str, Any]) -> None:
    for golden in doc["bigram_shuffle"]:
        shuffled = bigram_shuffle(annotated(doc), Random(golden["seed"]))
        assert [text for text in [shuffled] if text is not None] == golden["out"]


def shuffles(caption: str) -> set[str]:
    """Return all shuffles of a caption by 60 seeds."""
    read = TextBlobAnnotator().annotate(caption)
    return {text for seed in range(60) if (text := bigram_shuffle(read, Random(seed))) is not None}


def test_a_full_stop_that_stands_alone_is_put_behind_any_pair() -> None:
    assert shuffles("A dog sees red.") == {". sees red A dog", "sees red. A dog", "sees red A dog.", "A dog. sees red"}


def test_what_clings_to_the_word_before_still_does_within_a_pair() -> None:
    assert {"tail dog's the big", "dog's tail the big"} <= shuffles("the big dog's tail")


@pytest.mark.parametrize("caption", ["", "dog", "a dog", "a dog.", "dog dog Dog dog", "... !", "! ? ."])
def test_nothing_is_shuffled_that_would_stay_the_same(caption: str) -> None:
    assert not shuffles(caption)


def test_pairs_are_shuffled_until_their_order_differs() -> None:
    read = TextBlobAnnotator().annotate("red dogs chase cats")
    assert {bigram_shuffle(read, Random(seed)) for seed in range(60)} == {"chase cats red dogs"}


def test_things_of_two_words_are_swapped_by_their_nouns() -> None:
    read = TextBlobAnnotator().annotate("a dog near the cat")
    swapped = [negclip(read, Random(seed)) for seed in range(20)]
    assert {read.replaced(one) for one in swapped if one} == {"a cat near the dog"}
