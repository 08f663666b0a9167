"""Sentence pairs in the manner of captions: who does what, where, and wearing what, said again or changed."""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starters.predict.everyday.naming import choose
from starters.predict.everyday.words import listed
from starters.predict.sentence_pairs.frames import SentencePair, with_article
from starters.predict.sentence_pairs.taxonomies import Relation

# Nouns, their plurals, wider nouns and nouns that exclude them.
_PEOPLE = (
    *(("man", "men", "person adult", "woman girl boy"), ("woman", "women", "person adult", "man boy girl")),
    *(("boy", "boys", "child person kid", "girl woman man"), ("girl", "girls", "child person kid", "boy man woman")),
    *(("lady", "ladies", "woman person", "man boy"), ("grandmother", "grandmothers", "woman person", "man child boy")),
    *(("grandfather", "grandfathers", "man person", "woman child girl"),),
    *(("gentleman", "gentlemen", "man person", "woman girl"), ("policeman", "policemen", "man person", "woman child")),
    *(("waitress", "waitresses", "woman person", "man boy"), ("father", "fathers", "man person", "woman girl")),
    *(("mother", "mothers", "woman person", "man boy"), ("bride", "brides", "woman person", "man boy groom")),
    *(("toddler", "toddlers", "child person", "adult grown-up"), ("king", "kings", "man person", "woman queen")),
    *(("couple", "couples", "", ""), ("teenager", "teenagers", "person", "toddler baby")),
)
_PLURALS = {"person": "people", "child": "children", "groom": "grooms"} | {one: many for one, many, *_ in _PEOPLE}
_COLORS = ["red", "blue", "green", "white", "black", "yellow", "brown", "pink", "orange", "purple", "gray"]
_CLOTHES = ["shirt", "hat", "coat", "dress", "jacket", "sweater", "scarf", "T-shirt", "cap", "vest", "apron", "uniform"]
_INDOORS = listed(
    "in a café,in the kitchen,in the living room,in a restaurant,in a large hall,in the library,in a hotel room"
    ",in a gym,in a supermarket,in a concert hall,in a bar,at the mall,in the shower,in the hall",
    ",",
)
_OUTDOORS = listed(
    "on a field,in the street,on the beach,in the park,on the street,on a mountain road,in the lake,in the sea"
    ",in the woods,in the mountains,on the coast,in the desert,on the bridge,in the zoo,at the lake,on a boat"
    ",by the river,on the pier,in the driveway,down a hill,at the pond,in the forest,in the yard,in the meadow"
    ",in front of the house,behind the house,in a field,through a parking lot,on the roadside",
    ",",
)
# Prepositions of where somebody is, not where somebody goes.
_POSITIONS = ("in ", "on ", "at ", "by ", "behind ")
_FEELINGS = listed("tired,hungry,happy,rich,in love,a doctor,a student,late,bored,famous,from Canada,married", ",")
_TIMES = ("", "", "", "", " on a sunny day", " at night", " in the morning", " in the rain", " while a dog watches")


@dataclass(frozen=True)
class Scene:
    """An action with wider words for it, its places, what nobody does at the same time, and what it leaves open."""

    doing: str
    wider: tuple[str, ...]
    places: tuple[str, ...]
    excluded: tuple[str, ...]
    left_open: tuple[str, ...]


@cache
def scenes() -> tuple[Scene, ...]:
    """Return the scenes of `texts/captions.txt`."""
    text = (Path(__file__).with_name("texts") / "captions.txt").read_text(encoding="utf-8")
    lines = [line.split("|") for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        Scene(line[0].strip(), *(tuple(one.strip() for one in part.split(";")) for part in line[1:])) for line in lines
    )


@dataclass(frozen=True)
class _Who:
    """Somebody in a caption: one or several, and how the caption and what is said of it name them."""

    noun: str
    wider: str
    excluded: str
    is_plural: bool
    told: str

    @property
    def be(self) -> str:
        return "are" if self.is_plural else "is"


def _draw_who(generator: random.Random) -> _Who:
    while True:
        one, many, wider, excluded = generator.choice(_PEOPLE[:4] if generator.random() < 0.6 else _PEOPLE)
        is_plural = generator.random() < 0.25
        if not wider:
            continue
        noun = many if is_plural else one
        quality = generator.choice(("", "", "", "young ", "smiling ", "tall ", "barefoot ", "curly-haired "))
        if one in ("toddler", "grandmother", "grandfather", "teenager") and quality == "young ":
            quality = ""
        number = generator.choice(("two", "three", "several", "a group of", "some"))
        told = f"{number} {quality}{noun}" if is_plural else with_article(f"{quality}{noun}")
        return _Who(noun, generator.choice(wider.split()), generator.choice(excluded.split()), is_plural, told)


def draw_caption(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a caption, and a statement about who, what, where or what is worn."""
    scene, who = generator.choice(scenes()), _draw_who(generator)
    if generator.random() < 0.4:
        return _draw_plain(label, scene, who, generator)
    place = generator.choice(scene.places) if generator.random() < 0.65 else ""
    color, cloth = generator.choice(_COLORS), generator.choice(_CLOTHES)
    if cloth == "dress" and _pronoun(who) == "he":
        cloth = "shirt"
    dressed = ""
    if generator.random() < 0.35:
        dressed = (
            f" in {color} {cloth}s" if who.is_plural and cloth != "dress" else f" in {with_article(f'{color} {cloth}')}"
        )
        if who.is_plural and cloth == "dress":
            dressed = " in dresses"
    when = generator.choice(_TIMES)
    if place not in _OUTDOORS or "watching" in scene.doing:
        when = ""
    premise = f"{who.told}{dressed} {who.be} {scene.doing}{' ' * bool(place)}{place}{when}"
    if generator.random() < 0.2:
        premise = f"there {who.be} {who.told}{dressed} {scene.doing}{' ' * bool(place)}{place}"
    if place and generator.random() < 0.12 and not when:
        premise = f"{place}, {who.told}{dressed} {who.be} {scene.doing}"
    said = _said(label, scene, who, place, generator)
    if dressed and not who.is_plural and generator.random() < 0.25:
        said = _worn(label, who, color, cloth, generator)
    elif label == "neutral" and not dressed and generator.random() < 0.15:
        said = [
            f"the {who.noun} {who.be} wearing {with_article(color)} {cloth}"
            if not who.is_plural
            else f"the {who.noun} are wearing {color} {cloth}s".replace("dresss", "dresses")
        ]
    hypothesis = choose(generator.choice(said), generator)
    if generator.random() < 0.12 and f"the {who.noun} " in hypothesis:
        pronoun = "they" if who.is_plural else _pronoun(who)
        hypothesis = hypothesis.replace(f"the {who.noun} ", f"{pronoun} ", 1)
    return SentencePair(premise, hypothesis, label, "", f"{scene.doing} {hypothesis.removeprefix(f'the {who.noun}')}")


def _draw_plain(label: Relation, scene: Scene, who: _Who, generator: random.Random) -> SentencePair | None:
    """Draw a statement that a premise tells, denies or does not speak of, so that none is of one label only."""
    some = [
        scene.doing,
        *scene.wider,
        *scene.excluded,
        *scene.left_open,
        *_FEELINGS,
        "indoors",
        "outdoors",
        *(one for one in scene.places if one.startswith(_POSITIONS)),
    ]
    other = generator.choice(scenes())
    told = generator.choice([*_FEELINGS, *other.left_open])
    said = generator.choice(some)
    if other is scene or told == said or " or " in said:
        return None
    if who.is_plural and (told.startswith(("a ", "an ", "the ")) or said.startswith(("a ", "an ", "the "))):
        return None
    subject, be, step = f"the {who.noun}", who.be, f"{told} {said}"
    no = generator.choice((" not", " not", "n't"))
    if label == "neutral":
        is_near = set(told.split()) & set(said.split()) - {"a", "the", "in", "on", "to"} or "alone" in said
        is_denied = generator.random() < 0.4
        if is_near or said in scene.excluded or (said in scene.doing and generator.random() < 0.3):
            said = generator.choice(("at home", "in the city", "on vacation", "sitting", "outdoors", "at work"))
        return SentencePair(
            f"{who.told} {be} {told}", f"{subject} {be}{no if is_denied else ''} {said}", label, "", step
        )
    is_denied = generator.random() < 0.4
    if generator.random() < 0.15 and said in (scene.doing, *scene.excluded):
        premise = f"{generator.choice(('everybody is watching', 'they are all silent'))}, and nobody is {said}"
        hypothesis = f"nobody is {said}" if label == "entailment" else f"{_some(who.noun, who)} {be} {said}"
        return SentencePair(premise, hypothesis, label, "", step)
    is_so = f"not {said}" if is_denied else said
    premise = generator.choice(
        (
            f"{who.told} who {be} {told} {be} {is_so}",
            f"{who.told} {be} {told} {'but' if is_denied else 'and'} {is_so}",
            f"although {subject} {be} {told}, {subject} {be} {is_so}",
        )
    )
    is_said_denied = is_denied is (label == "entailment")
    return SentencePair(premise, f"{subject} {be}{no if is_said_denied else ''} {said}", label, "", step)


def _pronoun(who: _Who) -> str:
    return "she" if who.noun in ("woman", "girl", "lady", "grandmother", "waitress", "mother", "bride") else "he"


def _some(noun: str, who: _Who) -> str:
    """Name one or several of a noun without a number."""
    if not who.is_plural:
        return with_article(noun)
    return who.noun if noun == who.noun else _PLURALS.get(noun, f"{noun}s")


def _said(label: Relation, scene: Scene, who: _Who, place: str, generator: random.Random) -> list[str]:
    """Return statements about who, what and where, with a label."""
    side = "indoors" if place in _INDOORS else "outdoors" if place in _OUTDOORS else ""
    opposite = {"indoors": "outdoors", "outdoors": "indoors"}.get(side, "")
    if label == "entailment":
        return _following(scene, who, place, (side, opposite), generator)
    if label == "contradiction":
        return _denying(scene, who, place, (side, opposite), generator)
    return _more(scene, who, place, generator)


def _following(scene: Scene, who: _Who, place: str, sides: tuple[str, str], generator: random.Random) -> list[str]:
    subject, some, wider = f"the {who.noun} {who.be}", _some(who.noun, who), _some(who.wider, who)
    besides = generator.choice([one for one in scene.wider if " or " not in one] or [scene.doing])
    no, person = generator.choice((" not", "n't")), "people are" if who.is_plural else "somebody is"
    found = [f"{one} {who.be} {doing}" for one in (wider, f"the {who.noun}") for doing in (scene.doing, besides)]
    found += [f"{subject} {besides}", f"{subject}{no} {generator.choice(scene.excluded)}", f"{person} {scene.doing}"]
    found += [f"there {who.be} {wider}", f"{some} {who.be} {besides}"]
    if place.startswith(_POSITIONS):
        found += [f"{subject} {place}", f"{some} {who.be} {place}", f"{wider} {who.be} {place}"]
    if sides[0]:
        found += [f"{subject} {sides[0]}", f"{subject}{no} {sides[1]}", f"{some} {who.be} {sides[0]}"]
    return found


def _denying(scene: Scene, who: _Who, place: str, sides: tuple[str, str], generator: random.Random) -> list[str]:
    subject, some, wider = f"the {who.noun} {who.be}", _some(who.noun, who), _some(who.wider, who)
    besides = generator.choice([one for one in scene.wider if " or " not in one] or [scene.doing])
    excluded, nobody = generator.choice(scene.excluded), generator.choice(("nobody", "no one"))
    found = [*[f"{subject} {excluded}"] * 3, f"{some} {who.be} {excluded}", f"{wider} {who.be} {excluded}"]
    found += [f"{nobody} is {doing}" for doing in (scene.doing, besides)]
    found += [f"{subject} not {doing}" for doing in (scene.doing, besides, *[place] * place.startswith(_POSITIONS))]
    found.append(f"{_some(who.excluded, who)} {who.be} {scene.doing}")
    if sides[0]:
        away = _OUTDOORS if sides[0] == "indoors" else _INDOORS
        elsewhere = generator.choice([one for one in away if one.startswith(_POSITIONS)])
        found += [f"{subject} {sides[1]}", f"{subject} {sides[1]}", f"{subject} not {sides[0]}"]
        found += [f"{subject} {elsewhere}", f"{some} {who.be} {scene.doing} {elsewhere}"]
    return found


def _more(scene: Scene, who: _Who, place: str, generator: random.Random) -> list[str]:
    subject, friends = f"the {who.noun} {who.be}", "friends" if who.is_plural else "a friend"
    found = [f"{subject} {scene.doing} with {friends}"]
    for more in (generator.choice(scene.left_open), generator.choice(_FEELINGS)):
        if not (who.is_plural and more.startswith(("a ", "an ", "the "))):
            found += [f"{subject} {more}", f"{subject} {more}", f"{subject} not {more}"]
    if not place:
        there = generator.choice(scene.places)
        found += [f"{subject} {there}"] * there.startswith(_POSITIONS) + [f"{subject} {scene.doing} {there}"]
    return found


def _worn(label: Relation, who: _Who, color: str, cloth: str, generator: random.Random) -> list[str]:
    other = generator.choice([one for one in _COLORS if one != color])
    subject = f"the {who.noun}"
    return {
        "entailment": [
            *(
                f"{subject} is wearing {with_article(color)} {cloth}",
                f"{subject} has a {cloth} on",
                f"{subject} is wearing {color}",
            ),
            *(f"the {who.noun}'s {cloth} is {color}", f"{subject}'s {cloth} is not {other}"),
        ],
        "contradiction": [
            *(f"{subject} is wearing {with_article(other)} {cloth}", f"the {who.noun}'s {cloth} is {other}"),
            *(f"{subject} is not wearing a {cloth}", f"{subject} is completely naked"),
        ],
        "neutral": [
            *(
                f"{subject} is wearing {other} shoes",
                f"{subject} likes {color}",
                f"{subject}'s {cloth} is [new|old|expensive]",
            ),
            *(f"{subject} is wearing glasses", f"{subject} bought the {cloth} [yesterday|in Rome|for a party]"),
        ],
    }[label]
