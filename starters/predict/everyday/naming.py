"""Names of one everyday problem: people, things and words, some drawn once and others anew at each place."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass

from starters.predict.everyday.words import (
    BOXES,
    CLASSES,
    MEN,
    PEOPLES,
    ROLES,
    SURNAMES,
    THINGS,
    TITLED,
    WOMEN,
    listed,
    nouns,
    plural_of,
)

UNKNOWN_THING_RATE = 0.12
UNKNOWN_NAME_RATE = 0.08
FIRST_PERSON_RATE = 0.06
_FRACTIONS = (
    *(("a third", 3), ("one third", 3), ("a quarter", 4), ("one quarter", 4), ("a fourth", 4), ("one fourth", 4)),
    *(("a fifth", 5), ("one fifth", 5), ("a sixth", 6), ("one sixth", 6), ("an eighth", 8), ("a tenth", 10)),
    *(("one tenth", 10), ("half", 2), ("one half", 2), ("one eighth", 8)),
)
_MONTHS = listed("January February March April May June July August September October November December")
_AWAY = [
    "the beach",
    "the lake",
    "Paris",
    "London",
    "the mountains",
    "Berlin",
    "the city",
    "the airport",
    "the next town",
    "Rome",
    "the station",
]
_DISHES = ("cake", "pie", "pizza", "loaf", "pancake", "tart", "batch", "pot")
_UNITS = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    " fifteen sixteen seventeen"
    " eighteen nineteen twenty"
)
_SYLLABLES = listed(
    "ba be do du fa fi ga gu ha jo ka ki la li lo ma mi mo na ni no pa po ra ri ro sa si ta ti to va vi za"
)


def number_words(value: int) -> str:
    """Write a number from 0 to 20 in words."""
    return _UNITS[value]


@dataclass(frozen=True)
class Names:
    """The names of a problem that stay the same at each place."""

    fixed: Mapping[str, str]

    def word(self, name: str, generator: random.Random) -> str:
        """Return a fixed name, or draw a word of a class. Raises KeyError for another name."""
        return self.fixed[name] if name in self.fixed else generator.choice(CLASSES[name])


def draw_names(generator: random.Random) -> Names:
    """Draw the people, things and places of a problem."""
    (name, he), (other, _), (third, _), (stranger, _) = (_person(generator) for _ in range(4))
    things = [_thing(generator) for _ in range(3)]
    (boxes, box), (peoples, person) = generator.choice(BOXES), generator.choice(PEOPLES)
    adjectives = generator.sample(CLASSES["adj"], 3)
    fraction, below = generator.choice(_FRACTIONS)
    verb = generator.randrange(len(CLASSES["do_it"]))
    month, month2 = generator.sample(_MONTHS, 2)
    place, place2 = generator.choice(CLASSES["place"]), generator.choice(_AWAY)
    is_he = he == "he"
    first = {"N": "I", "he": "I", "He": "I", "his": "my", "His": "My", "him": "me"}
    return Names(
        {
            **{"N": name, "M": other, "O": third, "stranger": stranger, "he": he, "He": he.capitalize()},
            **{"his": "his" if is_he else "her", "His": "His" if is_he else "Her", "him": "him" if is_he else "her"},
            **{"things": things[0][0], "thing": things[0][1], "things2": things[1][0], "thing2": things[1][1]},
            **{"spares": things[2][0], "spare": things[2][1], "boxes": boxes, "box": box},
            **{"peoples": peoples, "person": person, "places": f"{place}s", "place": place, "place2": place2},
            **{"adj": adjectives[0], "adj2": adjectives[1], "adj3": adjectives[2]},
            **{"onefrac": fraction, "frac": fraction.split(" ")[-1], "fracn": str(below)},
            **{"does_it": CLASSES["does_it"][verb], "do_it": CLASSES["do_it"][verb], "go": "go"},
            **{"food": generator.choice(CLASSES["powder"]), "food2": generator.choice(CLASSES["powder"])},
            **{"dish1": generator.choice(_DISHES), "month": month, "month2": month2, "weight1": "kilogram"},
            **{"lostp": generator.choice(("broken", "sold", "eaten", "lost")), "kin": generator.choice(CLASSES["kin"])},
            **{word: generator.choice(CLASSES[word]) for word in ("unit", "volume", "measure", "length", "weight")},
            **{word: generator.choice(CLASSES[word]) for word in ("liquid", "long", "period", "vehicle", "city")},
            **(first if generator.random() < FIRST_PERSON_RATE else {}),
        }
    )


def choose(template: str, generator: random.Random) -> str:
    """Choose one of each `[a|b|c]` of a template at random."""
    before, bracket, rest = template.partition("[")
    if not bracket:
        return template
    inner, _, after = rest.partition("]")
    return f"{before}{generator.choice(inner.split('|'))}{choose(after, generator)}"


def first_person(text: str) -> str:
    """Correct the verbs of a text whose subject became "I"."""
    text = re.sub(r"\bI's\b", "my", text).replace("than I", "than me")
    for old, new in (("I has", "I have"), ("I is", "I am"), ("I goes", "I go"), ("does I", "do I"), ("is I", "am I")):
        text = re.sub(rf"\b{old}\b", new, text)
    text = re.sub(r"\bhas I\b", "have I", text)
    return re.sub(r"\bI (?!was\b|miss\b|pass\b|is\b)([a-z]{2,}[a-rt-z])s\b", r"I \1", text)


def _person(generator: random.Random) -> tuple[str, str]:
    """Draw a name and its pronoun."""
    chance = generator.random()
    if chance < UNKNOWN_NAME_RATE:
        invented = "".join(generator.choice(_SYLLABLES) for _ in range(generator.choice((2, 2, 3))))
        return invented.capitalize(), generator.choice(("he", "she"))
    if chance < 0.16:
        title, he = generator.choice(TITLED)
        return f"{title} {generator.choice(SURNAMES)}", he
    if chance < 0.26:
        role, he = generator.choice(ROLES)
        return role, he
    return (generator.choice(WOMEN), "she") if generator.random() < 0.5 else (generator.choice(MEN), "he")


def _thing(generator: random.Random) -> tuple[str, str]:
    """Draw a thing's plural and singular."""
    if generator.random() < UNKNOWN_THING_RATE:
        noun, _ = generator.choice(nouns())
        return plural_of(noun), noun
    return generator.choice(THINGS)
