"""Sentence pairs about two people, things or places: converses, what is true both ways, and what need not be."""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starters.predict.everyday.words import listed
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.logic import Link, Subject, draw_logical, draw_named, draw_person
from starters.predict.sentence_pairs.taxonomies import Relation

_THINGS = listed(
    "the red box,the blue box,the lamp,the sofa,the piano,the mirror,the clock,the bookshelf,the painting"
    ",the bed,the desk,the small table,the fridge,the window,the plant,the vase,the bicycle,the car"
    ",the suitcase,the chair,the ball,the bag,my coat,her guitar,the oven,the carpet,the newspaper,the basket"
    ",his laptop,the radio,the statue,the green bottle",
    ",",
)
_PLACES = listed(
    "the school,the church,the station,the village,the lake,the forest,the river,Oslo,Rome,Lisbon,Vienna"
    ",the harbor,the castle,the town hall,the airport,the library,the farm,the market,Cairo,Boston,the island"
    ",the hotel,the hill,the bakery,the zoo,the stadium,the hospital,Zurich,Prague,the museum,the factory"
    ",the beach",
    ",",
)


@dataclass(frozen=True)
class Tie:
    """A predicate of a first to a second, the predicate of the second to the first, and what that is exchanged."""

    there: str
    back: str
    exchanged: Link


@cache
def ties() -> dict[str, tuple[Tie, ...]]:
    """Return the ties of `texts/between.txt` between people, things and places."""
    found: dict[str, list[Tie]] = {}
    text = (Path(__file__).with_name("texts") / "between.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if "{o}" not in line:
            found[line] = []
        elif line.endswith("="):
            found[next(reversed(found))].append(Tie(line[:-2], line[:-2], "equal"))
        elif line.endswith("?"):
            found[next(reversed(found))].append(Tie(line[:-2], "", "open"))
        else:
            sign = "<>" if "<>" in line else "~>"
            there, back = line.split(f" {sign} ")
            found[next(reversed(found))].append(Tie(there, back, "excludes" if sign == "<>" else "open"))
    return {name: tuple(some) for name, some in found.items()}


def _pair(kind: str, generator: random.Random) -> tuple[Subject, Subject]:
    if kind != "people":
        one, two = generator.sample(_THINGS if kind == "things" else _PLACES, 2)
        return Subject(one, one), Subject(two, two)
    while True:
        some = [
            draw_named(generator) if generator.random() < 0.75 else draw_person(generator, is_marked=False)
            for _ in range(2)
        ]
        names = [Subject(one.told, one.told, one.he) for one in some]
        if names[0].told != names[1].told and not any(one.is_plural or one.told.startswith("a") for one in names):
            return names[0], names[1]


def draw_tie(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw how one stands to another, and the converse, the same the other way round or something else."""
    kind = generator.choice(("people", "people", "people", "things", "places"))
    tie = generator.choice(ties()[kind])
    one, two = _pair(kind, generator)

    def written(
        text: str, subject: Subject, of: Subject, link: Link, said: tuple[str, Subject, Subject]
    ) -> SentencePair | None:
        second = said[0].replace("{o}", said[2].told)
        drawn = draw_logical(text.replace("{o}", of.told), second, link, subject, label, generator, other=said[1])
        return drawn and SentencePair(drawn.premise, drawn.hypothesis, label, "", f"{text} {said[0]}")

    way = generator.random()
    if label == "neutral" and way < 0.45:
        other = generator.choice([one for one in ties()[kind] if one != tie])
        if {tie.there.split(" ")[0], other.there.split(" ")[0]} == {"is"} and kind != "people" and way < 0.2:
            return None
        if _is_near(tie, other):
            return None
        said = (other.there, one, two) if generator.random() < 0.5 else (other.back or other.there, two, one)
        return written(tie.there, one, two, "open", said)
    if not tie.back:
        if way < 0.7:
            return written(tie.there, one, two, "open", (tie.there, two, one))
        return written(tie.there, one, two, "equal", (tie.there, one, two))
    if way < 0.6:
        return written(tie.there, one, two, "equal", (tie.back, two, one))
    if tie.exchanged == "equal":
        return written(tie.there, one, two, "equal", (tie.there, one, two))
    first, second = (tie.there, tie.back) if generator.random() < 0.5 else (tie.back, tie.there)
    said = (first, two, one) if way < 0.8 else (second, one, two)
    return written(first, one, two, tie.exchanged, said)


_NEAR = (
    ["old", "young", "born", "age", "twin", "sibling"],
    ["earn", "rich", "poor", "paid"],
    ["fast", "slow", "ahead", "behind"],
    listed(
        "in front,next to,beside,left of,behind,opposite,above,below,under,over,on top,inside,contains,covers"
        ",near,far,touches",
        ",",
    ),
    ["lives", "near", "neighbor", "room"],
    listed("married engaged divorced love kiss parent child sibling cousin uncle related grand"),
    ["boss", "works", "employ", "colleague", "teacher", "class"],
    ["big", "small", "large", "heavy", "light", "weigh", "size", "inhabitants"],
    ["expensive", "cheap", "cost"],
    ["pretti", "beauti", "ugl"],
    ["talking", "dancing", "playing", "sitting", "standing", "chasing", "carrying", "pushing", "feeding"],
    ["different", "same", "as "],
    listed("guest host invited visited met saw seen called helped rescued wrote lent sold gave sent hit divorced"),
    ["like", "love", "hate", "trust", "admire", "afraid", "angry", "proud"],
    ["earlier", "before", "arrived", "finished", "later"],
    ["tall", "short", "high", "low"],
    ["borders", "near", "far", "next", "north", "south", "east", "west"],
)


def _is_near(one: Tie, other: Tie) -> bool:
    """Whether two ties are about the same, so that one may decide the other."""
    return any(
        any(word in one.there + one.back for word in words) and any(word in other.there + other.back for word in words)
        for words in _NEAR
    )
