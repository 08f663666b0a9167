"""Sentence pairs about days, seasons, opening hours, what comes first, how long something lasts, and what is over."""

import random

from starters.predict.everyday.naming import number_words
from starters.predict.everyday.words import MEN, WOMEN, listed
from starters.predict.sentence_pairs.frames import SentencePair, with_article
from starters.predict.sentence_pairs.handwritten.balance import Words, draw_balanced, pairs_of
from starters.predict.sentence_pairs.taxonomies import Relation

_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_MONTHS = listed("January February March April May June July August September October November December")
_SEASONS = listed("winter winter spring spring spring summer summer summer fall fall fall winter")
_SHOPS = listed(
    "the shop,the bakery,the museum,the library,the bank,the pool,the post office,the restaurant,the zoo"
    ",the pharmacy,the supermarket,the café,the gym,the office,the park,the ticket desk,the hairdresser's"
    ",the bar,the market",
    ",",
)
_EVENTS = listed(
    "the concert,the meeting,the film,the game,the lesson,the party,the exam,the wedding,the speech,the show"
    ",the race,the lecture,the dinner,the trial,the flight,the play,the storm,the interview,the festival"
    ",the picnic,the trip",
    ",",
)
_TRAVELS = ["train", "bus", "plane", "ferry", "tram", "boat", "ship", "coach"]
_DID = listed(
    "left home,had lunch,called the doctor,finished the report,went to bed,got up,met Nora,moved to Rome"
    ",got married,bought the car,fed the dog,came back,paid the rent,took the test,arrived,fell asleep"
    ",sold the house,left the office,washed the car,wrote to the bank,learned to swim,broke a leg,saw the film"
    ",cooked dinner,cleaned the kitchen",
    ",",
)
_UNITS = ("minutes", "hours", "days", "weeks", "months", "years")


def _clock(hour: int, generator: random.Random) -> str:
    word = number_words(hour) if generator.random() < 0.5 else f"{hour}"
    return f"{word}{generator.choice(('', '', ' o’clock')).replace('’', chr(39))}"


def draw_moment(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw when something is, was or will be, and what follows for another time."""
    topic = generator.choice(("calendar", "hours", "hours", "order", "order", "lasting", "tense", "tense"))
    return draw_balanced(pairs_of(topic), _WORDS[topic], label, generator)


def _calendar(generator: random.Random) -> Words:
    place = generator.randrange(7)
    day, after, before = _DAYS[place], _DAYS[(place + 1) % 7], _DAYS[place - 1]
    far = _DAYS[(place + generator.choice((2, 3, 4, 5))) % 7]
    month = generator.randrange(12)
    now, coming, past, away = (
        _MONTHS[(month + step) % 12] for step in (0, 1, -1, generator.choice((3, 4, 5, 6, 7, 8)))
    )
    season = _SEASONS[month]
    other = generator.choice([one for one in ("winter", "spring", "summer", "fall") if one != season])
    name, event = generator.choice(WOMEN + MEN), generator.choice(_EVENTS)
    is_weekend = place > 4
    kind, other_kind = ("at the weekend", "on a weekday") if is_weekend else ("on a weekday", "at the weekend")
    return {
        **{"day": day, "after": after, "before": before, "far": far, "now": now, "coming": coming, "past": past},
        **{"away": away, "season": season, "other": other, "name": name, "event": event},
        **{"kind": kind, "other_kind": other_kind},
    }


def _hours(generator: random.Random) -> Words:
    hours = sorted(generator.sample(range(1, 13), 5))
    shop, name = generator.choice(_SHOPS), generator.choice(WOMEN + MEN)
    event, travel = generator.choice(_EVENTS), f"the {generator.choice(_TRAVELS)}"
    clocks = {key: _clock(hour, generator) for key, hour in zip("abcde", hours, strict=True)}
    return {"shop": shop, "name": name, "event": event, "travel": travel, **clocks}


def _order(generator: random.Random) -> Words:
    one, two = generator.sample(WOMEN + MEN, 2)
    first, second = generator.sample(_DID, 2)
    event, later = generator.sample(_EVENTS, 2)
    low, high = sorted(generator.sample(range(1950, 2024), 2))
    return {
        **{"one": one, "two": two, "first": first, "second": second, "event": event, "later": later},
        **{"low": f"{low}", "high": f"{high}"},
    }


def _lasting(generator: random.Random) -> Words:
    event, name = generator.choice(_EVENTS), generator.choice(WOMEN + MEN)
    low, high = sorted(generator.sample(range(2, 20), 2))
    unit = generator.choice(_UNITS[:3])
    small, big = sorted(generator.sample(range(len(_UNITS)), 2))
    less, more = (number_words(n) for n in (low, high))
    return {
        **{"event": event, "name": name, "unit": unit, "less": less, "more": more, "big_units": _UNITS[big]},
        **{"big_unit": _UNITS[big][:-1], "small_unit": _UNITS[small][:-1]},
        "a_small_unit": with_article(_UNITS[small][:-1]),
    }


def _tense(generator: random.Random) -> Words:
    event, name = generator.choice(_EVENTS), generator.choice(WOMEN + MEN)
    travel = f"the {generator.choice(_TRAVELS)}"
    friend = generator.choice(WOMEN + MEN)
    return {"event": event, "name": name, "travel": travel, "friend": friend}


_WORDS = {"calendar": _calendar, "hours": _hours, "order": _order, "lasting": _lasting, "tense": _tense}
