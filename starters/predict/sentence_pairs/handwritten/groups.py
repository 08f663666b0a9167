"""Sentence pairs from groups of words that were written by hand, as trees, with the sentences that they stand in.

`texts/people.txt` tells the form of a group. A group makes pairs of statements about one subject: a narrower word
implies a wider one, words side by side exclude each other, and what one group says of a person leaves another open.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from starters.predict.everyday.words import listed
from starters.predict.sentence_pairs.frames import SentencePair, with_article
from starters.predict.sentence_pairs.handwritten.logic import Link, Subject, draw_logical, draw_named, draw_person
from starters.predict.sentence_pairs.taxonomies import Relation

# Topics of people of which one may decide the other: who swims is not at the office.
_ENTANGLED = frozenset(
    listed(
        "place doing posture tiredness hunger thirst health age alive meals drinks vehicle arms dirt wake"
        " direction company arrival speed voice mood nerves boredom"
    )
)
_ENTANGLED_TOO = (
    *({"age", "job"}, {"age", "family"}, {"age", "religion"}, {"job", "job2"}, {"job", "religion"}, {"born", "origin"}),
    *({"money", "job"}, {"diet", "meals"}, {"dress", "hatless"}, {"dress", "clothing"}, {"habit", "drinks"}),
    *({"siblings", "children"}, {"sport", "exam"}, {"dwelling", "born"}, {"habit", "sober"}, {"vision", "look"}),
    *({"age", "job2"}, {"job2", "religion"}, {"money", "job2"}, {"alive", "job"}, {"pets", "feeling"}),
    *({"goods", "pets"}, {"goods", "money"}, {"language", "origin"}, {"result", "speed"}, {"busy", "job2"}),
    *({"born", "language"}, {"age", "children"}, {"age", "bodily"}, {"age", "look"}, {"diet", "pets"}),
)


# Topics of people in whose words "a" stands, or that the names of roles would contradict.
_OF_ONE = ("job", "family", "age", "money", "religion", "siblings", "children", "diet", "bodily", "job2", "habit")


@dataclass(frozen=True)
class Node:
    """Words that mean the same, their wider nodes, the nearest first, and the line of words beside them."""

    words: tuple[str, ...]
    wider: tuple["Node", ...]
    line: int
    is_compatible: bool


@dataclass(frozen=True)
class Frame:
    """A predicate with "{x}" or "{a}", the words with an article; its words may or may not exclude each other."""

    text: str
    is_exclusive: bool

    def filled(self, words: str) -> str:
        return self.text.replace("{x}", words).replace("{a}", with_article(words) if "{a}" in self.text else "")


@dataclass(frozen=True)
class Group:
    """Nodes of one topic, and the subjects and frames that they fit; no subjects stand for people."""

    topic: str
    subjects: tuple[str, ...]
    frames: tuple[Frame, ...]
    nodes: tuple[Node, ...]

    @property
    def is_of_people(self) -> bool:
        return self.subjects == ("person",)


def parse_groups(text: str) -> tuple[Group, ...]:
    """Read groups in the form of `texts/people.txt`."""
    blocks = re.split(r"^@ ", "\n".join(line for line in text.splitlines() if not line.startswith("#")), flags=re.M)
    return tuple(_group(block) for block in blocks if block.strip())


def _group(block: str) -> Group:
    head, *lines = block.rstrip().split("\n")
    left, *frames = (part.strip() for part in head.split("|"))
    topic, _, subjects = left.partition(":")
    nodes: list[Node] = []
    above: list[tuple[int, Node]] = []
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        above = [one for one in above if one[0] < indent]
        wider = tuple(node for _, node in reversed(above))
        for part in re.split(r"[;,]", line):
            nodes.append(Node(tuple(word.strip() for word in part.split("=")), wider, number, "," in line))
        above.append((indent, nodes[-1]))
    some = tuple(Frame(frame.lstrip("~!"), not frame.startswith("~")) for frame in frames if frame)
    return Group(topic, tuple(one.strip() for one in subjects.split(",") if one.strip("! ")), some, tuple(nodes))


@cache
def groups() -> tuple[Group, ...]:
    """Return all groups of the texts."""
    folder = Path(__file__).with_name("texts")
    return tuple(
        group
        for name in ("people.txt", "things.txt")
        for group in parse_groups(folder.joinpath(name).read_text(encoding="utf-8"))
    )


def link_of(first: Node, second: Node) -> Link | None:
    """Return how a node stands to another one; None if that is unclear."""
    if first is second:
        return "equal"
    if second in first.wider:
        return "implies"
    if first in second.wider:
        return None
    one, two = (*reversed(first.wider), first), (*reversed(second.wider), second)
    apart = next(number for number, pair in enumerate(zip(one, two, strict=False)) if pair[0] is not pair[1])
    both = one[apart], two[apart]
    is_unclear = both[0].line == both[1].line and both[0].is_compatible
    return None if is_unclear else "excludes"


def _subject(group: Group, generator: random.Random) -> Subject:
    if group.is_of_people and group.topic in _OF_ONE:
        return draw_named(generator)
    if group.is_of_people:
        return draw_person(generator, is_marked=group.topic not in ("dress", "hatless", "clothing", "vision", "arms"))
    if not group.subjects:
        return Subject("it", "it")
    name = generator.choice(group.subjects)
    plain = name.removeprefix("the ")
    if name.startswith("the ") and generator.random() < 0.3:
        owner = generator.choice(("my", "her", "our", "his", "their", "this"))
        return Subject(f"{owner} {plain}", generator.choice((f"{owner} {plain}", f"{owner} {plain}", "it")))
    is_he = group.topic in ("bodies", "holder")
    return Subject(name, name if is_he or generator.random() < 0.75 else "it")


# Topics of whose widest words one is always true: who is not on time is late.
_EITHER_WAY = frozenset(
    listed(
        "exam smoking alive family children power opening tense truth legal sober busy guilt job2 working habit swims "
        "vision siblings arms hatless clothing luck train condition hunger moisture freshness result sold bodies "
        "straight cleanliness tiredness dirt health weather cooking"
    )
)


def draw_grouped(label: Relation, generator: random.Random) -> SentencePair | None:
    """Draw two statements about one subject, of one group of words or of two."""
    group = generator.choice(groups())
    if len(group.nodes) < 12 and generator.random() < 0.4:
        group = generator.choice(groups())
    subject = _subject(group, generator)
    if label == "neutral" and generator.random() < 0.45:
        return _draw_open(group, subject, generator)
    frame = generator.choice(group.frames)
    found = _pair(group.nodes, label, frame, generator)
    if found is None:
        return None
    first, second, link = found
    if label == "neutral" and link == "excludes" and group.topic in _EITHER_WAY:
        return None
    words = generator.choice(first.words), generator.choice(second.words)
    if link == "equal" and words[0] == words[1] and generator.random() < 0.75:
        return None
    if words[0].startswith("very ") and words[1] in words[0] and generator.random() < 0.5:
        return None
    drawn = draw_logical(frame.filled(words[0]), frame.filled(words[1]), link, subject, label, generator)
    if drawn is None:
        return None
    return SentencePair(drawn.premise, drawn.hypothesis, label, drawn.reason, " / ".join(sorted(words)))


def _pair(
    nodes: Sequence[Node], label: Relation, frame: Frame, generator: random.Random
) -> tuple[Node, Node, Link] | None:
    """Draw two nodes whose link can have the label."""
    wanted = generator.choice(("equal", "implies", "implies", "excludes", "excludes", "excludes"))
    if label == "entailment":
        wanted = generator.choice(("equal", "implies", "implies", "implies", "excludes"))
    if label == "neutral":
        wanted = generator.choice(("implies", "implies", "excludes"))
    for _ in range(30):
        first = generator.choice(nodes)
        near = (first, *first.wider)
        second = generator.choice(near if wanted in ("equal", "implies") else nodes)
        link = link_of(first, second)
        if link == "excludes" and not frame.is_exclusive:
            link = "open"
        if link == wanted or (link == "open" and label == "neutral" and wanted == "excludes"):
            return first, second, link
    return None


def _draw_open(group: Group, subject: Subject, generator: random.Random) -> SentencePair | None:
    """Draw two statements of two topics of which neither decides the other."""
    same_subjects = [one for one in groups() if one.topic != group.topic and _share(one, group, subject)]
    if not same_subjects:
        return None
    other = generator.choice(same_subjects)
    if other.is_of_people and other.topic in _OF_ONE:
        subject = draw_named(generator)
    texts = []
    for one in (group, other):
        words = generator.choice(generator.choice(one.nodes).words)
        texts.append(generator.choice(one.frames).filled(words))
    drawn = draw_logical(texts[0], texts[1], "open", subject, "neutral", generator)
    return drawn and SentencePair(drawn.premise, drawn.hypothesis, "neutral", "", f"{texts[0]} / {texts[1]}")


def _share(one: Group, other: Group, subject: Subject) -> bool:
    """Whether two groups may be about one subject, and leave each other open."""
    topics = {one.topic, other.topic}
    if topics <= _ENTANGLED or topics in _ENTANGLED_TOO:
        return False
    if one.is_of_people or other.is_of_people:
        return one.is_of_people and other.is_of_people
    named = f"the {subject.told.split(' ', 1)[-1]}"
    return named in one.subjects and topics not in _OF_THINGS


_OF_THINGS = (
    *(
        {"power", "working"},
        {"fill", "crowd"},
        {"moisture", "cleanliness"},
        {"interest", "quality"},
        {"age", "freshness"},
    ),
    *({"freshness", "cooking"}, {"taste", "quality"}, {"object", "animal"}, {"plant", "object"}, {"plant", "animal"}),
    *(
        {"light", "power"},
        {"weather", "sky"},
        {"weather", "snow"},
        {"quality", "weather"},
        {"temperature", "freshness"},
    ),
    *(
        {"condition", "working"},
        {"parts", "dayparts"},
        {"month", "parts"},
        {"tense"},
        {"temperature", "taste"},
    ),
    *(
        {"material", "colour"},
        {"size", "weight"},
        {"where", "opening"},
        {"building", "object"},
        {"water", "temperature"},
    ),
    *({"building", "animal"}, {"building", "plant"}, {"age", "price"}, {"danger", "difficulty"}, {"where", "moisture"}),
    *(
        {"where", "temperature"},
        {"where", "freshness"},
        {"where", "condition"},
        {"opening", "crowd"},
        {"animal", "bodies"},
    ),
)
