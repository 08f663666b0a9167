"""Sentence pairs about what somebody did, did not do, or wanted to do, and about actions that are opposites."""

import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starters.predict.everyday.words import MEN, WOMEN, listed
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.balance import Words, draw_balanced, pairs_of
from starters.predict.sentence_pairs.handwritten.logic import Link, Subject, draw_logical, draw_person
from starters.predict.sentence_pairs.handwritten.predicates import conjugated, plural
from starters.predict.sentence_pairs.taxonomies import Relation

# Ways to tell that something was done, was not done, or may have been; {b} is the base form, {p} the past, {pp} the
# past participle and {i} the form in -ing.
_DONE = (
    *("{p}", "{p}", "has {pp}", "has already {pp}", "managed to {b}", "finally {p}", "{p} yesterday", "did {b}"),
    *("succeeded in {i}", "remembered to {b}", "{p} without any help", "was able to {b}, and did", "{p} in the end"),
    *("had to {b}, and did so", "was forced to {b} and did it", "has finally {pp}", "{p} last week", "{p} again"),
    *("was the one who {p}", "did not forget to {b}", "did not fail to {b}", "could and did {b}"),
)
_UNDONE = (
    *("did not {b}", "didn't {b}", "never {p}", "failed to {b}", "forgot to {b}", "refused to {b}", "has not {pp} yet"),
    *("has never {pp}", "was unable to {b}", "was too tired to {b}", "left without {i}", "decided not to {b}"),
    *("almost {p}, but did not", "was about to {b} when everything stopped", "still has not {pp}", "avoided {i}"),
    *("would have liked to {b} but had no time", "could not {b}", "wasn't able to {b}", "chose not to {b}"),
    *("neglected to {b}", "wanted to {b} but did not", "tried to {b} in vain", "gave up before {i}", "hasn't {pp}"),
)
_UNSURE = (
    *("tried to {b}", "wanted to {b}", "planned to {b}", "hoped to {b}", "promised to {b}", "agreed to {b}"),
    *("was asked to {b}", "was told to {b}", "may have {pp}", "might have {pp}", "perhaps {p}", "meant to {b}"),
    *("was supposed to {b}", "was allowed to {b}", "dreamed of {i}", "thought about {i}", "offered to {b}"),
    *("said that {he} had {pp}", "claimed to have {pp}", "is said to have {pp}", "intended to {b}", "had to {b}"),
    *("would like to {b}", "was getting ready to {b}", "asked a friend to {b}", "was advised to {b}"),
)
_SAID_DONE = ("{p}", "{p}", "has {pp}", "did {b}", "{p}")
_SAID_UNDONE = ("did not {b}", "didn't {b}", "has not {pp}", "did not {b}", "failed to {b}")
# Premises and hypotheses about how something was told.
_STEPS: tuple[tuple[str, str, Relation], ...] = (
    *(
        ("managed to {b}", "was able to {b}", "entailment"),
        ("remembered to {b}", "did not forget to {b}", "entailment"),
    ),
    *(("forgot to {b}", "remembered to {b}", "contradiction"), ("refused to {b}", "agreed to {b}", "contradiction")),
    *(("failed to {b}", "succeeded in {i}", "contradiction"), ("wanted to {b}", "wished to {b}", "entailment")),
    *(("wanted to {b}", "had no wish to {b}", "contradiction"), ("stopped {i}", "went on {i}", "contradiction")),
    *(("can {b}", "is able to {b}", "entailment"), ("can {b}", "is unable to {b}", "contradiction")),
    *(("is able to {b}", "cannot {b}", "contradiction"), ("has to {b}", "must {b}", "entailment")),
    *(("has to {b}", "need not {b}", "contradiction"), ("is allowed to {b}", "may {b}", "entailment")),
    *(("is allowed to {b}", "is forbidden to {b}", "contradiction"), ("is allowed to {b}", "has to {b}", "neutral")),
    *(("can {b}", "wants to {b}", "neutral"), ("wants to {b}", "can {b}", "neutral")),
    *(("is going to {b}", "will {b}", "entailment"), ("will {b}", "has already {pp}", "contradiction")),
    *(("will {b} tomorrow", "has not {pp} yet", "entailment"), ("is {i}", "has already finished {i}", "contradiction")),
    *(("has just finished {i}", "is no longer {i}", "entailment"), ("likes to {b}", "hates to {b}", "contradiction")),
    *(("began to {b}", "started {i}", "entailment"), ("is still {i}", "has stopped {i}", "contradiction")),
    *(("is still {i}", "is {i}", "entailment"), ("is about to {b}", "has already {pp}", "contradiction")),
    *(("often {t}", "sometimes {t}", "entailment"), ("always {t}", "never {t}", "contradiction")),
    *(("always {t}", "often {t}", "entailment"), ("never {t}", "sometimes {t}", "contradiction")),
    *(("sometimes {t}", "always {t}", "neutral"), ("seldom {t}", "often {t}", "contradiction")),
    *(("used to {b}", "has never {pp}", "contradiction"), ("likes to {b}", "enjoys {i}", "entailment")),
    *(
        ("hates to {b}", "dislikes {i}", "entailment"),
        ("knows how to {b}", "does not know how to {b}", "contradiction"),
    ),
    *(("knows how to {b}", "can {b}", "entailment"), ("is {i}", "likes to {b}", "neutral")),
    *(
        ("is {i}", "has to {b}", "neutral"),
        ("is {i}", "always {t}", "neutral"),
        ("promised to {b}", "will {b}", "neutral"),
    ),
    *(("is planning to {b}", "intends to {b}", "entailment"), ("hates to {b}", "has never {pp}", "neutral")),
    *(("sometimes {t}", "never {t}", "contradiction"), ("is not {i}", "has stopped {i}", "neutral")),
    *(("likes to {b}", "is {i}", "neutral"), ("must {b}", "is not allowed to {b}", "contradiction")),
    *(("finished {i}", "began to {b}", "entailment"), ("began to {b}", "finished {i}", "neutral")),
)


# Verbs that are not told in the progressive.
_STATES = frozenset(
    listed(
        "like love hate dislike trust mistrust agree disagree remember forget miss succeed fail pass survive"
        " keep catch win find accept lose"
    )
)


_HOW = (
    *("again", "in a hurry", "with a friend", "very carefully", "for the first time", "without a word", "as planned"),
    *(
        "for Nora",
        "in the rain",
        "at noon",
        "after lunch",
        "because of the storm",
        "for a good reason",
        "late at night",
    ),
)


@dataclass(frozen=True)
class _Doing:
    """A verb phrase in its base form."""

    base: str

    def filled(self, frame: str, subject: Subject) -> str:
        text = frame.format(
            b=self.base,
            p=conjugated(self.base, "past"),
            pp=conjugated(self.base, "participle"),
            i=conjugated(self.base, "progressive"),
            t=conjugated(self.base, "third"),
            he="{he}",
        )
        return (plural(text) if subject.is_plural else text).format(**subject.pronouns)


@cache
def doings() -> tuple[str, ...]:
    """Return the verb phrases of `texts/doings.txt`, in their base form."""
    return tuple(part.strip() for line in _lines("doings.txt") for part in line.split(";"))


@cache
def opposites() -> tuple[tuple[str, str], ...]:
    """Return pairs of verb phrases that nobody does at once."""
    pairs = [line.replace(" // ", " / ").split(" / ") for line in _lines("opposites.txt")]
    return tuple((first, second) for first, second in pairs)


@cache
def _either_ways() -> frozenset[str]:
    """Return the verb phrases of which not to do one is to do the other."""
    return frozenset(part for line in _lines("opposites.txt") if " // " in line for part in line.split(" // "))


def _lines(name: str) -> list[str]:
    text = (Path(__file__).with_name("texts") / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def draw_doing(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw whether somebody did something after a premise that tells, denies or leaves open that it was done."""
    doing, subject = _Doing(generator.choice(doings())), draw_person(generator)
    way = generator.random()
    if way < 0.35:
        told, said, _ = generator.choice([step for step in _STEPS if step[2] == label])
    elif way < 0.5:
        return draw_balanced(pairs_of("somebody"), _somebody, label, generator)
    else:
        is_done = generator.random() < 0.5
        is_same = label == "entailment"
        told = generator.choice(_UNSURE if label == "neutral" else (_DONE if is_done is is_same else _UNDONE))
        said = generator.choice(_SAID_DONE if is_done else _SAID_UNDONE)
        if told == "tried to {b}" and said == "failed to {b}":
            return None
        if label == "neutral" and generator.random() < 0.3:
            other = _Doing(generator.choice(doings()))
            if other == doing:
                return None
            told = generator.choice((*_DONE, *_UNDONE))
            premise = f"{subject.told} {doing.filled(told, subject)}"
            return SentencePair(
                premise, f"{subject.said} {other.filled(said, subject)}", label, "", f"{doing.base} {other.base}"
            )
    premise = f"{subject.told} {doing.filled(told, subject)}"
    hypothesis = f"{subject.said} {doing.filled(said, subject)}"
    return (
        None
        if premise == hypothesis
        else SentencePair(premise, hypothesis, label, "", f"{told} {said} {doing.base}"[:40])
    )


def _somebody(generator: random.Random) -> Words:
    """Draw the words of who did something: everybody, nobody, somebody, or one of those who are named."""
    one, two, other = generator.sample(WOMEN + MEN, 3)
    base = generator.choice([doing for doing in doings() if "{" not in doing])
    return {"one": one, "two": two, "other": other, "base": base, "past": conjugated(base, "past")}


def draw_opposite(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw two actions that exclude each other, or that have nothing to do with each other."""
    link: Link = "excludes"
    pair = list(generator.choice(opposites()))
    generator.shuffle(pair)
    if label == "neutral" and generator.random() < 0.6:
        pair[1] = generator.choice(generator.choice(opposites()) if generator.random() < 0.5 else doings())
        if pair[0].split(" ")[0] == pair[1].split(" ")[0]:
            return None
        form, link = "past", "open"
    else:
        is_state = any(one.split(" ")[0] in _STATES for one in pair)
        form = generator.choice(("past", "third") if is_state else ("progressive", "progressive", "past"))
        if label == "neutral" and pair[0] in _either_ways():
            return None
    is_same = generator.random() < 0.45 and link == "excludes"
    if is_same:
        pair[1], link = pair[0], "implies"
    be = "is " if form == "progressive" else ""
    first, second = (f"{be}{conjugated(one, form)}" for one in pair)
    if is_same:
        first = f"{first} {generator.choice(_HOW)}"
    subject = draw_person(generator)
    if subject.is_plural and any("{his}" in one for one in pair):
        return None
    drawn = draw_logical(first, second, link, subject, label, generator)
    return drawn and SentencePair(drawn.premise, drawn.hypothesis, label, drawn.reason, " / ".join(sorted(pair)))
