"""Sentence pairs about numbers: exact ones, bounds and amounts without a number."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starters.predict.everyday.naming import choose, number_words
from starters.predict.everyday.words import PEOPLES, THINGS
from starters.predict.sentence_pairs.frames import SentencePair, person
from starters.predict.sentence_pairs.taxonomies import Relation

_MANY = 10**9
# Bounds of a number, as templates over it: the least and the greatest number that fits.
_BOUNDS: Mapping[str, Callable[[int], tuple[int, int]]] = {
    "{n}": lambda n: (n, n),
    "exactly {n}": lambda n: (n, n),
    "at least {n}": lambda n: (n, _MANY),
    "more than {n}": lambda n: (n + 1, _MANY),
    "over {n}": lambda n: (n + 1, _MANY),
    "at most {n}": lambda n: (0, n),
    "no more than {n}": lambda n: (0, n),
    "fewer than {n}": lambda n: (0, n - 1),
    "less than {n}": lambda n: (0, n - 1),
    "only {n}": lambda n: (n, n),
    "not {n}": lambda n: (-1, n),
}
_PLAIN = ("{n}", "{n}", "{n}", "{n}", "exactly {n}", "only {n}")
_SAID = (
    "{n}",
    "{n}",
    "{n}",
    "exactly {n}",
    "at least {n}",
    "more than {n}",
    "at most {n}",
    "fewer than {n}",
    "less than {n}",
)
_COUNTED = (
    "there are {q} {things} [on the table|in the box|in the room|in the garden|]",
    "{s} has {q} {things}",
    "{s} bought {q} {things}",
    "{q} {peoples} are [in the room|waiting|playing|at the party]",
    "{q} {peoples} [came|left|won|passed the test]",
    "{s} saw {q} {things}",
    "the box contains {q} {things}",
    "the class has {q} {peoples}",
    "{s} ate {q} {things}",
    "we need {q} {things}",
    "the house has {q} rooms",
    "{s} has {q} [children|brothers|sisters|dogs|books]",
    "the {thing} costs {q} [dollars|euros|pounds]",
    "{s} is {q} years old",
    "the trip takes {q} [hours|minutes|days]",
    "the road is {q} [kilometers|miles|meters] long",
    "the film lasts {q} minutes",
    "{s} weighs {q} kilograms",
    "{s} paid {q} dollars",
    "{s} waited {q} [minutes|hours]",
)


@dataclass(frozen=True)
class _Scene:
    """A template of a count, filled in but for `{q}`, the number with its bound."""

    premise: str
    hypothesis: str


def _counted(generator: random.Random) -> _Scene:
    template = choose(generator.choice(_COUNTED), generator)
    things, one = generator.choice(THINGS)
    subject = person(generator)
    values = {"things": things, "thing": one, "peoples": generator.choice(PEOPLES)[0], "q": "{q}"}
    return _Scene(template.format(**values, s=subject[0]), template.format(**values, s=subject[1]))


def _spelt(number: int, generator: random.Random) -> str:
    return number_words(number) if number <= 20 and generator.random() < 0.5 else f"{number}"


def draw_number(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a count and a bound of it, judged as intervals: within, apart, or neither."""
    if generator.random() < 0.22:
        return _draw_quantity(label, generator)
    if generator.random() < 0.08:
        return _draw_opening(label, generator)
    scene = _counted(generator)
    top = generator.choice((6, 12, 30, 100, 1000))
    for _ in range(40):
        told = generator.choice(_PLAIN if generator.random() < 0.7 else tuple(_BOUNDS))
        said = generator.choice(_SAID)
        first = generator.randint(2, top)
        second = first if generator.random() < 0.25 else generator.randint(2, top)
        if "not" in told:
            is_known = said == "{n}" and first == second
            found: Relation = "contradiction" if is_known else "neutral"
            if said not in ("{n}", "exactly {n}"):
                continue
        else:
            found = within(_BOUNDS[told](first), _BOUNDS[said](second))
        if found == label and not (told == said and first == second and generator.random() < 0.8):
            break
    else:
        return None
    shown = [way.format(n=_spelt(number, generator)) for way, number in ((told, first), (said, second))]
    reason = {"entailment": "fits", "contradiction": "does not fit", "neutral": "may fit or not"}[label]
    return SentencePair(
        scene.premise.format(q=shown[0]), scene.hypothesis.format(q=shown[1]), label, f"{shown[1]} {reason} {shown[0]}"
    )


def within(told: tuple[int, int], said: tuple[int, int]) -> Relation:
    if said[0] <= told[0] and told[1] <= said[1]:
        return "entailment"
    return "neutral" if told[0] <= said[1] and said[0] <= told[1] else "contradiction"


def _draw_quantity(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a number against a quantity without a number, or the other way round."""
    things, one = generator.choice(THINGS)
    number = _spelt(generator.randint(2, 20), generator)
    subject, other = person(generator)
    some: dict[Relation, tuple[tuple[str, str], ...]] = {
        "entailment": (
            (f"there are {number} {things} on the table", f"there are [some|several] {things} on the table"),
            (f"{subject} has {number} {things}", f"{other} has [some {things}|more than one {one}|{things}]"),
            (f"{subject} bought {number} {things}", f"{other} bought [some {things}|{things}|several {things}]"),
            (f"{subject} has no {things}", f"{other} does not have [a {one}|any {things}]"),
            (f"{number} people are dancing", "[people are dancing|several people are dancing|somebody is dancing]"),
        ),
        "contradiction": (
            (f"there are {number} {things} on the table", f"there [are no {things}|is only one {one}] on the table"),
            (
                f"{subject} has {number} {things}",
                f"{other} [has no {things}|does not have any {things}|has only one {one}]",
            ),
            (f"{subject} has no {things}", f"{other} has [some|{number}|many] {things}"),
            (f"{subject} has only one {one}", f"{other} has [several|{number}|many] {things}"),
            (f"{number} people are dancing", "[nobody is dancing|only one person is dancing|no one is dancing]"),
        ),
        "neutral": (
            (f"{subject} has some {things}", f"{other} has {number} {things}"),
            (f"there are several {things} on the table", f"there are {number} {things} on the table"),
            (f"{subject} has {number} {things}", f"{other} has [{number} hats|new {things}|some books|a lot of money]"),
            ("some people are dancing", f"{number} people are dancing"),
            (f"there are many {things} here", f"there are {number} {things} here"),
        ),
    }
    premise, hypothesis = generator.choice(some[label])
    return SentencePair(premise, choose(hypothesis, generator), label, "the amounts are compared")


def _draw_opening(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw hours between two others, or not."""
    place = generator.choice(("shop", "museum", "library", "bank", "office", "pool", "park"))
    start, inside, end, outside = sorted(generator.sample(range(1, 24), 4))
    hour = {"entailment": inside, "contradiction": outside, "neutral": inside}[label]
    if label == "neutral":
        return SentencePair(
            f"the {place} is open from {start} to {end}",
            f"the {place} is [full|crowded|empty] at {hour}".replace(
                "[full|crowded|empty]", generator.choice(("full", "crowded"))
            ),
            label,
            "that is not told",
        )
    return SentencePair(
        f"the {place} is open from {start} to {end}",
        f"the {place} is open at {hour}",
        label,
        f"{hour} is compared with these",
    )
