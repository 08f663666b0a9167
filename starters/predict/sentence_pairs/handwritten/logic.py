"""Two statements and how they stand to each other, written as a premise and a hypothesis of any label.

With their denials and either way round, a pair of which one implies the other makes all three labels, so that no
sentence alone tells the label.
"""

import random
from dataclasses import dataclass
from typing import Literal

from starters.predict.drawing import capitalised
from starters.predict.everyday.words import MEN, SURNAMES, WOMEN, listed
from starters.predict.sentence_pairs.frames import SentencePair
from starters.predict.sentence_pairs.handwritten.predicates import denied, past, plural
from starters.predict.sentence_pairs.taxonomies import Relation

# How a first statement stands to a second one. "open": neither implies or excludes the other.
Link = Literal["implies", "equal", "excludes", "open"]
DENIAL_WEIGHT = 0.22
_PRONOUNS = {
    "he": {"he": "he", "his": "his", "him": "him", "himself": "himself"},
    "she": {"he": "she", "his": "her", "him": "her", "himself": "herself"},
    "they": {"he": "they", "his": "their", "him": "them", "himself": "themselves"},
    "it": {"he": "it", "his": "its", "him": "it", "himself": "itself"},
}
_NOUNS = listed(
    "man:he woman:she boy:he girl:she teacher:she doctor:he student:she nurse:she neighbor:he farmer:he tourist:she "
    "customer:he guest:she lady:she gentleman:he kid:he child:she waiter:he player:he worker:he passenger:she "
    "driver:he cyclist:she artist:she soldier:he librarian:she police~officer:he singer:she shopkeeper:he"
)
_RELATIVES = listed(
    "brother:he sister:she mother:she father:he uncle:he aunt:she cousin:she grandmother:she grandfather:he son:he "
    "daughter:she boss:he roommate:she friend:he neighbor:she colleague:he mom:she dad:he wife:she husband:he"
)
_PLURALS = listed(
    "men women boys girls children kids students tourists people friends neighbors teachers workers players "
    "teenagers soldiers guests dancers musicians"
)
_MODIFIERS = ("with a backpack", "in a red hat", "in a blue jacket", "next door", "with glasses", "from the office")


@dataclass(frozen=True)
class Subject:
    """Somebody or something as a premise and a hypothesis name it."""

    told: str
    said: str
    he: str = "it"

    @property
    def is_plural(self) -> bool:
        return self.he == "they"

    @property
    def pronouns(self) -> dict[str, str]:
        return _PRONOUNS[self.he]


@dataclass(frozen=True)
class Statement:
    """A predicate about the subject in the third person singular, or, after "!", a sentence that names its own."""

    text: str


def draw_person(generator: random.Random, *, is_marked: bool = True) -> Subject:
    """Draw one person or several; `is_marked` allows words such as "in a red hat" after the noun."""
    way = generator.random()
    if way < 0.36:
        return draw_named(generator)
    if way < 0.5:
        noun, he = generator.choice(_RELATIVES).split(":")
        owner = generator.choice(("my", "my", "her", "his", "our", f"{generator.choice(WOMEN + MEN)}'s"))
        return Subject(f"{owner} {noun}", generator.choice((f"{owner} {noun}", f"{owner} {noun}", he)), he)
    if way < 0.82:
        noun, he = generator.choice(_NOUNS).replace("~", " ").split(":")
        mark = f" {generator.choice(_MODIFIERS)}" if is_marked and generator.random() < 0.15 else ""
        article = generator.choice(("a", "the", "the"))
        if article == "a" and noun[0] in "aeiou":
            article = "an"
        said = generator.choice((f"the {noun}", f"the {noun}", f"the {noun}", he))
        if article != "the" and generator.random() < 0.3:
            said = f"{article} {noun}"
        return Subject(f"{article} {noun}{mark}", said, he)
    if way < 0.94:
        noun = generator.choice(_PLURALS)
        told = generator.choice(("the", "two", "three", "some", "the", "these"))
        the = "these" if told == "these" else "the"
        return Subject(f"{told} {noun}", generator.choice((f"{the} {noun}", f"{the} {noun}", "they")), "they")
    first, second = generator.sample(WOMEN + MEN, 2)
    return Subject(f"{first} and {second}", generator.choice((f"{first} and {second}", "they")), "they")


def draw_named(generator: random.Random) -> Subject:
    """Draw one person with a name."""
    is_woman = generator.random() < 0.5
    name, he = generator.choice(WOMEN if is_woman else MEN), "she" if is_woman else "he"
    if generator.random() < 0.15:
        name = f"{'Mrs.' if is_woman else 'Mr.'} {generator.choice(SURNAMES)}"
    return Subject(name, generator.choice((name, name, name, he)), he)


def variants(link: Link) -> list[tuple[bool, bool, bool, Relation]]:
    """The ways to tell one of two statements and say the other.

    Each is whether they are exchanged, whether the premise is denied, whether the hypothesis is, and the label.
    """
    if link == "open":
        return [(swap, told, said, "neutral") for swap in (False, True) for told, said in _SIGNS]
    if link == "equal":
        return [
            (swap, told, said, "entailment" if told == said else "contradiction")
            for swap in (False, True)
            for told, said in _SIGNS
        ]
    if link == "excludes":
        labels: dict[tuple[bool, bool], Relation] = {(False, False): "contradiction", (False, True): "entailment"}
        return [(swap, *signs, labels.get(signs, "neutral")) for swap in (False, True) for signs in _SIGNS]
    up: dict[tuple[bool, bool], Relation] = {(False, False): "entailment", (False, True): "contradiction"}
    down: dict[tuple[bool, bool], Relation] = {(True, True): "entailment", (True, False): "contradiction"}
    return [
        *((False, *signs, up.get(signs, "neutral")) for signs in _SIGNS),
        *((True, *signs, down.get(signs, "neutral")) for signs in _SIGNS),
    ]


_SIGNS = ((False, False), (False, True), (True, False), (True, True))
_ADDED = (
    *("at the moment", "right now", "today", "as usual", "again", "with a friend", "once more", "of course"),
    *("as we speak", "this time", "for the first time", "according to the newspaper"),
)
_BEFORE = ("at the moment", "today", "right now", "luckily", "as usual", "surprisingly", "once again", "indeed")
_UNTRUE = ("it is not true that", "it is false that", "it is wrong that", "it isn't the case that")


def _denied_sentence(sentence: str, generator: random.Random) -> str | None:
    """Deny a sentence of which no subject is known."""
    words = sentence.split(" ")
    places = [place for place, word in enumerate(words) if word in ("is", "are", "was", "were", "can", "will")]
    if any(word in ("no", "not", "nobody", "never", "none", "nothing") for word in words):
        return None
    if len(places) == 1 and words[0] not in ("there", "everybody", "somebody", "some", "all", "every", "a", "an"):
        return " ".join((*words[: places[0] + 1], "not", *words[places[0] + 1 :]))
    return f"{generator.choice(_UNTRUE)} {sentence}"


def sentence_of(
    text: str, name: str, subject: Subject, generator: random.Random, *, is_denied: bool, is_past: bool
) -> str | None:
    """Write a statement about a subject, or its denial; None if it has none."""
    if text.startswith("!"):
        sentence = text[1:].strip().format(s=name, **subject.pronouns)
        return _denied_sentence(sentence, generator) if is_denied else sentence
    predicate = past(text) if is_past else text
    if is_denied:
        if generator.random() < 0.08:
            body = plural(predicate) if subject.is_plural else predicate
            return f"{generator.choice(_UNTRUE)} {name} {body.format(**subject.pronouns)}"
        no = denied(predicate, generator)
        if no is None:
            return None
        predicate = no
        if subject.is_plural:
            predicate = plural(predicate.replace("doesn't", "don't", 1))
    elif subject.is_plural:
        predicate = plural(predicate)
    return f"{name} {predicate.format(**subject.pronouns)}"


def draw_logical(
    first: str,
    second: str,
    link: Link,
    subject: Subject,
    label: Relation,
    generator: random.Random,
    *,
    other: Subject | None = None,
) -> SentencePair | None:
    """Write a pair of statements with a label; None if they can have none.

    `other` is the subject of the second one, if that has another.
    """
    fitting = [one for one in variants(link) if one[3] == label]
    if not fitting:
        return None
    weights = [DENIAL_WEIGHT ** (told + said) for _, told, said, _ in fitting]
    swap, is_told_denied, is_said_denied, _ = generator.choices(fitting, weights)[0]
    told, said = (second, first) if swap else (first, second)
    is_past = told.startswith("is ") and said.startswith("is ") and generator.random() < 0.25
    teller, sayer = (other or subject, subject) if swap else (subject, other or subject)
    premise = sentence_of(told, teller.told, teller, generator, is_denied=is_told_denied, is_past=is_past)
    hypothesis = sentence_of(said, sayer.said, sayer, generator, is_denied=is_said_denied, is_past=is_past)
    if premise is None or hypothesis is None or premise == hypothesis:
        return None
    if not is_told_denied and not is_past and not told.startswith("!") and generator.random() < 0.1:
        premise = _with_addition(premise, told, generator)
    reason = "" if other else _reason(told, said, is_told_denied, is_said_denied, label)
    return SentencePair(premise, hypothesis, label, reason, f"{told} / {said}")


def _with_addition(premise: str, told: str, generator: random.Random) -> str:
    if not told.startswith("is "):
        return premise
    if generator.random() < 0.4:
        return f"{generator.choice(_BEFORE)}, {premise}"
    return f"{premise} {generator.choice(_ADDED)}"


def _infinitive(text: str, is_denied: bool) -> str | None:
    verb, _, rest = text.partition(" ")
    if verb not in ("is", "was") or "{" in text:
        return None
    return f"{'not ' if is_denied else ''}to be {rest}"


def _reason(told: str, said: str, is_told_denied: bool, is_said_denied: bool, label: Relation) -> str:
    """Write one sentence that names the words of both, or nothing if they are not about what somebody is."""
    first, second = _infinitive(told, is_told_denied), _infinitive(said, is_said_denied)
    if first is None or second is None:
        return ""
    if label == "contradiction" and not is_told_denied and not is_said_denied:
        return capitalised(f"{first} is not {second}")
    link = {"entailment": "means", "contradiction": "is against what it means", "neutral": "need not mean"}[label]
    return capitalised(f"{first} {link} {second}")
