"""Documents that give advice or tell about a thing, and the keywords with which people look for them.

Nobody is asked for by name here: a query has the words of a topic, without a verb or a question mark, or asks how to do
something. The answer is the sentence that its words are about.
"""

import random
from dataclasses import dataclass

from starters.generate.world.words import ANIMALS, COUNTRIES, FOODS, OBJECTS, PLACES, SPORTS, listed, syllables

_THINGS = listed(
    "account, alarm, app, backup, balance, battery, bill, booking, boiler, browser, camera, card, charger, contract,"
    " cookie, device, document, door, engine, entrance, fee, file, filter, form, garden, heater, insurance, invoice,"
    " keyboard, laptop, licence, loan, lock, machine, membership, message, meter, microphone, network, newsletter,"
    " order, oven, parcel, passport, pension, permit, phone, photo, pipe, printer, profile, receipt, router, salary,"
    " scanner, screen, server, session, shower, speaker, subscription, tablet, tap, tax, ticket, timer, title, toilet,"
    " transfer, user, vacuum, video, visa, warranty, website, wheel, window"
)
_VERBS = listed(
    "activate, add, adjust, apply for, book, borrow, build, buy, cancel, change, charge, check, choose, clean, close,"
    " connect, copy, delete, download, draw, edit, extend, feed, find, fix, fold, grow, hide, hire, improve, install,"
    " join, lend, measure, mend, move, open, order, pack, paint, pay, plan, print, protect, prune, remove, rename,"
    " renew, rent, repair, replace, report, return, save, sell, send, set up, share, start, stop, store, tidy, train,"
    " turn off, unlock, update, upgrade, use, wash, weigh"
)
_STEPS = (
    "ask at the {m}", "press the {a} button", "follow the link in the message", "open the {m} and wait {i} minutes",
    "call {i}{j}", "use a {m}", "go to the second page", "write to the office in {c}", "hold the key for {i} seconds",
    "take a {m} and some water", "bring it back within {i} days", "choose it from the menu", "start with the {m}",
    "fill in the form", "talk to your {m} supplier", "remove the {m} first",
)  # fmt: skip
# Sentences of a topic, and queries for them; {v} is a verb, {n} the thing, the other slots are details.
_FORMS = (
    (("To {v} your {n}, {d}.", "To {v} the {n}, {d}.", "You can {v} a {n} online: {d}.",
      "If you want to {v} a {n}, {d}.",
      "{V} your {n} like this: {d}.", "The best way to {v} a {n} is easy: {d}."),
     ("how to {v} a {n}", "how to {v} my {n}", "How do I {v} my {n}?", "{v} {n}", "how can i {v} the {n}",
      "How can I {v} a {n}?", "i want to {v} my {n}", "{n} {v}", "help me {v} the {n}", "best way to {v} a {n}",
      "steps to {v} your {n}")),
    (("If your {n} does not work, {d}.", "When the {n} fails, {d}.", "A broken {n} is no problem: {d}."),
     ("{n} not working", "{n} does not work", "broken {n}", "my {n} is broken", "What can I do if the {n} fails?",
      "{n} problem", "{n} fails")),
    (("Our {n} policy gives you {i} days.", "Our {n} policy has changed since May.", "The {n} policy is on page {i}."),
     ("{n} policy", "rules for the {n}", "policy about {n}", "our {n} policy")),
    (("A {n} costs {i} pounds.", "The price of a {n} is {i} euros.", "Each {n} is cheap in {c}."),
     ("{n} price", "{n} cost", "price of a {n}", "cheap {n}", "buy {n} cheap")),
    (("The {n} in {c} opens at {i}.", "Every {n} is closed on Sunday.", "Visit the {n} between May and June."),
     ("{n} opening hours", "{n} opening times", "visit {n}", "{n} hours")),
    (("A {n} is safe for children.", "The {n} has {i} parts and one {m}.", "Many people in {c} love the {n}.",
      "We tested every {n} last year.", "A good {n} needs little care.", "The {n} was invented long ago."),
     ("{n}", "about {n}", "{n} facts", "{n} information", "all about the {n}", "tell me about the {n}", "{n} review")),
)  # fmt: skip


@dataclass(frozen=True)
class Topic:
    """A sentence that a document tells, and the queries that look for it."""

    text: str
    queries: tuple[str, ...]


def draw_topics(generator: random.Random, count: int) -> list[Topic]:
    """Draw topics about different things, sometimes with one verb in common, so that nouns tell them apart."""
    verb = generator.choice(_VERBS) if generator.random() < 0.25 else None
    things: dict[str, Topic] = {}
    while len(things) < count:
        noun = _thing(generator)
        if not any(noun in other or other in noun for other in things):
            things[noun] = _topic(generator, noun, verb)
    return list(things.values())


def _thing(generator: random.Random) -> str:
    if generator.random() < 0.15:
        return syllables(generator)
    lists = (_THINGS, OBJECTS, ANIMALS, FOODS, SPORTS, PLACES, COUNTRIES)
    words = generator.choices(lists, (0.45, 0.25, 0.1, 0.08, 0.04, 0.04, 0.04))[0]
    noun = generator.choice(words)
    return f"{generator.choice(_THINGS)} {noun}" if generator.random() < 0.15 else noun


def _topic(generator: random.Random, noun: str, verb: str | None) -> Topic:
    statements, queries = generator.choices(_FORMS, (0.5, 0.1, 0.1, 0.1, 0.1, 0.1))[0]
    verb = verb or generator.choice(_VERBS)
    slots = {
        "n": noun, "v": verb, "V": verb.capitalize(), "m": generator.choice(OBJECTS), "c": generator.choice(PLACES),
        "a": generator.choice(("red", "left", "round", "upper", "small")), "i": str(generator.randrange(2, 60)),
        "j": str(generator.randrange(100, 999)),
    }  # fmt: skip
    slots["d"] = generator.choice(_STEPS).format(**slots)
    text = generator.choice(statements).format(**slots)
    return Topic(text[0].upper() + text[1:], tuple(query.format(**slots) for query in queries))
