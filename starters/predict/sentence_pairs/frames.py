"""Sentence pairs about qualities, kinds, actions and people: the words of both sentences compared by taxonomies."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from starters.predict.everyday.words import MEN, WOMEN
from starters.predict.sentence_pairs.taxonomies import (
    SUBJECTS,
    Relation,
    Taxonomy,
    quality_groups,
    taxonomy,
    wordnet_kinds,
)

MAX_TRIES = 60
# Words of which not to be one is to be the other.
OPPOSITES = (
    *(
        {"open", "closed"},
        {"open", "shut"},
        {"on", "off"},
        {"alive", "dead"},
        {"awake", "asleep"},
        {"awake", "sleeping"},
    ),
    *({"switched on", "switched off"}, {"broken", "working"}, {"early", "late"}, {"wet", "dry"}, {"clean", "dirty"}),
    *({"married", "single"}, {"healthy", "ill"}, {"indoors", "outdoors"}, {"inside", "outside"}, {"safe", "dangerous"}),
)


@dataclass(frozen=True)
class SentencePair:
    """A premise and a hypothesis without full stops, the label, its reason if known, and what it is held out by."""

    premise: str
    hypothesis: str
    label: Relation
    reason: str
    step: str = ""


@dataclass(frozen=True)
class Frame:
    """Sentences about `{s}` and `{x}`, and their negations; `{S}` is the subject of the hypothesis.

    If a frame is not `is_exclusive`, several words may be true together: who owns a dog may own a cat.
    """

    premise: str
    hypothesis: str
    denied_premise: str | None = None
    denied_hypothesis: str | None = None
    is_exclusive: bool = True


def with_article(words: str) -> str:
    """Put "a" or "an" before words."""
    is_vowel = words[0].lower() in "aeiou" and not words.startswith(("uni", "one", "uku", "use", "Euro"))
    return f"an {words}" if is_vowel or words.startswith("hour") else f"a {words}"


def _is_frames(verb: str = "is") -> tuple[Frame, ...]:
    past = "was" if verb == "is" else verb
    return (
        Frame("{s} is {x}", "{S} is {x}", "{s} is not {x}", "{S} is not {x}"),
        Frame("{s} is {x}", "{S} is {x}", "{s} isn't {x}", "{S} isn't {x}"),
        Frame(f"{{s}} {past} {{x}}", f"{{S}} {past} {{x}}", f"{{s}} {past} not {{x}}", f"{{S}} {past} not {{x}}"),
    )


def judged(words: Taxonomy, told: str, said: str, *, is_told: bool, is_said: bool, is_exclusive: bool) -> Relation:
    """Label of a statement that something is, or is not, `said`, after one that it is, or is not, `told`."""
    relation = words.relation(told, said)
    if is_told:
        if relation == "contradiction" and not is_exclusive:
            relation = "neutral"
        if is_said or relation == "neutral":
            return relation
        return "contradiction" if relation == "entailment" else "entailment"
    is_within = words.relation(said, told) == "entailment"
    if is_said and is_exclusive and {told, said} in OPPOSITES:
        return "entailment"
    if not is_within:
        return "neutral"
    return "contradiction" if is_said else "entailment"


def reason_of(told: str, said: str, label: Relation, *, is_told: bool, is_said: bool) -> str:
    """Write the step from the words of a premise to those of a hypothesis."""
    first, second = told if is_told else f"not {told}", said if is_said else f"not {said}"
    if first == second:
        return f"{said} is what is told"
    link = {"entailment": "is", "contradiction": "cannot be", "neutral": "may be or not be"}[label]
    return f"what is {first} {link} {second}"


# Actions that go with many others.
_TOGETHER = (
    "sitting",
    "talking",
    "laughing",
    "crying",
    "waiting",
    "working",
    "standing",
    "shouting",
    "whispering",
    "traveling",
)


def is_unclear(told: str, said: str) -> bool:
    """Whether two actions may be done at the same time: one may sit and read."""
    some = (told, said)
    return any(one.startswith(_TOGETHER) for one in some) and not any(
        one.startswith(("sleep", "asleep", "run")) for one in some
    )


def draw_by_frames(
    words: Taxonomy, frames: Sequence[Frame], subject: tuple[str, str], label: Relation, generator: random.Random
) -> SentencePair | None:
    """Draw a pair with a label from a taxonomy and its frames; `subject` is that of premise and hypothesis."""
    for _ in range(MAX_TRIES):
        frame = generator.choice(frames)
        is_told = frame.denied_premise is None or generator.random() < 0.85
        is_said = frame.denied_hypothesis is None or generator.random() < 0.75
        told = generator.choice(words.words)
        near = (told, *words.wider[told], *words.wider[told], *words.narrower[told])
        is_near = len(near) > 1 and label != "contradiction" and generator.random() < 0.8
        said = generator.choice(near) if is_near else generator.choice(words.words)
        found = judged(words, told, said, is_told=is_told, is_said=is_said, is_exclusive=frame.is_exclusive)
        if found == "contradiction" and is_unclear(told, said):
            continue
        if found != label or (told == said and is_told == is_said and generator.random() < 0.4):
            continue
        premise = frame.premise if is_told else frame.denied_premise or ""
        hypothesis = frame.hypothesis if is_said else frame.denied_hypothesis or ""
        values = {"s": subject[0], "S": subject[1]}
        return SentencePair(
            premise.format(**values, x=told, ax=with_article(told)),
            hypothesis.format(**values, x=said, ax=with_article(said)),
            label,
            reason_of(told, said, label, is_told=is_told, is_said=is_said),
        )
    return None


def person(generator: random.Random) -> tuple[str, str]:
    """Draw a person as a premise and a hypothesis name them."""
    if generator.random() < 0.5:
        is_woman = generator.random() < 0.5
        name = generator.choice(WOMEN if is_woman else MEN)
        return name, generator.choice((name, name, name, "she" if is_woman else "he"))
    noun = generator.choice(SUBJECTS["person"].split())
    first = generator.choice((f"the {noun}", with_article(noun), f"the {noun}", f"my {noun}"))
    return first, first if first.startswith("my") else f"the {noun}"


def thing(kind: str, generator: random.Random) -> tuple[str, str]:
    """Draw a thing of a kind of SUBJECTS as a premise and a hypothesis name it."""
    if kind == "person":
        return person(generator)
    noun = generator.choice(SUBJECTS[kind].split())
    owner = generator.choice(
        ("the", "the", "the", "the", "my", "his", "her", "our", "this", f"{generator.choice(MEN)}'s")
    )
    return f"{owner} {noun}", f"{owner} {noun}"


def draw_quality(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw qualities of one subject, of one group or of two."""
    kind = generator.choice(("any", "any", "person", "person", "food", "place", "event", "device"))
    groups, subject = quality_groups(kind), thing(kind, generator)
    group = generator.choice(groups)
    if label == "neutral" and generator.random() < 0.75:
        other = generator.choice([one for one in groups if one is not group])
        told, said = generator.choice(group.words), generator.choice(other.words)
        if generator.random() < 0.25:
            other_subject = thing(kind, generator)
            said = generator.choice(group.words)
            if other_subject[0].split()[-1] == subject[0].split()[-1]:
                return None
            return SentencePair(
                f"{subject[0]} is {told}", f"{other_subject[0]} is {said}", label, f"{other_subject[0]} is another"
            )
        no = "" if generator.random() < 0.8 else " not"
        reason = f"what is {told} may be {said} or not"
        return _noun_phrase(subject, told, said, no, label, reason, generator) or SentencePair(
            f"{subject[0]} is {told}", f"{subject[1]} is{no} {said}", label, reason
        )
    drawn = draw_by_frames(group, _is_frames(), subject, label, generator)
    if drawn is None or generator.random() < 0.6:
        return drawn
    return _varied(drawn, subject, group, groups, generator)


def _noun_phrase(
    subject: tuple[str, str], told: str, said: str, no: str, label: Relation, reason: str, generator: random.Random
) -> SentencePair | None:
    """Put the premise's quality before its noun, if it may stand there."""
    noun = subject[0].split()[-1]
    is_simple = not any(
        word in told.split() for word in ("of", "on", "off", "out", "still", "taking", "hour", "well", "ill")
    )
    if not is_simple or generator.random() < 0.6 or subject[0][0].isupper() or told in ("asleep", "awake", "alive"):
        return None
    start, end = generator.choice(
        (
            ("there is", " in the room"),
            ("there is", " over there"),
            ("I see", ""),
            ("she has", ""),
            ("Tom bought", ""),
            ("a woman is looking at", ""),
            ("we found", ""),
            ("this is", ""),
        )
    )
    return SentencePair(f"{start} {with_article(f'{told} {noun}')}{end}", f"the {noun} is{no} {said}", label, reason)


def _varied(
    drawn: SentencePair, subject: tuple[str, str], group: Taxonomy, groups: Sequence[Taxonomy], generator: random.Random
) -> SentencePair:
    """Write a pair with another quality in its premise, an adverb, or its quality before the noun."""
    told = drawn.premise.removeprefix(f"{subject[0]} is ")
    if told == drawn.premise or told.startswith("not "):
        return drawn
    way = generator.randrange(3)
    if way == 0:
        other = generator.choice(generator.choice([one for one in groups if one is not group]).words)
        pair = (told, other) if generator.random() < 0.5 else (other, told)
        return SentencePair(f"{subject[0]} is {pair[0]} and {pair[1]}", drawn.hypothesis, drawn.label, drawn.reason)
    said = drawn.hypothesis.removeprefix(f"{subject[1]} is ")
    if way == 1 and said != drawn.hypothesis and not said.startswith("not "):
        found = _noun_phrase(subject, told, said, "", drawn.label, drawn.reason, generator)
        return found or drawn
    adverb = generator.choice(("very", "really", "quite", "completely"))
    is_plain = len(told.split()) == 1 and told not in ("on", "off", "wooden", "over")
    return (
        SentencePair(f"{subject[0]} is {adverb} {told}", drawn.hypothesis, drawn.label, drawn.reason)
        if is_plain
        else drawn
    )


_KIND_FRAMES = (
    Frame("the animal is {ax}", "the animal is {ax}", "the animal is not {ax}", "the animal is not {ax}"),
    Frame("{s} is holding {ax}", "{S} is holding {ax}", None, "{S} is not holding {ax}"),
    Frame("there is {ax} in the garden", "there is {ax} in the garden", "there is no {x} in the garden", None, False),
    Frame("{s} has {ax}", "{S} has {ax}", "{s} does not have {ax}", "{S} does not have {ax}", False),
    Frame("{s} bought {ax}", "{S} bought {ax}", "{s} did not buy {ax}", "{S} did not buy {ax}", False),
    Frame("{s} is looking at {ax}", "{S} is looking at {ax}", None, "{S} is not looking at {ax}"),
    Frame("it is {ax}", "it is {ax}", "it is not {ax}", "it is not {ax}"),
    Frame("this is {ax}", "this is {ax}", "this is not {ax}", "this isn't {ax}"),
    Frame("{s} saw {ax}", "{S} saw {ax}", "{s} never saw {ax}", "{S} did not see {ax}", False),
    Frame("{s} drew {ax}", "{S} drew {ax}", None, "{S} did not draw {ax}"),
    Frame("{s} received {ax}", "{S} got {ax}", None, None, False),
    Frame("{s}'s present is {ax}", "{s}'s present is {ax}", None, "{s}'s present is not {ax}"),
    Frame("{ax} is lying on the floor", "{ax} is lying on the floor", None, None, False),
    Frame("{s} is afraid of the {x}", "{s} is afraid of {ax}", None, None, False),
)
_ANIMAL_FRAMES = (
    Frame("{ax} is sleeping", "{ax} is sleeping", None, "no {x} is sleeping"),
    Frame("{ax} is running across the street", "{ax} is running across the street", None, "no {x} is running"),
    Frame("{s} has {ax} as a pet", "{S} has {ax} as a pet"),
    Frame("{s}'s pet is {ax}", "{s}'s pet is {ax}", None, "{s}'s pet is not {ax}"),
    Frame("the {x} is hungry", "{ax} is hungry", None, None, False),
    Frame("{s} is feeding {ax}", "{S} is feeding {ax}", None, "{S} is not feeding {ax}"),
    Frame("two {x}s are playing", "two {x}s are playing"),
)
_FOOD_FRAMES = (
    Frame("{s} is eating {ax}", "{S} is eating {ax}", None, "{S} is not eating {ax}"),
    Frame("{s} ate {ax} for lunch", "{S} ate {ax} for lunch", None, "{S} did not eat {ax} for lunch"),
    Frame("{s} likes {x}", "{S} likes {x}", "{s} does not like {x}", "{S} does not like {x}", False),
    Frame("{s} is cutting {ax}", "{S} is cutting {ax}", None, "{S} is not cutting {ax}"),
)
_TOPS = (
    "animal",
    "food",
    "fruit",
    "vegetable",
    "vehicle",
    "furniture",
    "musical instrument",
    "tool",
    "flower",
    "bird",
    "dog",
)


def draw_kind(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw kinds of things: what belongs to a kind, and what excludes it."""
    if generator.random() < 0.12:
        return _draw_wordnet(label, generator)
    words, subject = taxonomy("kinds"), person(generator)
    top = generator.choice(_TOPS)
    some = Taxonomy({word: words.wider[word] for word in (top, *words.narrower[top])} | {top: ()})
    some = Taxonomy({word: tuple(one for one in wider if one in some.wider) for word, wider in some.wider.items()})
    frames = [frame for frame in _KIND_FRAMES if top in ("animal", "bird", "dog") or "animal" not in frame.premise]
    if top in ("animal", "bird", "dog"):
        frames += _ANIMAL_FRAMES * 2
    if top in ("food", "fruit", "vegetable"):
        frames += _FOOD_FRAMES * 2
    return draw_by_frames(some if generator.random() < 0.75 else words, frames, subject, label, generator)


def _draw_wordnet(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw a noun of WordNet and its kind."""
    noun, kind = generator.choice(wordnet_kinds())
    frame = generator.choice([one for one in _KIND_FRAMES if "animal" not in one.premise])
    subject = person(generator)
    told, said = (kind, noun) if label == "neutral" else (noun, kind)
    if label == "contradiction":
        if frame.denied_hypothesis is None:
            return None
        hypothesis = frame.denied_hypothesis
    else:
        hypothesis = frame.hypothesis
    values = {"s": subject[0], "S": subject[1]}
    return SentencePair(
        frame.premise.format(**values, x=told, ax=with_article(told)),
        hypothesis.format(**values, x=said, ax=with_article(said)),
        label,
        f"{with_article(noun)} is {with_article(kind)}",
    )


_CLOTHES_FRAMES = (
    Frame("{s} is wearing {ax}", "{S} is wearing {ax}", "{s} is not wearing {ax}", "{S} is not wearing {ax}", False),
    Frame("{s} put on {ax}", "{S} is wearing {ax}", None, None, False),
)
_JOB_FRAMES = (
    Frame("{s} is {ax}", "{S} is {ax}", "{s} is not {ax}", "{S} is not {ax}"),
    Frame("{s} works as {ax}", "{S} is {ax}", None, "{S} is not {ax}"),
    Frame("{s} became {ax}", "{S} is {ax}", None, "{S} is not {ax}"),
)
_PERSON_FRAMES = (
    Frame("{ax} is sleeping", "{ax} is sleeping"),
    Frame("{ax} is crossing the street", "{ax} is crossing the street"),
    Frame("the winner is {ax}", "the winner is {ax}", None, "the winner is not {ax}"),
    Frame("{ax} is standing at the door", "{ax} is standing at the door"),
    Frame("{ax} opened the window", "{ax} opened the window", None, "the one who opened the window is not {ax}"),
    Frame("{ax} is playing the piano", "{ax} is playing the piano"),
    Frame("two people are talking to {ax}", "two people are talking to {ax}"),
)


def draw_person_kind(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw what a person is or wears."""
    subject = person(generator)
    way = generator.randrange(3)
    if way == 0:
        return draw_by_frames(taxonomy("clothes"), _CLOTHES_FRAMES, subject, label, generator)
    if way == 1:
        name = generator.choice(WOMEN + MEN)
        return draw_by_frames(taxonomy("jobs"), _JOB_FRAMES, (name, name), label, generator)
    return draw_by_frames(taxonomy("people"), _PERSON_FRAMES, subject, label, generator)


def draw_action(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw what somebody is doing, with a place or a time that the hypothesis may leave out."""
    subject = person(generator)
    if label == "neutral" and generator.random() < 0.7:
        told = generator.choice(taxonomy("activities").words)
        said = generator.choice(quality_groups("person"))
        if generator.random() < 0.5:
            place = generator.choice(taxonomy("places").words)
            return SentencePair(
                f"{subject[0]} is {told}", f"{subject[1]} is {told} {place}", label, "where it is was not told"
            )
        quality = generator.choice(said.words)
        if quality in (
            "asleep",
            "awake",
            "sleeping",
            "tired",
            "rested",
            "dead",
            "busy",
            "free",
            "quiet",
            "silent",
            "loud",
            "noisy",
        ):
            return None
        return SentencePair(
            f"{subject[0]} is {told}", f"{subject[1]} is {quality}", label, f"whether one is {quality} was not told"
        )
    frames = _is_frames()[:2]
    drawn = draw_by_frames(taxonomy("activities"), frames, subject, label, generator)
    if drawn is None or generator.random() < 0.5 or " not " in drawn.premise or "n't" in drawn.premise:
        return drawn
    extra = generator.choice(
        (*taxonomy("places").words, *taxonomy("hours").words, "with a friend", "alone", "right now")
    )
    return SentencePair(f"{drawn.premise} {extra}", drawn.hypothesis, drawn.label, drawn.reason)
