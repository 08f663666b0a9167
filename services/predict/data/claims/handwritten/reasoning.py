"""Claims from rules, conditions, reasons, and chains of comparisons."""

import random

from services.predict.data.claims.claim import Claim
from services.predict.data.claims.handwritten.balance import Words, draw_balanced, pairs_of
from services.predict.data.claims.handwritten.doings import doings
from services.predict.data.claims.handwritten.predicates import conjugated
from services.predict.data.claims.taxonomies import Relation
from services.predict.data.everyday.words import MEN, WOMEN, listed

_GROUPS = listed(
    "players,nurses,guests,boys,girls,teachers,members of the club,dancers,singers,students,passengers,winners"
    ",children,drivers,workers,musicians,tourists,soldiers,runners,waiters",
    ",",
)
_QUALITIES = listed(
    "happy tall hungry tired rich famous angry busy brave careful polite proud sick strong sad lucky old"
)


def draw_reasoning(label: Relation, generator: random.Random) -> Claim | None:
    """Draw what follows from two statements together, or from one within another."""
    return draw_balanced(pairs_of("reasoning"), _words, label, generator)


def _words(generator: random.Random) -> Words:
    one, two, three = generator.sample(WOMEN + MEN, 3)
    base = generator.choice([doing for doing in doings() if "{" not in doing])
    names = {"one": one, "two": two, "three": three, "first": conjugated(base, "past")}
    return {**names, "group": generator.choice(_GROUPS), "quality": generator.choice(_QUALITIES)}
