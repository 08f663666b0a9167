"""Corruptions are sentences spoilt by rule, which people would not have written."""

import re
from random import Random

import pytest

from services.score.negatives.annotation import TextBlobAnnotator
from starters.curate.corruptions import Bias, Corruptions, Words

SENTENCES = (
    "A man is riding a horse on the beach.",
    "Two dogs are playing with an orange ball",
    "The woman holds a red umbrella in the rain.",
    "A child eats an apple.",
    "Three people sit on a wooden bench and talk.",
)
ANNOTATIONS = [TextBlobAnnotator().annotate(sentence) for sentence in SENTENCES]
CORRUPTIONS = Corruptions(Words(ANNOTATIONS))


def corrupted(bias: Bias, seed: int = 0) -> list[str]:
    generator = Random(seed)
    made = [CORRUPTIONS.make(annotation, bias, generator) for annotation in ANNOTATIONS * 40]
    return [text for text in made if text is not None]


@pytest.mark.parametrize("bias", ["plausibility", "grammar"])
def test_every_corruption_differs_from_its_sentence_and_follows_from_the_seed(bias: Bias) -> None:
    texts = corrupted(bias)
    assert len(texts) == 200 and not set(texts) & set(SENTENCES)
    assert len(set(texts)) > 60
    assert texts == corrupted(bias) != corrupted(bias, seed=1)


def test_nonsense_has_the_words_of_the_sentences_and_their_grammar() -> None:
    known = {word for annotation in ANNOTATIONS for word in annotation.lowered}
    for text in corrupted("plausibility"):
        annotation = TextBlobAnnotator().annotate(text)
        assert set(annotation.lowered) <= known | {"a", "an"}
        # an article agrees with the word behind it
        for word, following in zip(annotation.lowered, annotation.lowered[1:], strict=False):
            assert word != "a" or following[0] not in "aio", text
            assert word != "an" or following[0] in "aeiou", text


def test_faults_of_grammar_are_of_many_kinds() -> None:
    texts = corrupted("grammar") + corrupted("grammar", seed=1)
    for fault in (r"man are", r"Two dogs is", r"\b(\w+) \1\b", r"is rids?\b", r"horse on beach"):
        assert any(re.search(fault, text) for text in texts), fault
    # marks stay at the end
    assert all(text.endswith(".") for text in texts if "." in text)


def test_a_sentence_that_allows_no_change_has_none() -> None:
    nothing = TextBlobAnnotator().annotate("... !")
    assert CORRUPTIONS.make(nothing, "plausibility", Random(0)) is None
