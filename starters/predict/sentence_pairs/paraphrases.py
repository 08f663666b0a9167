"""Sentence pairs that say the same in other words, or leave a part out, exchange it or add one."""

import random

from starters.predict.everyday.words import MEN, THINGS, WOMEN, listed
from starters.predict.sentence_pairs.frames import SentencePair, is_unclear, person, with_article
from starters.predict.sentence_pairs.taxonomies import Relation, taxonomy

# Sentences about a first and a second thing; each in the active and the passive voice.
_PASSIVES = (
    ("chased", "chased"),
    ("saw", "seen"),
    ("followed", "followed"),
    ("pushed", "pushed"),
    ("helped", "helped"),
    ("carried", "carried"),
    ("painted", "painted"),
    ("called", "called"),
    ("invited", "invited"),
    ("found", "found"),
    ("caught", "caught"),
    ("bit", "bitten"),
    ("wrote", "written"),
    ("built", "built"),
    ("repaired", "repaired"),
    ("ate", "eaten"),
    ("broke", "broken"),
    ("washed", "washed"),
    ("bought", "bought"),
    ("stole", "stolen"),
    ("cooked", "cooked"),
    ("cleaned", "cleaned"),
    ("took", "taken"),
    ("kissed", "kissed"),
)
_SAME = (
    ("{s} bought {x}", "{s} purchased {x}"),
    ("{s} began to {do}", "{s} started {doing}"),
    ("{s} is {doing}", "{s} {does}"),
    ("{s} phoned {o}", "{s} called {o}"),
    ("{s} is unable to {do}", "{s} cannot {do}"),
    ("{s} talked to {o}", "{s} spoke with {o}"),
    ("{s} is fond of {o}", "{s} likes {o}"),
    ("{s} assisted {o}", "{s} helped {o}"),
    ("{s} is at home", "{s} is in the house"),
    ("{s} is the owner of {x}", "{x} belongs to {s}"),
    ("{s} owns {x}", "{s} has {x}"),
    ("{s} repaired {x}", "{s} fixed {x}"),
    ("{s} is the only one who {does}", "nobody else {does}"),
    ("{s} got up early", "{s} got out of bed early"),
    ("{s} arrived late", "{s} was not on time"),
    ("{s} moved from London to Paris", "{s} lives in Paris now"),
    ("{s} came home from work", "{s} is back from work"),
    ("{s} needs {x}", "{s} requires {x}"),
    ("{s} is quick", "{s} is fast"),
)
_DOING = (
    "run running runs",
    "sing singing sings",
    "sleep sleeping sleeps",
    "cook cooking cooks",
    "swim swimming swims",
    "dance dancing dances",
    "work working works",
)


def draw_paraphrase(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw the same in other words, with something left out, exchanged or added."""
    if generator.random() < 0.55:
        return _draw_details(label, generator)
    (one, _), two = person(generator), generator.choice(WOMEN + MEN)
    one = one.replace("a ", "the ", 1) if one.startswith("a ") else one
    thing = f"the {generator.choice(THINGS)[1]}"
    do, doing, does = generator.choice(_DOING).split(" ")
    if generator.random() < 0.5:
        verb, passive = generator.choice(_PASSIVES)
        whom = (
            two
            if verb in ("chased", "saw", "followed", "pushed", "helped", "called", "invited", "caught", "bit", "kissed")
            else thing
        )
        active, passive_text = f"{one} {verb} {whom}", f"{whom} was {passive} by {one}"
        told, same = (active, passive_text) if generator.random() < 0.7 else (passive_text, active)
        if label == "entailment":
            return SentencePair(
                told, same if generator.random() < 0.8 else f"{whom} was {passive}", label, "it says the same"
            )
        if label == "contradiction":
            return SentencePair(
                told,
                same.replace(f"{whom} was ", f"{whom} was not ")
                if " was " in same
                else f"{whom} was not {passive} by {one}",
                label,
                "it is denied",
            )
        verb2 = generator.choice([one_ for one_ in _PASSIVES if one_[0] != verb])
        return SentencePair(told, f"{one} {verb2[0]} {whom}", label, "that is not told")
    first, second = (
        text.format(s=one, o=two, x=thing, do=do, doing=doing, does=does) for text in generator.choice(_SAME)
    )
    if label == "entailment":
        return SentencePair(
            *((first, second) if generator.random() < 0.5 or "moved" in first else (second, first)),
            label,
            "it says the same",
        )
    if label == "neutral":
        other = generator.choice(_SAME)[generator.randrange(2)].format(
            s=one, o=two, x=thing, do=do, doing=doing, does=does
        )
        return None if other in (first, second) else SentencePair(first, other, label, "that is not told")
    return SentencePair(first, f"it is not true that {second}", label, "it is denied")


_UNTOLD = ("tired", "happy", "with a friend", "late", "rich", "waiting for a friend")


_COLORS = listed("red blue green white black yellow brown")
_CLOTHES = listed("shirt hat coat dress jacket sweater scarf")


def _draw_details(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a sentence with person, clothes, action, place and time, and one with a part of it left out or changed."""
    who, doing, place, hour = (
        generator.choice(taxonomy(name).words) for name in ("people", "activities", "places", "hours")
    )
    color, cloth = generator.choice(_COLORS), generator.choice(_CLOTHES)
    quality = generator.choice(("", "", "", "young ", "old ", "tall "))
    has_place, has_cloth, has_hour = generator.random() < 0.7, generator.random() < 0.4, generator.random() < 0.3
    dressed = f" in {with_article(f'{color} {cloth}')}" if has_cloth else ""
    where, when = f" {place}" if has_place else "", f" {hour}" if has_hour else ""
    parts: list[tuple[Relation, str, str]] = [
        ("entailment", f"there is {with_article(who)}{where}", "something left out"),
        ("contradiction", f"{{S}} is not {doing}", "a denial"),
        ("contradiction", f"nobody is {doing}", "a denial"),
    ]
    for _ in range(3):
        relation, said = _changed("activities", doing, generator)
        if relation != "contradiction" or not is_unclear(doing, said):
            parts.append((relation, f"{{S}} is {said}", f"{doing} and {said}"))
        relation, said = _changed("people", who, generator)
        parts.append((relation, f"{with_article(said)} is {doing}", f"{who} and {said}"))
        relation, said = _changed("places", place, generator)
        parts.append((relation if has_place else "neutral", f"{{S}} is {said}", f"{place} and {said}"))
        said = generator.choice((*_COLORS, *[color] * 4))
        relation = ("entailment" if said == color else "contradiction") if has_cloth else "neutral"
        parts.append((relation, f"{{S}} is wearing {with_article(f'{said} {cloth}')}", f"{color} and {said}"))
        parts.append(("neutral", f"{{S}} is {generator.choice(_UNTOLD)}", "more than is told"))
    fitting = [part for part in parts if part[0] == label]
    if not fitting:
        return None
    _, hypothesis, compared = generator.choice(fitting)
    told = f"{with_article(quality + who)}{dressed} is {doing}{where}{when}"
    reason = f"{compared} agree" if label == "entailment" else f"the two differ in {compared}"
    return SentencePair(told, hypothesis.replace("{S}", f"the {who}"), label, reason)


def _changed(name: str, told: str, generator: random.Random) -> tuple[Relation, str]:
    """Draw a word beside another one of a taxonomy, often a wider or a narrower one, and their relation."""
    words = taxonomy(name)
    said = generator.choice((told, *words.wider[told], *words.narrower[told], generator.choice(words.words)))
    return words.relation(told, said), said
