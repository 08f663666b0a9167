"""Subjects of documents, people or companies: their relations, open ones included, and remarks about them.

An attribute is a relation whose noun is drawn like any word, so that a reader has to match the noun of the question
with the sentence's rather than know a list of relations.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from starters.generate.world.relations import RELATIONS, Form, Relation, filled
from starters.generate.world.words import OBJECTS, VALUES, listed, syllables

_NOUNS = listed(
    "advantage, aim, answer, architect, assistant, badge, boss, captain, choice, classroom, client, coat, "
    "cousin, cup, destination, doctor, dream, editor, emblem, excuse, fear, flag, future, gift, goal, guest, "
    "guide, habit, heir, hero, idea, landlord, letter, lawyer, luck, manager, mascot, medal, memory, method, "
    "mistake, model, motto, nickname, opinion, origin, password, patron, plan, present, prize, problem, promise, "
    "reason, record, reward, rival, role, rule, secret, seat, sister, size, slogan, song, status, strength, "
    "supplier, symbol, talent, target, tenant, theme, trainer, treasure, trick, uncle, view, weakness, weight, "
    "wish, witness"
)
_VALUES = ("animal", "object", "place", "job", "color", "food", "country", "brand", "date", "number", "person", "sport")
_ATTRIBUTE = Form(
    ("The {r} of {x} is {p}.", "{x}'s {r} is {p}.", "{p} is the {r} of {x}.", "{p} is {x}'s {r}.",
     "{x} has {p} as {r}.", "As for the {r} of {x}, it is {p}."),
    ("What is the {r} of {x}?", "What is {x}'s {r}?", "Tell me the {r} of {x}.", "Which {r} does {x} have?",
     "Which is the {r} of {x}?", "Do you know the {r} of {x}?"),
    ("Whose {r} is {p}?", "Who has {p} as {r}?"),
)  # fmt: skip

ORGANISATIONS: tuple[Relation, ...] = (
    Relation("chief", "person", (
        Form(("The CEO of {x} is {p}.", "{x} is led by CEO {p}.", "{p} is the CEO of {x}.", "{p} is CEO at {x}.",
              "{x}'s CEO is {p}.", "{x} is led by {p}.", "{p} leads {x}.", "{p} has led {x} for years.",
              "{x} is managed by {p}.", "The head of {x} is {p}."),
             ("Who is the CEO of {x}?", "Who leads {x}?", "Who runs {x}?", "Who is {x}'s CEO?", "Who is the boss of"
              " {x}?", "Who manages {x}?", "By whom is {x} led?", "Who is the head of {x}?"),
             ("What does {p} lead?", "Which company is led by {p}?", "Which company does {p} run?")),
    )),
    Relation("founder", "person", (
        Form(("{x} was founded by {p}.", "{p} founded {x}.", "The founder of {x} is {p}.", "{p} started {x}."),
             ("Who founded {x}?", "Who is the founder of {x}?", "By whom was {x} founded?", "Who started {x}?"),
             ("What did {p} found?", "Which company did {p} found?", "Which company did {p} start?")),
    )),
    Relation("founding", "year", (
        Form(("{x} was founded in {p}.", "{x} has existed since {p}.", "{x} was set up in {p}.", "{x} opened in {p}."),
             ("When was {x} founded?", "In which year was {x} founded?", "Since when has {x} existed?",
              "When was {x} set up?", "When did {x} open?"),
             ("Which company was founded in {p}?", "What was founded in {p}?")),
    )),
    Relation("seat", "place", (
        Form(("{x} is based in {p}.", "The headquarters of {x} are in {p}.", "{x} has its office in {p}.",
              "{x} is located in {p}."),
             ("Where is {x} based?", "Where are the headquarters of {x}?", "Where is {x}?", "Where is {x} located?",
              "In which city is {x}?"),
             ("Which company is based in {p}?", "What is based in {p}?")),
    )),
    Relation("staff", "number", (
        Form(("{x} has {p} employees.", "{x} employs {p} people.", "{p} people work for {x}.", "{x} has a staff of"
              " {p}."),
             ("How many employees does {x} have?", "How many people work for {x}?", "How many people does {x} employ?"),
             ("Which company has {p} employees?",)),
    )),
    Relation("product", "object", (
        Form(("{x} makes the {p}.", "{x} produces {a}.", "The product of {x} is {a}.", "{x} sells {a}."),
             ("What does {x} make?", "What does {x} produce?", "What is the product of {x}?", "What does {x} sell?"),
             ("Who makes the {p}?", "Who produces the {p}?", "Which company makes {a}?")),
    )),
)  # fmt: skip

# Said after a name: the value of a relation besides, or nothing in particular.
_PERSONAL = (
    (", aged {p},", "age"), (", {p},", "age"), (" ({p})", "age"), (", {p} years old,", "age"), (", now {p},", "age"),
    (", born in {p},", "birth"), (", born in {p},", "birth"), (", {a} by trade,", "job"), (", {a},", "job"),
    (", who lives in {p},", "home"), (", from {p},", "origin"), (", who speaks {p},", "language"),
    (", as you know,", ""), (", my neighbour,", ""), (", who is usually late,", ""), (", of all people,", ""),
    (", one of {i} guests,", ""), (", after {i} weeks,", ""), (", as was said in {y},", ""),
)  # fmt: skip
_CORPORATE = (
    (", founded in {p},", "founding"), (", founded {p},", "founding"), (" (founded {p})", "founding"),
    (", set up in {p},", "founding"), (", with {p} employees,", "staff"), (", with a staff of {p},", "staff"),
    (", based in {p},", "seat"), (" from {p}", "seat"), (", which makes the {p},", "product"),
    (", as the report says,", ""), (", of all companies,", ""), (", which everybody knows,", ""),
    (", after {i} quiet years,", ""), (", as was said in {y},", ""), (", one of {i} members,", ""),
)  # fmt: skip

# Relations that one question could mean are in the same group: a document tells only one of a group about its name.
_GROUPS = {
    **{"possession": "pet", "purchase": "bought", "pet purchase": "bought", "origin": "birth", "employer": "job"},
    **{"company": "chief", "product": "sale"},
}


@dataclass(frozen=True)
class Subject:
    """Subject of all documents of a world; `name` draws one of their names, None for a name of any person."""

    relations: tuple[Relation, ...]
    remarks: tuple[tuple[str, str], ...]
    name: Callable[[random.Random], str] | None = None


def organisation_name(generator: random.Random) -> str:
    """Name a company by one or two invented words, sometimes with its form."""
    words = [syllables(generator, 1, 3).capitalize() for _ in range(generator.randint(1, 2))]
    if generator.random() < 0.4:
        words.append(generator.choice(("Ltd", "Inc", "Group", "Works", "Bank", "Motors", "Foods", "Systems", "Union")))
    return " ".join(words)


PEOPLE = Subject(RELATIONS, _PERSONAL)
COMPANIES = Subject(ORGANISATIONS, _CORPORATE, organisation_name)
ATTRIBUTE = "attribute"


def attribute(generator: random.Random) -> Relation:
    """Draw a relation that is named by its noun, with values of any class."""
    draw = generator.random()
    noun = generator.choice(_NOUNS if draw < 0.6 else OBJECTS) if draw < 0.85 else syllables(generator)
    return _attribute(noun, generator.choice(_VALUES))


@cache
def _attribute(noun: str, value: str) -> Relation:
    def named(templates: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(template.replace("{r}", noun) for template in templates)

    form = Form(named(_ATTRIBUTE.statements), named(_ATTRIBUTE.questions), named(_ATTRIBUTE.reverse))
    return Relation(f"{ATTRIBUTE} {noun}", value, (form,))


def draw_relation(generator: random.Random, subject: Subject) -> Relation:
    """Draw one of a subject's relations, or sometimes an attribute."""
    return attribute(generator) if generator.random() < 0.15 else generator.choice(subject.relations)


def group(relation: Relation) -> str:
    """The group of relations that one question could mean; an attribute is a group of its own."""
    return _GROUPS.get(relation.name, relation.name)


def remark(generator: random.Random, subject: Subject) -> tuple[str, Relation | None, str]:
    """Draw a remark about a name, and the relation and value that it tells; None and "" for nothing in particular."""
    text, told = generator.choice(subject.remarks)
    relation = next((one for one in subject.relations if one.name == told), None)
    value = VALUES[relation.value](generator) if relation is not None else ""
    numbers = text.replace("{i}", VALUES["age"](generator)).replace("{y}", VALUES["year"](generator))
    return filled(numbers, "", value), relation, value


# Every group but attributes, which are in none of a list's.
GROUPS = tuple(dict.fromkeys(group(relation) for relation in (*RELATIONS, *ORGANISATIONS)))
