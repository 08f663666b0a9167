"""Sentence pairs from what people do and what follows from it, all written by hand."""

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.groups import groups
from starters.predict.sentence_pairs.handwritten.logic import Link, Subject, draw_logical, draw_person, sentence_of
from starters.predict.sentence_pairs.taxonomies import Relation

_LINKS: Mapping[str, Link] = {"+": "implies", "=": "equal", "-": "excludes", "?": "open"}
# Topics of people that a story leaves open, as premises of its hypotheses.
_ELSEWHERE = ("eyes", "pets", "sport", "look", "goods", "hands", "dwelling")
_HERS, _HIS = r"\b(?:woman|mother|widow|pregnant)\b", r"\b(?:man|father|bachelor|wife)\b"


@dataclass(frozen=True)
class Story:
    """A statement, and others with how it stands to each."""

    told: str
    said: tuple[tuple[Link, str], ...]


@cache
def stories() -> tuple[Story, ...]:
    """Return all stories of `texts/stories.txt`."""
    text = (Path(__file__).with_name("texts") / "stories.txt").read_text(encoding="utf-8")
    found: list[tuple[str, list[tuple[Link, str]]]] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if line[0] not in _LINKS:
            found.append((line, []))
            continue
        found[-1][1].extend((_LINKS[line[0]], one.strip()) for one in line[1:].split(";"))
    return tuple(Story(told, tuple(said)) for told, said in found)


def is_of_one(text: str) -> bool:
    """Whether a predicate is about one person only: "is a teacher"."""
    return text.startswith(("is a ", "is an ", "is the ", "works as", "became ", "is no ", "is not a ", "was the only"))


def draw_subject(texts: tuple[str, ...], generator: random.Random) -> Subject:
    """Draw a person, or several if all predicates may be about several."""
    is_she, is_he = (any(re.search(words, text) for text in texts[:1]) for words in (_HERS, _HIS))
    while True:
        subject = draw_person(generator, is_marked=not any("hat" in text or "wearing" in text for text in texts))
        if (subject.he != "she" and is_she) or (subject.he != "he" and is_he):
            continue
        if not subject.is_plural or not any(map(_is_singular, texts)):
            return subject


def _is_singular(text: str) -> bool:
    return is_of_one(text) or text.startswith("!") or " twin" in text or "{his}" in text or "{him" in text


def draw_story(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw what somebody does, and what follows, is excluded or stays open."""
    story = generator.choice(stories())
    way = generator.random()
    link, said = generator.choice(story.said)
    if label == "neutral" and link in ("implies", "excludes", "equal") and way < 0.35:
        return _draw_elsewhere(said, generator)
    if link == "open" and label != "neutral":
        return _draw_joined(story.told, said, label, generator)
    subject = draw_subject((story.told, said), generator)
    return draw_logical(story.told, said, link, subject, label, generator)


def _draw_elsewhere(said: str, generator: random.Random) -> SentencePair | None:
    """Draw something else about a person as the premise of a story's hypothesis."""
    group = generator.choice([one for one in groups() if one.topic in _ELSEWHERE])
    told = generator.choice(group.frames).filled(generator.choice(generator.choice(group.nodes).words))
    is_near = any(word in told for word in said.split() if len(word) > 3 and word not in ("with", "from", "have"))
    if is_near or any(word in said for word in ("animal", "hair", "bald", "house", "eyes", "nothing")):
        return None
    subject = draw_subject((told, said), generator)
    return draw_logical(told, said, "open", subject, "neutral", generator)


def _draw_joined(told: str, said: str, label: Relation, generator: random.Random) -> SentencePair | None:
    """Tell both statements, and say one of them or its denial; or deny the second and say it."""
    subject = draw_subject((told, said), generator)
    if said.startswith("!"):
        return None
    is_denied = generator.random() < 0.4
    first = sentence_of(told, subject.told, subject, generator, is_denied=False, is_past=False)
    second = sentence_of(said, "", subject, generator, is_denied=is_denied, is_past=False)
    is_second = generator.random() < 0.7
    is_said_denied = (is_denied if is_second else False) is (label == "entailment")
    hypothesis = sentence_of(
        said if is_second else told, subject.said, subject, generator, is_denied=is_said_denied, is_past=False
    )
    if first is None or second is None or hypothesis is None or second.startswith(("it ", "It ")):
        return None
    link = "but" if is_denied else "and"
    return SentencePair(
        f"{first} {link}{' ' if second[0] != ' ' else ''}{second}", hypothesis, label, "", f"{told} / {said}"
    )
