"""Sentence pairs about days, hours, years, what comes first and how often."""

import random
from collections.abc import Mapping

from starters.predict.everyday.words import MEN, WOMEN, listed
from starters.predict.sentence_pairs.counts import within
from starters.predict.sentence_pairs.frames import Frame, SentencePair, draw_by_frames, person
from starters.predict.sentence_pairs.taxonomies import Relation, Taxonomy, taxonomy

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
_HABITS = listed("late,happy,at home,tired,in the office,busy,friendly,angry,awake at night,on time", ",")


def draw_time(label: Relation, generator: random.Random) -> SentencePair | None:
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
    frames: tuple[Frame, ...] = (*_TIMED, *_DONE)
    if name == "when":
        frames = tuple(frame for frame in frames if " was " in frame.premise or frame in _DONE)
        words: Taxonomy = Taxonomy(
            dict.fromkeys(("yesterday", "last week", "last year", "this morning", "a long time ago"), ())
        )
    else:
        words = taxonomy(name)
    return draw_by_frames(words, frames, (event, event), label, generator)


def _draw_sequence(label: Relation, generator: random.Random) -> SentencePair | None:
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
        return SentencePair(told, said, label, "that is not told")
    true, false = (
        f"{two} {done} {second} {one}",
        generator.choice((f"{two} {done} {first} {one}", f"{one} {done} {second} {two}")),
    )
    return SentencePair(told, true if label == "entailment" else false, label, f"so {true}")


def _draw_frequency(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw how often something is so."""
    subject, said_subject = person(generator)
    habit = generator.choice(_HABITS)
    for _ in range(30):
        told, said = generator.choice(tuple(_FREQUENCIES)), generator.choice(tuple(_FREQUENCIES))
        if told != said and within(_FREQUENCIES[told], _FREQUENCIES[said]) == label:
            told_first = f"{subject} is {habit} {told}" if " " in told else f"{subject} is {told} {habit}"
            said_first = f"{said_subject} is {habit} {said}" if " " in said else f"{said_subject} is {said} {habit}"
            return SentencePair(told_first, said_first, label, f"{told} is compared with {said}")
    return None


def _draw_clock(label: Relation, event: str, generator: random.Random) -> SentencePair | None:
    """Draw an hour or a year."""
    is_year = generator.random() < 0.4
    first, second = generator.sample(range(1900, 2030) if is_year else range(1, 13), 2)
    verb = generator.choice(("was", "took place") if is_year else ("starts", "begins", "ends"))
    at = "in" if is_year else "at"
    if label == "neutral":
        said = generator.choice(
            (f"{event} {verb} {at} {first} in Paris", f"{event} was boring", f"the party {verb} {at} {second}")
        )
        if "the party" in event:
            return None
        return SentencePair(f"{event} {verb} {at} {first}", said, label, "that is not told")
    if label == "contradiction":
        way = generator.choice((f"{verb} {at} {second}", f"{verb} {'after' if second > first else 'before'} {second}"))
        return SentencePair(f"{event} {verb} {at} {first}", f"{event} {way}", label, f"{first} is not {second}")
    way = f"{verb} {'before' if second > first else 'after'} {second}"
    return SentencePair(f"{event} {verb} {at} {first}", f"{event} {way}", label, f"{first} is compared with {second}")
