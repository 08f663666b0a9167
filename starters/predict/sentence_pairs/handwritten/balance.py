"""Pairs of sentences written by hand, drawn so that a hypothesis does not give its label away."""

import random
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from starters.predict.everyday.naming import choose
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.taxonomies import Relation

# Premises and hypotheses for each label, as templates; and the words of one pair by their names in a template.
Pairs = Mapping[Relation, tuple[tuple[str, str], ...]]
Words = Mapping[str, str]
EXCHANGE_RATE = 0.55
_SIGNS: Mapping[str, Relation] = {"+": "entailment", "-": "contradiction", "?": "neutral"}
_LABELS: tuple[Relation, ...] = ("entailment", "neutral", "contradiction")
_TRUE = (
    "it is true that {}",
    "we know that {}",
    "it is a fact that {}",
    "{}, as everybody knows",
    "it is certain that {}",
)
_FALSE = ("it is not true that {}", "it is false that {}", "it is wrong that {}", "we know it isn't true that {}")


@cache
def pairs_of(topic: str) -> Pairs:
    """Return the pairs of a topic of `texts/pairs.txt`. Raises KeyError for another topic."""
    return _topics()[topic]


@cache
def _topics() -> Mapping[str, Pairs]:
    folder = Path(__file__).with_name("texts")
    found: dict[str, dict[Relation, list[tuple[str, str]]]] = {}
    label: Relation = "neutral"
    for line in folder.joinpath("pairs.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("@ "):
            found[line[2:]] = {one: [] for one in _LABELS}
        elif line in _SIGNS:
            label = _SIGNS[line]
        elif not line.startswith("#"):
            premise, hypothesis = line.split(" => ")
            found[next(reversed(found))][label].append((premise, hypothesis))
    return {topic: {one: tuple(some) for one, some in pairs.items()} for topic, pairs in found.items()}


def draw_balanced(
    pairs: Pairs, draw_words: Callable[[random.Random], Words], label: Relation, generator: random.Random
) -> SentencePair | None:
    """Draw a pair with a label, or a hypothesis of another one with a premise that makes its label this one."""
    words, kind = draw_words(generator), label
    if generator.random() < EXCHANGE_RATE:
        kind = generator.choice([one for one in _LABELS if one != label])
    premise, hypothesis = (_filled(text, words, generator) for text in generator.choice(pairs[kind]))
    if kind == label:
        return SentencePair(premise, hypothesis, label, "", hypothesis) if premise != hypothesis else None
    if label == "neutral":
        other = generator.choice(pairs[generator.choice(_LABELS)])[0]
        premise = _filled(other, draw_words(generator), generator)
        return (
            None
            if _content(premise) & _content(hypothesis)
            else SentencePair(premise, hypothesis, label, "", hypothesis)
        )
    told = _telling(premise, hypothesis, kind, label, generator)
    return SentencePair(told, hypothesis, label, "", hypothesis)


def _filled(template: str, words: Words, generator: random.Random) -> str:
    return choose(template.format(**words), generator)


def _telling(premise: str, hypothesis: str, kind: Relation, label: Relation, generator: random.Random) -> str:
    """Write a premise that tells the hypothesis of a pair of another kind, or denies it."""
    if kind == "neutral":
        return (
            f"{premise}, and {hypothesis}"
            if label == "entailment"
            else f"{premise}, but {_FALSE[0].format(hypothesis)}"
        )
    return generator.choice(_TRUE if label == "entailment" else _FALSE).format(hypothesis)


def _content(sentence: str) -> set[str]:
    """Return the words that a sentence is about."""
    return {word for word in re.findall(r"[\w']+", sentence) if word[0].isupper() or word.isdigit() or len(word) > 4}
