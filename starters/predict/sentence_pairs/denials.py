"""Sentence pairs that deny something, and those about a part of a whole."""

import random

from starters.predict.everyday.naming import choose
from starters.predict.everyday.words import PEOPLES, THINGS, listed
from starters.predict.sentence_pairs.frames import SentencePair, person
from starters.predict.sentence_pairs.taxonomies import Relation, quality_groups

# Pairs of a sentence and its denial, with words of open classes.
_DENIED = (
    ("{s} can {can}", "{s} [cannot|can't|is unable to] {can}"),
    ("{s} likes {things}", "{s} [does not like|doesn't like|hates] {things}"),
    ("{s} [has a|owns a] {thing}", "{s} [does not have|doesn't have|does not own] a {thing}"),
    ("there is [some|] {stuff} in the fridge", "there is no {stuff} in the fridge"),
    ("there [is a|is one] {thing} on the table", "there is no {thing} on the table"),
    ("there are {things} in the box", "there are no {things} in the box"),
    ("[somebody|someone] is in the house", "[nobody|no one] is in the house"),
    ("something is in the box", "[nothing is in the box|the box is empty]"),
    (
        "[everybody|everyone|all the guests] came to the party",
        "[nobody|no one|not everyone|none of the guests] came to the party",
    ),
    ("{s} [drinks|takes] coffee with {stuff}", "{s} [drinks|takes] coffee without {stuff}"),
    ("{s} {did} the {thing}", "{s} did not {do} the {thing}"),
    ("{s} {did} the {thing}", "{s} never {did} the {thing}"),
    ("{s} will come [tomorrow|to the party|today]", "{s} [will not|won't] come [tomorrow|to the party|today]"),
    ("{s} is {q}", "{s} is not {q}"),
    ("{s} was {q}", "{s} [was not|wasn't] {q}"),
    ("the {thing} works", "the {thing} [does not work|doesn't work|is broken]"),
    ("{s} eats meat", "{s} [is a vegetarian|does not eat meat|never eats meat]"),
    ("{s} speaks {tongue}", "{s} [does not|doesn't] speak {tongue}"),
    ("{s} knows the answer", "{s} [does not know|doesn't know] the answer"),
    ("{s} smokes", "{s} [does not smoke|doesn't smoke|has stopped smoking|never smokes]"),
    ("it is raining", "[it is not raining|it isn't raining|it is dry outside]"),
    ("{s} is [at home|here|in town]", "{s} is not [at home|here|in town]"),
    ("the door is locked", "the door is [not locked|unlocked]"),
    ("{s} passed the exam", "{s} [failed the exam|did not pass the exam]"),
    ("{s} [remembered|managed] to {do} the {thing}", "{s} [forgot|failed] to {do} the {thing}"),
    ("{s} agreed to {do} the {thing}", "{s} refused to {do} the {thing}"),
    ("{s} has finished the {thing}", "{s} has not finished the {thing}"),
    ("it is true that {s} is {q}", "it is not true that {s} is {q}"),
)
_VERBS = listed(
    "buy bought,sell sold,find found,lose lost,see saw,break broke,repair repaired"
    ",open opened,close closed,clean cleaned,take took,hide hid,steal stole,paint painted,carry carried"
    ",bring brought,throw threw,wash washed",
    ",",
)
_CAN = listed(
    "swim,dance,drive a car,play the piano,speak French,cook,ride a bike,read,ski,sing,fly a plane,run fast,paint", ","
)
_STUFF = listed("milk,sugar,butter,water,cheese,bread,juice,honey,rice,beer,cream,ham", ",")
_TONGUES = listed("French,German,Spanish,Italian,English,Chinese,Russian,Arabic,Japanese", ",")


def _spoken(generator: random.Random) -> dict[str, str]:
    verb, past = generator.choice(_VERBS).split(" ")
    things, thing = generator.choice(THINGS)
    quality = generator.choice(generator.choice(quality_groups("person")).words)
    return {
        **{"s": person(generator)[1], "things": things, "thing": thing, "do": verb, "did": past, "q": quality},
        **{"can": generator.choice(_CAN), "stuff": generator.choice(_STUFF), "tongue": generator.choice(_TONGUES)},
    }


def draw_denial(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a sentence and its denial, the denial twice in other words"
    ", or a denial that leaves the hypothesis open."""
    words = _spoken(generator)
    templates = generator.choice(_DENIED)
    plain, denial = (choose(text, generator).format(**words) for text in templates)
    if label == "contradiction":
        pair = (plain, denial) if generator.random() < 0.5 else (denial, plain)
        if templates[0].startswith("[everybody") and pair[0] == plain and "came" not in pair[1]:
            return None
        return SentencePair(*pair, label, f"that {plain} is denied")
    if label == "entailment":
        which = generator.randrange(2)
        again = choose(templates[which], generator).format(**words)
        first = (plain, denial)[which]
        if "guests" in first + again or "everyone" in first + again or (first == again and generator.random() < 0.6):
            return None
        return SentencePair(first, again, label, "it says the same")
    other_words = {**_spoken(generator), "s": words["s"] if generator.random() < 0.7 else _spoken(generator)["s"]}
    others = [pair for pair in _DENIED if pair is not templates]
    said = choose(generator.choice(generator.choice(others)), generator).format(**other_words)
    return SentencePair(generator.choice((plain, denial)), said, label, "that is not told")


_PARTS = (
    "are happy",
    "passed the test",
    "are wearing hats",
    "can swim",
    "came by bus",
    "like pizza",
    "are in the garden",
    "are asleep",
    "speak French",
    "won a prize",
)
_ALL = ("all {p}", "every one of the {p}", "all of the {p}")
_SOME = ("some {p}", "some of the {p}", "a few {p}", "several {p}")
_NONE = ("no {p}", "none of the {p}")
_MOST = ("most {p}", "most of the {p}", "many {p}")


def draw_share(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a part of a whole: all, most, some or none."""
    (peoples, _), part = generator.choice(PEOPLES), generator.choice(_PARTS)
    said_part = generator.choice([one for one in _PARTS if one != part])
    pairs = {
        "entailment": ((_ALL, _SOME), (_ALL, _MOST), (_MOST, _SOME), (_ALL, _ALL), (_NONE, _NONE), (_SOME, _SOME)),
        "contradiction": ((_ALL, _NONE), (_NONE, _ALL), (_NONE, _SOME), (_SOME, _NONE), (_NONE, _MOST), (_MOST, _NONE)),
        "neutral": ((_SOME, _ALL), (_SOME, _MOST), (_MOST, _ALL)),
    }
    told, said = (
        generator.choice(some).format(p=f"the {peoples}" if False else peoples)
        for some in generator.choice(pairs[label])
    )
    if label == "neutral" and generator.random() < 0.4:
        return SentencePair(f"{told} {part}", f"{said} {said_part}", label, "that is not told")
    if label == "contradiction" and told.startswith("all") and generator.random() < 0.3:
        said = f"not all {peoples}"
    return SentencePair(f"{told} {part}", f"{said} {part}", label, f"{told} is compared with {said}")
