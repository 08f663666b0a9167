"""Sentence pairs from rules, conditions, reasons, and chains of comparisons."""

import random

from starters.predict.everyday.words import MEN, WOMEN, listed
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.balance import Words, draw_balanced, pairs_of
from starters.predict.sentence_pairs.handwritten.doings import doings
from starters.predict.sentence_pairs.handwritten.predicates import conjugated
from starters.predict.sentence_pairs.taxonomies import Relation

_GROUPS = listed(
    "players,nurses,guests,boys,girls,teachers,members of the club,dancers,singers,students,passengers,winners"
    ",children,drivers,workers,musicians,tourists,soldiers,runners,waiters",
    ",",
)
_QUALITIES = listed(
    "happy tall hungry tired rich famous angry busy brave careful polite proud sick strong sad lucky old"
)


def draw_reasoning(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw what follows from two statements together, or from one within another."""
    return draw_balanced(pairs_of("reasoning"), _words, label, generator)


def _words(generator: random.Random) -> Words:
    one, two, three = generator.sample(WOMEN + MEN, 3)
    base = generator.choice([doing for doing in doings() if "{" not in doing])
    names = {"one": one, "two": two, "three": three, "first": conjugated(base, "past")}
    return {**names, "group": generator.choice(_GROUPS), "quality": generator.choice(_QUALITIES)}
