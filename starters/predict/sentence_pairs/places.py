"""Sentence pairs about places, and about one thing compared with another."""

import random

from starters.predict.everyday.words import MEN, WOMEN
from starters.predict.sentence_pairs.frames import Frame, SentencePair, draw_by_frames, person, thing
from starters.predict.sentence_pairs.taxonomies import Relation, taxonomy

_LIVES = tuple(
    Frame(f"{{s}} {verb} {{x}}", f"{{S}} {verb} {{x}}", f"{{s}} {no} {{x}}", f"{{S}} {no} {{x}}")
    for verb, no in (
        ("lives", "does not live"),
        ("was born", "was not born"),
        ("is", "is not"),
        ("works", "does not work"),
    )
)
_TOWN = (
    *_LIVES,
    Frame("{s} is on holiday {x}", "{S} is on holiday {x}", None, "{S} is not on holiday {x}"),
    Frame("the company is {x}", "the company is {x}", "the company is not {x}", "the company is not {x}"),
    Frame("the meeting is {x}", "the meeting is {x}", None, "the meeting is not {x}"),
    Frame("{s} bought a house {x}", "{S} bought a house {x}", None, "{S} did not buy a house {x}"),
)
_SITES = (
    Frame("{s} is {x}", "{S} is {x}", "{s} is not {x}", "{S} is not {x}"),
    Frame("{s} is sleeping {x}", "{S} is {x}", None, "{S} is not {x}"),
    Frame("{s} is playing {x}", "{S} is playing {x}", None, "{S} is not {x}"),
    Frame("{s} was waiting {x}", "{S} was {x}", None, "{S} was not {x}"),
    Frame("the children are {x}", "the children are {x}", "the children are not {x}", "the children aren't {x}"),
    Frame("{s} is reading a book {x}", "{S} is reading {x}", None, "{S} is not {x}"),
    Frame("people are eating {x}", "people are eating {x}", None, "the people are not {x}"),
)
_SPOTS = (
    Frame("{s} is {x}", "{S} is {x}", "{s} is not {x}", "{S} is not {x}"),
    Frame("{s} is lying {x}", "{S} is {x}", None, "{S} is not {x}"),
    Frame("I put {s} {x}", "{S} is {x}", None, "{S} is not {x}"),
    Frame("there is a coin {x}", "the coin is {x}", None, "the coin is not {x}"),
    Frame("the cat is sleeping {x}", "the cat is {x}", None, "the cat is not {x}"),
)
# Converse relations: one of two things to the other.
CONVERSES = (
    *(
        ("above", "below"),
        ("on the left of", "on the right of"),
        ("in front of", "behind"),
        ("to the left of", "to the right of"),
    ),
    *(
        ("north of", "south of"),
        ("east of", "west of"),
        ("over", "under"),
        ("on top of", "underneath"),
        ("before", "after"),
    ),
    *(("bigger than", "smaller than"), ("taller than", "shorter than"), ("older than", "younger than")),
    *(("faster than", "slower than"), ("heavier than", "lighter than"), ("longer than", "shorter than")),
    *(("more expensive than", "cheaper than"), ("stronger than", "weaker than"), ("richer than", "poorer than")),
    *(
        ("higher than", "lower than"),
        ("louder than", "quieter than"),
        ("warmer than", "colder than"),
        ("larger than", "smaller than"),
    ),
)
_SYMMETRIC = (
    "next to",
    "near",
    "beside",
    "far from",
    "as big as",
    "as old as",
    "as tall as",
    "the same size as",
    "opposite",
)


def draw_place(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw where something is, or where it is beside something else."""
    way = generator.random()
    if way < 0.3:
        return draw_by_frames(taxonomy("places"), _SITES, person(generator), label, generator)
    if way < 0.6:
        return _mixed(label, draw_by_frames(taxonomy("cities"), _TOWN, person(generator), label, generator), generator)
    if way < 0.78:
        subject = thing("any", generator)
        return draw_by_frames(taxonomy("positions"), _SPOTS, subject, label, generator)
    return draw_converse(label, generator)


def _mixed(label: Relation, drawn: SentencePair | None, generator: random.Random) -> SentencePair | None:
    """Replace the verb of an open pair: who lives somewhere need not work there."""
    if drawn is None or label != "neutral" or " lives " not in drawn.hypothesis or generator.random() < 0.5:
        return drawn
    return SentencePair(
        drawn.premise, drawn.hypothesis.replace(" lives ", " works "), label, "where one works was not told"
    )


def draw_converse(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw two things and a relation, its converse or another one."""
    is_people = generator.random() < 0.4
    one, two = (
        generator.sample(WOMEN + MEN, 2) if is_people else (thing("any", generator)[0], thing("any", generator)[0])
    )
    if one == two:
        return None
    some = [
        pair
        for pair in CONVERSES
        if not is_people or pair[0].split()[0] not in ("warmer", "longer", "on", "over", "more")
    ]
    first, second = generator.choice(some)
    if generator.random() < 0.5:
        first, second = second, first
    if generator.random() < 0.12:
        same = generator.choice(_SYMMETRIC)
        if label == "contradiction":
            return SentencePair(f"{one} is {same} {two}", f"{two} is not {same} {one}", label, "it holds both ways")
        if label == "entailment":
            return SentencePair(f"{one} is {same} {two}", f"{two} is {same} {one}", label, "it holds both ways")
    no = generator.random() < 0.2
    told, reason = f"{one} is {first} {two}", f"{one} is {first} {two}, so {two} is {second} {one}"
    if label == "neutral":
        third = generator.choice([pair for pair in some if first not in pair and second not in pair])
        said = generator.choice((f"{one} is {third[0]} {two}", f"{two} is {third[1]} {one}", f"{one} is red"))
        return SentencePair(
            told, said.replace(" is red", " is new" if not is_people else " is happy"), label, "that is not compared"
        )
    true, false = (
        (f"{two} is {second} {one}", f"{one} is {first} {two}"),
        (f"{two} is {first} {one}", f"{one} is {second} {two}"),
    )
    if label == "entailment":
        said = generator.choice(false).replace(" is ", " is not ", 1) if no else true[0]
    else:
        said = generator.choice(true).replace(" is ", " is not ", 1) if no else generator.choice(false)
    return SentencePair(told, said, label, reason)
