"""Claims about two people or two things at once, contrasts within a sentence, and statements that leave a claim open."""

import random

from services.predict.data.everyday.claims import Claim, person, thing, with_article
from services.predict.data.everyday.taxonomies import Relation, quality_groups, taxonomy
from services.predict.data.everyday.words import MEN, THINGS, WOMEN

# What a premise about something else does not tell, about a thing or a person.
_OF_THINGS = (
    "belongs to {n}",
    "was a present from {n}",
    "was bought last year",
    "cost a lot of money",
    "is {n}'s favorite",
    "was made in {city}",
    "is the biggest in town",
    "is for sale",
    "is on the way to {n}",
    "was repaired yesterday",
    "has a new owner",
    "is better than the other one",
    "was found by {n}",
    "will be sold tomorrow",
)
_OF_PEOPLE = (
    "has two children",
    "lives in {city}",
    "works in {city}",
    "likes {things}",
    "is {job}",
    "wants to go home",
    "is waiting for {n}",
    "won a prize",
    "is going to be late",
    "has a dog",
    "is famous",
    "is cold",
    "is enjoying it",
    "is thinking about {n}",
    "is having a good day",
    "is on vacation",
    "grew up in {city}",
    "is the best in the class",
    "is going to meet {n}",
    "bought {things} yesterday",
    "does this every day",
    "is getting ready for work",
    "is a friend of {n}",
    "is in a hurry",
)


def open_statement(subject: str, generator: random.Random, *, is_person: bool) -> str:
    """Write a statement about a subject that few premises decide."""
    template = generator.choice(_OF_PEOPLE if is_person else _OF_THINGS)
    city = generator.choice(taxonomy("cities").words).removeprefix("in ")
    job = with_article(generator.choice(taxonomy("jobs").words))
    things = generator.choice(THINGS)[0]
    return f"{subject} {template.format(n=generator.choice(WOMEN + MEN), city=city, job=job, things=things)}"


def draw_open(label: Relation, generator: random.Random) -> Claim | None:
    """Draw a statement that the premise does not decide; None for other labels."""
    if label != "neutral":
        return None
    is_person = generator.random() < 0.65
    subject = person(generator) if is_person else thing("any", generator)
    if is_person and generator.random() < 0.7:
        told = generator.choice(taxonomy("activities").words)
        place = f" {generator.choice(taxonomy('places').words)}" if generator.random() < 0.4 else ""
        premise = f"{subject[0]} is {told}{place}"
    elif generator.random() < 0.3:
        premise = open_statement(subject[0], generator, is_person=is_person)
    else:
        premise = f"{subject[0]} is {generator.choice(generator.choice(quality_groups('person' if is_person else 'any')).words)}"
    return Claim(premise, open_statement(subject[1], generator, is_person=is_person), label, "that is not told")


def draw_pair(label: Relation, generator: random.Random) -> Claim | None:
    """Draw two subjects with one quality or two, or one subject of which one quality is denied and another given."""
    kind = generator.choice(("any", "person", "person"))
    (one, _), (two, _) = (thing(kind, generator) for _ in range(2))
    if kind == "person":
        one, two = generator.sample(WOMEN + MEN, 2)
    if one.split()[-1] == two.split()[-1]:
        return None
    group = generator.choice([some for some in quality_groups(kind) if len(some.words) > 1])
    first, second = generator.sample(group.words, 2)
    if group.relation(first, second) != "contradiction" or group.relation(second, first) != "contradiction":
        return None
    other = generator.choice(generator.choice([some for some in quality_groups(kind) if some is not group]).words)
    either = generator.choice((one, two))
    rest = two if either == one else one
    ways: tuple[tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
        (
            f"{one} and {two} are {first}",
            (f"{either} is {first}", f"both {one} and {two} are {first}", f"{either} is not {second}"),
            (
                f"{either} is not {first}",
                f"{either} is {second}",
                f"neither {one} nor {two} is {first}",
                f"only {either} is {first}",
            ),
            (f"{either} is {other}", f"{one} and {two} are {other}"),
        ),
        (
            f"neither {one} nor {two} is {first}",
            (f"{either} is not {first}", f"{one} and {two} are not {first}"),
            (f"{either} is {first}", f"both {one} and {two} are {first}"),
            (f"{either} is {other}", f"{one} and {two} are {other}"),
        ),
        (
            f"{one} is {first} {generator.choice(('but', 'and', 'while'))} {two} is {second}",
            (f"{one} is {first}", f"{two} is {second}", f"{one} is not {second}", f"{two} is not {first}"),
            (
                f"{one} is {second}",
                f"{two} is {first}",
                f"both are {first}",
                f"{one} is not {first}",
                f"{two} is not {second}",
            ),
            (f"{either} is {other}", f"{rest} is {other}"),
        ),
        (
            generator.choice(
                (
                    f"{one} is {first}, not {second}",
                    f"{one} is not {second} but {first}",
                    f"{one} is not {second}, it is {first}",
                )
            ),
            (f"{one} is {first}", f"{one} is not {second}"),
            (f"{one} is {second}", f"{one} is not {first}"),
            (f"{one} is {other}", f"{two} is {first}", f"{two} is {second}"),
        ),
        (
            f"either {one} or {two} is {first}",
            (f"{one} or {two} is {first}",),
            (f"neither {one} nor {two} is {first}",),
            (f"{either} is {first}", f"{either} is {other}"),
        ),
        (
            f"only {one} is {first}",
            (f"{one} is {first}", f"{two} is not {first}"),
            (f"{two} is {first}", f"{one} is not {first}", f"{one} and {two} are {first}"),
            (f"{one} is {other}", f"{two} is {other}"),
        ),
    )
    premise, true, false, unknown = generator.choice(ways)
    hypothesis = generator.choice({"entailment": true, "contradiction": false, "neutral": unknown}[label])
    return Claim(premise, hypothesis, label, f"it is told who is {first}")
