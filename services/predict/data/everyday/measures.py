"""Claims about numbers, places and times."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.predict.data.everyday.claims import Claim, Frame, draw_by_frames, person, thing
from services.predict.data.everyday.naming import number_words
from services.predict.data.everyday.taxonomies import Relation, Taxonomy, taxonomy
from services.predict.data.everyday.words import MEN, PEOPLES, THINGS, WOMEN

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


def _choose(template: str, generator: random.Random) -> str:
    before, bracket, rest = template.partition("[")
    if not bracket:
        return template
    inner, _, after = rest.partition("]")
    return f"{before}{generator.choice(inner.split('|'))}{_choose(after, generator)}".strip()


def _counted(generator: random.Random) -> _Scene:
    template = _choose(generator.choice(_COUNTED), generator)
    things, one = generator.choice(THINGS)
    subject = person(generator)
    values = {"things": things, "thing": one, "peoples": generator.choice(PEOPLES)[0], "q": "{q}"}
    return _Scene(template.format(**values, s=subject[0]), template.format(**values, s=subject[1]))


def _spelt(number: int, generator: random.Random) -> str:
    return number_words(number) if number <= 20 and generator.random() < 0.5 else f"{number}"


def draw_number(label: Relation, generator: random.Random) -> Claim | None:
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
            found = _within(_BOUNDS[told](first), _BOUNDS[said](second))
        if found == label and not (told == said and first == second and generator.random() < 0.8):
            break
    else:
        return None
    shown = [way.format(n=_spelt(number, generator)) for way, number in ((told, first), (said, second))]
    reason = {"entailment": "fits", "contradiction": "does not fit", "neutral": "may fit or not"}[label]
    return Claim(
        scene.premise.format(q=shown[0]), scene.hypothesis.format(q=shown[1]), label, f"{shown[1]} {reason} {shown[0]}"
    )


def _within(told: tuple[int, int], said: tuple[int, int]) -> Relation:
    if said[0] <= told[0] and told[1] <= said[1]:
        return "entailment"
    return "neutral" if told[0] <= said[1] and said[0] <= told[1] else "contradiction"


def _draw_quantity(label: Relation, generator: random.Random) -> Claim | None:
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
            (f"some people are dancing", f"{number} people are dancing"),
            (f"there are many {things} here", f"there are {number} {things} here"),
        ),
    }
    premise, hypothesis = generator.choice(some[label])
    return Claim(premise, _choose(hypothesis, generator), label, "the amounts are compared")


def _draw_opening(label: Relation, generator: random.Random) -> Claim | None:
    """Draw hours between two others, or not."""
    place = generator.choice(("shop", "museum", "library", "bank", "office", "pool", "park"))
    start, inside, end, outside = sorted(generator.sample(range(1, 24), 4))
    hour = {"entailment": inside, "contradiction": outside, "neutral": inside}[label]
    if label == "neutral":
        return Claim(
            f"the {place} is open from {start} to {end}",
            f"the {place} is [full|crowded|empty] at {hour}".replace(
                "[full|crowded|empty]", generator.choice(("full", "crowded"))
            ),
            label,
            "that is not told",
        )
    return Claim(
        f"the {place} is open from {start} to {end}",
        f"the {place} is open at {hour}",
        label,
        f"{hour} is compared with these",
    )


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


def draw_place(label: Relation, generator: random.Random) -> Claim | None:
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


def _mixed(label: Relation, claim: Claim | None, generator: random.Random) -> Claim | None:
    """Replace the verb of an open claim: who lives somewhere need not work there."""
    if claim is None or label != "neutral" or " lives " not in claim.hypothesis or generator.random() < 0.5:
        return claim
    return Claim(claim.premise, claim.hypothesis.replace(" lives ", " works "), label, "where one works was not told")


def draw_converse(label: Relation, generator: random.Random) -> Claim | None:
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
            return Claim(f"{one} is {same} {two}", f"{two} is not {same} {one}", label, "it holds both ways")
        if label == "entailment":
            return Claim(f"{one} is {same} {two}", f"{two} is {same} {one}", label, "it holds both ways")
    no = generator.random() < 0.2
    told, reason = f"{one} is {first} {two}", f"{one} is {first} {two}, so {two} is {second} {one}"
    if label == "neutral":
        third = generator.choice([pair for pair in some if first not in pair and second not in pair])
        said = generator.choice((f"{one} is {third[0]} {two}", f"{two} is {third[1]} {one}", f"{one} is red"))
        return Claim(
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
    return Claim(told, said, label, reason)


_EVENTS = (
    "the meeting",
    "the party",
    "the concert",
    "the exam",
    "the game",
    "the wedding",
    "the show",
    "the lesson",
    "the race",
    "the trip",
)
_TIMED = (
    Frame("{s} is {x}", "{S} is {x}", "{s} is not {x}", "{S} is not {x}"),
    Frame("{s} takes place {x}", "{S} takes place {x}", None, "{S} does not take place {x}"),
    Frame("{s} was {x}", "{S} was {x}", "{s} was not {x}", "{S} was not {x}"),
    Frame("{s} starts {x}", "{S} starts {x}", None, "{S} does not start {x}"),
    Frame("{s} will be {x}", "{S} will be {x}", None, "{S} will not be {x}"),
)
_DONE = (
    Frame("Anna arrived {x}", "Anna arrived {x}", None, "Anna did not arrive {x}"),
    Frame("the train left {x}", "the train left {x}", None, "the train did not leave {x}"),
    Frame("he was born {x}", "he was born {x}", None, "he was not born {x}"),
    Frame("they got married {x}", "they got married {x}", None, "they did not get married {x}"),
    Frame("the baby was born {x}", "the baby was born {x}"),
    Frame("we met {x}", "we met {x}", None, "we did not meet {x}"),
    Frame("she called me {x}", "she called me {x}", None, "she did not call me {x}"),
    Frame("it rained {x}", "it rained {x}", "it did not rain {x}", "it did not rain {x}", False),
)
_FREQUENCIES: Mapping[str, tuple[int, int]] = {
    "always": (9, 9),
    "usually": (7, 8),
    "often": (5, 8),
    "sometimes": (1, 9),
    "rarely": (1, 2),
    "never": (0, 0),
    "every day": (9, 9),
    "at times": (1, 9),
}
_HABITS = "late,happy,at home,tired,in the office,busy,friendly,angry,awake at night,on time".split(",")


def draw_time(label: Relation, generator: random.Random) -> Claim | None:
    """Draw when something happens, how often, or before what."""
    way = generator.random()
    event = generator.choice(_EVENTS)
    if way < 0.15:
        return _draw_sequence(label, generator)
    if way < 0.28:
        return _draw_frequency(label, generator)
    if way < 0.4:
        return _draw_clock(label, event, generator)
    name = generator.choice(("days", "days", "months", "hours", "hours", "when"))
    frames = (*_TIMED, *_DONE)
    if name == "when":
        frames = tuple(frame for frame in frames if " was " in frame.premise or frame in _DONE)
        words: Taxonomy = Taxonomy(
            {word: () for word in ("yesterday", "last week", "last year", "this morning", "a long time ago")}
        )
    else:
        words = taxonomy(name)
    return draw_by_frames(words, frames, (event, event), label, generator)


def _draw_sequence(label: Relation, generator: random.Random) -> Claim | None:
    """Draw two events, one before the other."""
    one, two = generator.sample(WOMEN + MEN, 2)
    done = generator.choice(("arrived", "left", "finished", "came home", "called", "spoke", "got up", "won", "ate"))
    is_event = generator.random() < 0.4
    if is_event:
        one, two = generator.sample(_EVENTS, 2)
        done = generator.choice(("was", "started", "ended", "took place"))
    first, second = generator.choice(
        (("before", "after"), ("after", "before"), ("earlier than", "later than"), ("later than", "earlier than"))
    )
    told = f"{one} {done} {first} {two}"
    if label == "neutral":
        said = generator.choice(
            (f"{one} {done} in the evening", f"{two} {done} in the morning", f"{one} and {two} are friends")
        )
        return Claim(told, said, label, "that is not told")
    true, false = (
        f"{two} {done} {second} {one}",
        generator.choice((f"{two} {done} {first} {one}", f"{one} {done} {second} {two}")),
    )
    return Claim(told, true if label == "entailment" else false, label, f"so {true}")


def _draw_frequency(label: Relation, generator: random.Random) -> Claim | None:
    """Draw how often something is so."""
    subject, said_subject = person(generator)
    habit = generator.choice(_HABITS)
    for _ in range(30):
        told, said = generator.choice(tuple(_FREQUENCIES)), generator.choice(tuple(_FREQUENCIES))
        if told != said and _within(_FREQUENCIES[told], _FREQUENCIES[said]) == label:
            told_first = f"{subject} is {habit} {told}" if " " in told else f"{subject} is {told} {habit}"
            said_first = f"{said_subject} is {habit} {said}" if " " in said else f"{said_subject} is {said} {habit}"
            return Claim(told_first, said_first, label, f"{told} is compared with {said}")
    return None


def _draw_clock(label: Relation, event: str, generator: random.Random) -> Claim | None:
    """Draw an hour or a year."""
    is_year = generator.random() < 0.4
    first, second = generator.sample(range(1900, 2030) if is_year else range(1, 13), 2)
    verb = generator.choice(("was", "took place") if is_year else ("starts", "begins", "ends"))
    at = "in" if is_year else "at"
    if label == "neutral":
        said = generator.choice(
            (f"{event} {verb} {at} {first} in Paris", f"{event} was boring", f"the party {verb} {at} {second}")
        )
        return (
            Claim(f"{event} {verb} {at} {first}", said, label, "that is not told") if "the party" not in event else None
        )
    if label == "contradiction":
        way = generator.choice((f"{verb} {at} {second}", f"{verb} {'after' if second > first else 'before'} {second}"))
        return Claim(f"{event} {verb} {at} {first}", f"{event} {way}", label, f"{first} is not {second}")
    way = f"{verb} {'before' if second > first else 'after'} {second}"
    return Claim(f"{event} {verb} {at} {first}", f"{event} {way}", label, f"{first} is compared with {second}")
