"""Sentence pairs about a place in a place, the way from one to another, and things that were moved."""

import random
from collections.abc import Mapping

from starters.predict.everyday.words import listed
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.balance import Words, draw_balanced, pairs_of
from starters.predict.sentence_pairs.handwritten.logic import draw_named, draw_person
from starters.predict.sentence_pairs.handwritten.predicates import plural
from starters.predict.sentence_pairs.taxonomies import Relation

# Wholes, their parts with a preposition, and things that may lie there.
_WHOLES: Mapping[str, tuple[str, ...]] = {
    "the hotel": ("in the kitchen", "in the lobby", "on the roof", "in the bar", "in the elevator", "at the reception"),
    "the school": ("in the gym", "in the library", "in the cafeteria", "in the hallway", "in the basement"),
    "the hospital": ("in the waiting room", "in the garden", "on the top floor", "in the parking lot", "in the chapel"),
    "the museum": ("in the shop", "in the main hall", "in the café", "in the cellar", "at the entrance"),
    "the ship": ("on the deck", "in the engine room", "in the dining room", "in a cabin", "on the bridge"),
    "the house": ("in the attic", "in the living room", "on the balcony", "in the bathroom", "in the cellar"),
    "the train": ("in the dining car", "in the last car", "in the first car", "in the toilet"),
    "the castle": ("in the tower", "in the courtyard", "in the dungeon", "in the throne room"),
    "the station": ("on the platform", "in the waiting room", "in the newsstand", "at the ticket counter"),
    "the office": ("in the meeting room", "in the copy room", "in the kitchen", "at the front desk"),
    "the park": ("in the playground", "at the pond", "under a tree", "on a bench", "at the fountain"),
    "the farm": ("in the barn", "in the stable", "in the henhouse", "in the dairy"),
    "the stadium": ("in the locker room", "on the field", "in the front row", "at the snack bar"),
    "the airport": ("at the gate", "in the restaurant", "at the check-in desk", "in the duty-free shop"),
    "the library": ("in the reading room", "at the information desk", "on the second floor", "in the archive"),
    "the zoo": ("in the monkey house", "at the penguin pool", "in the aquarium", "at the lion cage"),
}
_TOWNS = listed(
    "Lisbon Oslo Vienna Dublin Prague Boston Chicago Tokyo Cairo Athens Madrid Milan Lyon Hamburg Zurich Warsaw"
    " Lima Toronto Seoul Delhi Sydney Helsinki Naples Budapest Nairobi Bangkok Denver Seattle Porto Geneva"
    " Krakow Cologne"
)
_ITEMS = listed(
    "the key,the milk,the letter,my phone,the ball,her ring,the book,the cake,the map,his wallet,the ticket"
    ",the lamp,the hat,the umbrella,the vase,the bread,the medicine,the camera,the knife,the glasses,the doll"
    ",the watch,the suitcase",
    ",",
)
_SPOTS = listed(
    "in the drawer,on the table,under the bed,in the fridge,behind the sofa,on the shelf,in the car"
    ",in the closet,on the roof,in the garage,in the bathroom,on the balcony,in the mailbox,on the piano"
    ",in the backpack,next to the television,in the safe,in the oven,under the pillow,on the windowsill"
    ",in the trash can,in the garden,in the box,on the stairs",
    ",",
)
_HOLDERS = ["box", "drawer", "bag", "suitcase", "cupboard", "basket", "envelope", "backpack", "safe", "chest"]
_STANDS = listed(
    "in the kitchen,in the cellar,in the attic,in the car,in the garage,in the bedroom,in the garden,in the office", ","
)


def draw_nesting(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw where somebody or something is, was or went."""
    topic = generator.choice(("whole", "whole", "way", "item", "item"))
    return draw_balanced(pairs_of(topic), _WORDS[topic], label, generator)


def _whole(generator: random.Random) -> Words:
    subject = draw_person(generator, is_marked=False)
    whole, other = generator.sample(list(_WHOLES), 2)
    part, second = generator.sample(_WHOLES[whole], 2)
    elsewhere = generator.choice(_WHOLES[other])
    be = generator.choice(("is", "was", "is waiting", "is standing", "is working", "was seen"))
    short = "was" if be.startswith("was") else "is"
    inside = {"the train": "on", "the ship": "on", "the farm": "on", "the park": "in", "the castle": "in"}
    at = f"{inside.get(whole, 'at')} {whole}"
    if subject.is_plural:
        be, short = plural(be), plural(short)
    away = f"{inside.get(other, 'at')} {other}"
    return {
        **{"whole": whole, "part": part, "second": second, "elsewhere": elsewhere, "other": other, "be": be, "at": at},
        **{"short": short, "told": subject.told, "said": subject.said, "place": f"{part} of {whole}", "away": away},
    }


def _way(generator: random.Random) -> Words:
    subject = draw_person(generator, is_marked=False)
    told, said = subject.told, subject.said
    start, end, other = generator.sample(_TOWNS, 3)
    went = generator.choice(("flew", "drove", "moved", "traveled", "took the train", "went", "cycled", "walked"))
    does, does_not = ("live", "do not live") if subject.is_plural else ("lives", "does not live")
    have = "have" if subject.is_plural else "has"
    verbs = ("was", "has", "likes", "works")
    return {
        **{"told": told, "said": said, "start": start, "end": end, "other": other, "went": went},
        **{"does": does, "does_not": does_not, "have": have},
        **{verb: plural(verb) if subject.is_plural else verb for verb in verbs},
    }


def _item(generator: random.Random) -> Words:
    item, another = generator.sample(_ITEMS, 2)
    spot, elsewhere = generator.sample(_SPOTS, 2)
    holder, stand = generator.choice(_HOLDERS), generator.choice(_STANDS)
    away = generator.choice([one for one in _STANDS if one != stand])
    friend = draw_named(generator).told
    if item == "the glasses" or another == "the glasses":
        item, another = "the key", "the book"
    put = generator.choice(("put", "laid", "left", "hid", "found", "saw", "placed"))
    return {
        **{"item": item, "another": another, "spot": spot, "elsewhere": elsewhere, "holder": holder, "stand": stand},
        **{"away": away, "told": draw_person(generator, is_marked=False).told, "put": put, "friend": friend},
    }


_WORDS = {"whole": _whole, "way": _way, "item": _item}
