"""Sentence pairs about how many of some do something: all, most, some, none, both, at least, and their kinds."""

import random

from starters.predict.everyday.naming import number_words
from starters.predict.everyday.words import MEN, THINGS, WOMEN, listed
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.balance import Words, draw_balanced, pairs_of
from starters.predict.sentence_pairs.handwritten.doings import doings
from starters.predict.sentence_pairs.handwritten.predicates import conjugated
from starters.predict.sentence_pairs.taxonomies import Relation

# Plural nouns with a wider and two narrower ones.
_KINDS = (
    *(("dogs", "animals", "poodles", "puppies"), ("birds", "animals", "parrots", "owls")),
    *(("children", "people", "boys", "girls"), ("students", "people", "math students", "first-year students")),
    *(("flowers", "plants", "roses", "tulips"), ("cars", "vehicles", "taxis", "sports cars")),
    *(("teachers", "people", "math teachers", "music teachers"), ("adults", "people", "women", "men")),
    *(("musicians", "artists", "pianists", "drummers"), ("athletes", "people", "swimmers", "gymnasts")),
    *(("trees", "plants", "oaks", "palm trees"), ("tools", "things", "hammers", "saws")),
    *(("shoes", "things", "boots", "sandals"), ("doctors", "people", "surgeons", "eye doctors")),
    *(("cats", "animals", "kittens", "black cats"), ("books", "things", "novels", "cookbooks")),
    *(("horses", "animals", "ponies", "white horses"), ("soldiers", "people", "officers", "young soldiers")),
    *(("guests", "people", "French guests", "guests from Rome"), ("fish", "animals", "trout", "sharks")),
    *(("houses", "buildings", "cottages", "villas"), ("cakes", "desserts", "chocolate cakes", "birthday cakes")),
)
_STATES = (
    *("are heavy", "are in the garden", "are wet", "are for sale", "are old", "are dirty", "were lost"),
    *(
        "are in the house",
        "are expensive",
        "are beautiful",
        "were saved",
        "are very big",
        "are missing",
        "are dangerous",
    ),
    *("were sold yesterday", "are outside", "are on the bus", "are from Spain", "were photographed", "are new"),
)
_MINDS = (
    *("passed the exam", "can swim", "are dancing", "like cheese", "came by train", "speak Italian", "were late"),
    *("are married", "are laughing", "left early", "have a bicycle", "are hungry", "won a prize", "voted", "are sick"),
    *("wear glasses", "play chess", "stayed at home", "live in the city", "signed the letter", "were invited"),
)
_ALL = ("all {n}", "all the {n}", "all of the {n}", "every one of the {n}", "each of the {n}", "the {n} all")
_MOST = ("most {n}", "most of the {n}", "the majority of the {n}", "more than half of the {n}")
_SOME = ("some {n}", "some of the {n}", "several {n}", "a few of the {n}", "at least some {n}", "a number of {n}")
_NONE = ("no {n}", "none of the {n}", "not a single one of the {n}", "not one of the {n}", "none of these {n}")
_HALF = ("half of the {n}", "exactly half of the {n}", "only half of the {n}")
_FEW = ("only a few of the {n}", "only some of the {n}", "hardly any of the {n}")
_NOT_ALL = ("not all {n}", "not all of the {n}", "not every one of the {n}")
_SHARES: tuple[tuple[tuple[str, ...], tuple[str, ...], Relation], ...] = (
    *((_ALL, _SOME, "entailment"), (_ALL, _MOST, "entailment"), (_MOST, _SOME, "entailment")),
    *((_HALF, _SOME, "entailment"), (_NONE, _NOT_ALL, "entailment"), (_HALF, _NOT_ALL, "entailment")),
    *((_FEW, _NOT_ALL, "entailment"), (_ALL, _ALL, "entailment"), (_NONE, _NONE, "entailment")),
    *((_FEW, _SOME, "entailment"),),
    *((_ALL, _NONE, "contradiction"), (_NONE, _ALL, "contradiction"), (_NONE, _SOME, "contradiction")),
    *((_SOME, _NONE, "contradiction"), (_ALL, _NOT_ALL, "contradiction"), (_NOT_ALL, _ALL, "contradiction")),
    *((_MOST, _NONE, "contradiction"), (_NONE, _MOST, "contradiction"), (_HALF, _ALL, "contradiction")),
    *((_HALF, _NONE, "contradiction"), (_HALF, _MOST, "contradiction"), (_FEW, _ALL, "contradiction")),
    *((_FEW, _MOST, "contradiction"), (_ALL, _HALF, "contradiction"), (_MOST, _FEW, "contradiction")),
    *((_SOME, _ALL, "neutral"), (_SOME, _MOST, "neutral"), (_MOST, _ALL, "neutral"), (_SOME, _HALF, "neutral")),
    *((_NOT_ALL, _NONE, "neutral"), (_NOT_ALL, _MOST, "neutral"), (_SOME, _NOT_ALL, "neutral")),
)
# What is true of all of a kind is true of its narrower kinds, and so on: whether the wider noun is told.
_KIND_STEPS: tuple[tuple[tuple[str, ...], tuple[str, ...], str, Relation], ...] = (
    *((_ALL, _ALL, "down", "entailment"), (_NONE, _NONE, "down", "entailment"), (_SOME, _SOME, "up", "entailment")),
    *(
        (_ALL, _NONE, "down", "contradiction"),
        (_NONE, _SOME, "down", "contradiction"),
        (_NONE, _ALL, "down", "contradiction"),
    ),
    *((_SOME, _NONE, "up", "contradiction"), (_ALL, _NOT_ALL, "down", "contradiction")),
    *((_ALL, _ALL, "up", "neutral"), (_SOME, _SOME, "down", "neutral"), (_NONE, _NONE, "up", "neutral")),
    *((_SOME, _ALL, "down", "neutral"), (_ALL, _ALL, "side", "neutral"), (_SOME, _NONE, "side", "neutral")),
)


def draw_part(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw how many of some do something."""
    way = generator.random()
    if way < 0.4:
        return draw_balanced(pairs_of("objects"), _objects, label, generator)
    noun, wider, *narrower = generator.choice(_KINDS)
    is_alive = wider in ("people", "artists")
    does = generator.choice(_MINDS if is_alive else _STATES)
    if way < 0.7:
        told, said, _ = generator.choice([one for one in _SHARES if one[2] == label])
        first = second = noun
    else:
        told, said, step, _ = generator.choice([one for one in _KIND_STEPS if one[3] == label])
        small = generator.choice(narrower)
        first, second = {"down": (noun, small), "up": (small, noun), "side": tuple(narrower)}[step]
    premise, hypothesis = generator.choice(told).format(n=first), generator.choice(said).format(n=second)
    if premise == hypothesis:
        return None
    return SentencePair(_agreeing(premise, does), _agreeing(hypothesis, does), label, "", f"{premise} {hypothesis}")


def _agreeing(some: str, does: str) -> str:
    """Write the plural predicate `does` after its subject, in the singular if that is one of many."""
    if not some.startswith(("every one", "each", "not a single", "not one", "not every one")):
        return f"{some} {does}"
    verb, _, rest = does.partition(" ")
    one = {"are": "is", "were": "was", "have": "has", "can": "can", "passed": "passed", "came": "came", "left": "left"}
    past = ("won", "voted", "stayed", "signed")
    form = one.get(verb) or (verb if verb in past else f"{verb}s")
    return f"{some} {form} {rest}".strip()


_PLURAL_WORDS = ("several", "many", "a lot of", "lots of", "plenty of", "dozens of", "numerous")


def _objects(generator: random.Random) -> Words:
    """Draw the words of how many things somebody has or a box holds."""
    things, one = generator.choice(THINGS)
    others, other = generator.choice(THINGS)
    name, friend = generator.sample(WOMEN + MEN, 2)
    if others == things:
        others, other = "coins", "coin"
    low, high = sorted(generator.sample(range(2, 15), 2))
    low_word, high_word = (number_words(n) if generator.random() < 0.7 else f"{n}" for n in (low, high))
    many = generator.choice(_PLURAL_WORDS)
    has = generator.choice(("has", "bought", "found", "saw", "sold", "needs", "is carrying", "can see", "ate", "drew"))
    box = generator.choice(("the box", "the basket", "the drawer", "the bag", "the room", "the cupboard", "the cellar"))
    noun = generator.choice(("man", "woman", "child", "dog", "student", "nurse", "player", "guest", "cat", "cow"))
    nouns = {"man": "men", "woman": "women", "child": "children"}.get(noun, f"{noun}s")
    return {
        **{"things": things, "one": one, "others": others, "other": other, "name": name, "friend": friend},
        **{"low_word": low_word, "high_word": high_word, "many": many, "has": has, "have": _plural(has)},
        **{"not_has": f"{name} {_negative(has)}", "box": box, "noun": noun, "nouns": nouns},
    }


def _negative(has: str) -> str:
    return {
        **{"has": "does not have", "needs": "does not need", "is carrying": "is not carrying", "ate": "did not eat"},
        **{"bought": "did not buy", "found": "did not find", "saw": "did not see", "sold": "did not sell"},
        **{"can see": "cannot see", "drew": "did not draw"},
    }[has]


def _plural(has: str) -> str:
    return {"has": "have", "needs": "need", "is carrying": "are carrying"}.get(has, has)


_GROUPS = listed("students children guests players nurses tourists workers neighbors soldiers girls boys")


def draw_number_of_doers(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw how many of a group did something."""
    doing, nouns = generator.choice(doings()), generator.choice(_GROUPS)
    if "{" in doing:
        return None
    told, said, _ = generator.choice([one for one in _SHARES if one[2] == label])
    past = conjugated(doing, "past")
    premise, hypothesis = (generator.choice(some).format(n=nouns) for some in (told, said))
    return (
        None
        if premise == hypothesis
        else SentencePair(f"{premise} {past}", f"{hypothesis} {past}", label, "", f"{premise} {hypothesis}")
    )
