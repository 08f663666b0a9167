"""Sentence pairs about two subjects at once, contrasts within a sentence, and statements that leave one open."""

import random

from starters.predict.everyday.naming import choose
from starters.predict.everyday.words import MEN, THINGS, WOMEN
from starters.predict.sentence_pairs.frames import SentencePair, person, thing, with_article
from starters.predict.sentence_pairs.taxonomies import Relation, quality_groups, taxonomy

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


def draw_open(label: Relation, generator: random.Random) -> SentencePair | None:
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
        group = generator.choice(quality_groups("person" if is_person else "any"))
        premise = f"{subject[0]} is {generator.choice(group.words)}"
    return SentencePair(premise, open_statement(subject[1], generator, is_person=is_person), label, "that is not told")


# A premise, and hypotheses that follow, that are excluded and that stay open.
_WAYS = (
    (
        "{one} and {two} are {first}",
        ("{either} is {first}", "both {one} and {two} are {first}", "{either} is not {second}"),
        (
            "{either} is not {first}",
            "{either} is {second}",
            "neither {one} nor {two} is {first}",
            "only {one} is {first}",
        ),
        ("{either} is {other}", "{one} and {two} are {other}"),
    ),
    (
        "neither {one} nor {two} is {first}",
        ("{either} is not {first}", "{one} and {two} are not {first}"),
        ("{either} is {first}", "both {one} and {two} are {first}"),
        ("{either} is {other}", "{one} and {two} are {other}"),
    ),
    (
        "{one} is {first} [but|and|while] {two} is {second}",
        ("{one} is {first}", "{two} is {second}", "{one} is not {second}", "{two} is not {first}"),
        ("{one} is {second}", "{two} is {first}", "both are {first}", "{one} is not {first}", "{two} is not {second}"),
        ("{either} is {other}",),
    ),
    (
        "[{one} is {first}, not {second}|{one} is not {second} but {first}|{one} is not {second}, it is {first}]",
        ("{one} is {first}", "{one} is not {second}"),
        ("{one} is {second}", "{one} is not {first}"),
        ("{one} is {other}", "{two} is {first}", "{two} is {second}"),
    ),
    (
        "either {one} or {two} is {first}",
        ("{one} or {two} is {first}",),
        ("neither {one} nor {two} is {first}",),
        ("{either} is {first}", "{either} is {other}"),
    ),
    (
        "only {one} is {first}",
        ("{one} is {first}", "{two} is not {first}"),
        ("{two} is {first}", "{one} is not {first}", "{one} and {two} are {first}"),
        ("{one} is {other}", "{two} is {other}"),
    ),
)


def draw_pair(label: Relation, generator: random.Random) -> SentencePair | None:
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
    names = {"one": one, "two": two, "first": first, "second": second, "other": other}
    names["either"] = generator.choice((one, two))
    premise, *hypotheses = generator.choice(_WAYS)
    said = generator.choice(hypotheses[("entailment", "contradiction", "neutral").index(label)])
    return SentencePair(
        choose(str(premise), generator).format(**names), said.format(**names), label, f"it is told who is {first}"
    )
