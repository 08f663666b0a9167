"""No hypothesis of the sentences written by hand gives its label away."""

import random

import numpy as np
import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from starters.predict.sentence_pairs.handwritten.balance import Pairs, Words, draw_balanced, pairs_of
from starters.predict.sentence_pairs.inferences import DRAWS, draw_everyday_inference
from starters.predict.sentence_pairs.taxonomies import Relation

LABELS: tuple[Relation, ...] = ("entailment", "neutral", "contradiction")


def test_words_of_hypotheses_alone_hardly_tell_the_label() -> None:
    generator = random.Random("balance")
    rows = [draw_everyday_inference(generator) for _ in range(5000)]
    hypotheses, labels = [row.input.split("</s>")[1] for row in rows], [row.label for row in rows]
    words = CountVectorizer(ngram_range=(1, 2), min_df=2, token_pattern=r"[\w']+")
    counts = words.fit_transform(hypotheses[:3500])
    model = LogisticRegression(max_iter=200, C=0.3).fit(counts, labels[:3500])
    assert model.score(words.transform(hypotheses[3500:]), labels[3500:]) < 0.52


def test_lengths_do_not_tell_the_label() -> None:
    generator = random.Random("lengths")
    rows = [draw_everyday_inference(generator) for _ in range(3000)]
    means = [np.mean([len(row.input.split()) for row in rows if row.label == label]) for label in LABELS]
    assert max(means) - min(means) < 2


PAIRS: Pairs = {
    "entailment": (("{name} left", "{name} went away"),),
    "contradiction": (("{name} left", "{name} stayed"),),
    "neutral": (("{name} left", "{name} was late"),),
}


def draw_name(generator: random.Random) -> Words:
    return {"name": generator.choice(("Ada", "Ben", "Cora"))}


@pytest.mark.parametrize("label", LABELS)
def test_a_hypothesis_gets_premises_of_each_label(label: Relation) -> None:
    generator = random.Random(1)
    drawn = [draw_balanced(PAIRS, draw_name, label, generator) for _ in range(300)]
    kept = [one for one in drawn if one is not None]
    assert {one.hypothesis.split(" ", 1)[1] for one in kept} == {"went away", "stayed", "was late"}
    for one in kept:
        if label == "neutral" and not one.hypothesis.endswith("late"):
            assert one.premise.split(" ")[0] != one.hypothesis.split(" ")[0]


def test_every_topic_has_pairs_of_each_label() -> None:
    for topic in (
        "calendar",
        "hours",
        "order",
        "lasting",
        "tense",
        "whole",
        "way",
        "item",
        "objects",
        "somebody",
        "reasoning",
    ):
        assert all(len(pairs_of(topic)[label]) > 3 for label in LABELS)


def test_sentences_written_by_hand_are_about_half_of_the_kinds() -> None:
    weights = {draw.__name__: weight for draw, weight in DRAWS}
    by_hand = "grouped story caption doing opposite tie nesting moment part number_of_doers reasoning"
    share = sum(weights[f"draw_{name}"] for name in by_hand.split()) / sum(weights.values())
    assert 0.4 < share < 0.65
