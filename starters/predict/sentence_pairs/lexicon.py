"""The words of inferences in one lexicon: the group of each, and how one of a sentence stands to one of another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import NamedTuple

from starters.predict.inferences import ASPECTS
from starters.predict.sentence_pairs.frames import OPPOSITES
from starters.predict.sentence_pairs.handwritten.groups import Group, groups, link_of
from starters.predict.sentence_pairs.places import CONVERSES
from starters.predict.sentence_pairs.relations import KIN, ROLES
from starters.predict.sentence_pairs.taxonomies import QUALITIES, Relation, quality_groups, taxonomy
from starters.predict.spans import Word

# How a word stands to the nearest word of the other sentence; "wider" is the wider one of the two.
RELATIONS = ("alone", "same", "wider", "narrower", "overlapping", "exclusive", "opposite", "greater", "smaller")
_NEAREST_FIRST = ("same", "opposite", "wider", "narrower", "overlapping", "exclusive", "alone")
_NAMED = (
    "kinds",
    "clothes",
    "people",
    "jobs",
    "activities",
    "places",
    "cities",
    "positions",
    "days",
    "months",
    "hours",
)
_TOPS = "kinds"
_MAX_WORDS = 5
# Past tenses that are more frequent than the tool.
_VERBS = {("saw",)}


@dataclass(frozen=True)
class _Family:
    """Words of which one implies, excludes or leaves open another, and the name of the group that each is of."""

    groups: Mapping[str, str]
    relation: Callable[[str, str], Relation]
    wider: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class Entry(NamedTuple):
    """A word or phrase of the lexicon in a text: its spelling in each family that has it."""

    start: int
    end: int
    spellings: Mapping[int, str]


def relation_of(one: Entry, others: Sequence[Entry]) -> str:
    """Return how an entry stands to the nearest one of another sentence, one of RELATIONS."""
    found = {_relation(one, other) for other in others}
    return next((relation for relation in _NEAREST_FIRST if relation in found), "alone")


def group_of(entry: Entry) -> str | None:
    """Return the group of an entry, one of `group_names`; None if it may be of several."""
    groups = {_families()[number].groups[spelling] for number, spelling in entry.spellings.items()} - {""}
    return groups.pop() if len(groups) == 1 else None


def nearest_wider(entry: Entry) -> str | None:
    """The nearest wider word of an entry, one of `wide_words`; None if there is none, or several."""
    found = {words[0] for words in _wider(entry) if words}
    return found.pop() if len(found) == 1 else None


def as_wide(entry: Entry) -> str | None:
    """The word of an entry if it is one of `wide_words`."""
    return next((one for one in entry.spellings.values() if one in wide_words()), None)


def _wider(entry: Entry) -> list[tuple[str, ...]]:
    """The wider words of an entry in each family, without those that mean the same."""
    found = []
    for number, spelling in entry.spellings.items():
        wider = _families()[number].wider
        found.append(tuple(word for word in wider.get(spelling, ()) if spelling not in wider[word]))
    return found


@cache
def wide_words() -> tuple[str, ...]:
    """Return the words that are wider than others, in order."""
    return tuple(sorted({word for family in _families() for some in family.wider.values() for word in some}))


@cache
def group_names() -> tuple[str, ...]:
    """Return the names of all groups, in order."""
    return tuple(sorted({group for family in _families() for group in family.groups.values()} - {""}))


def entries_of(words: Sequence[Word]) -> list[Entry]:
    """Find the words and phrases of a sentence that the lexicon has, the longest that begins at each word."""
    found, place = [], 0
    while place < len(words):
        for length in range(min(_MAX_WORDS, len(words) - place), 0, -1):
            some = words[place : place + length]
            spellings = _spellings().get(tuple(word.text for word in some))
            if spellings is not None:
                found.append(Entry(some[0].start, some[-1].end, spellings))
                place += length
                break
        else:
            place += 1
    return found


def _relation(one: Entry, other: Entry) -> str:
    found = set()
    for number in one.spellings.keys() & other.spellings.keys():
        family, mine, its = _families()[number], one.spellings[number], other.spellings[number]
        up, down = family.relation(mine, its), family.relation(its, mine)
        if mine == its or up == down == "entailment":
            found.add("same")
        elif {mine, its} in OPPOSITES:
            found.add("opposite")
        elif up == "entailment":
            found.add("narrower")
        elif down == "entailment":
            found.add("wider")
        else:
            found.add("exclusive" if up == down == "contradiction" else "overlapping")
    return next((relation for relation in _NEAREST_FIRST if relation in found), "alone")


@cache
def _spellings() -> Mapping[tuple[str, ...], Mapping[int, str]]:
    """Return the spelling in each family by the words of a phrase, also with a plural's s."""
    found: dict[tuple[str, ...], dict[int, str]] = {}
    for number, family in enumerate(_families()):
        for spelling in family.groups:
            words = tuple(spelling.lower().split(" "))
            for written in {words, (*words[:-1], f"{words[-1]}s")} - _VERBS:
                found.setdefault(written, {}).setdefault(number, spelling)
    return found


@cache
def _families() -> tuple[_Family, ...]:
    some = [_Family(_named_groups(name), taxonomy(name).relation, taxonomy(name).wider) for name in _NAMED]
    names = _quality_names()
    for kind in QUALITIES:
        for group in quality_groups(kind):
            some.append(_Family({word: names[word] for word in group.words}, group.relation, group.wider))
    for name, aspect in ASPECTS.items():
        plain = {words.removeprefix("a ").removeprefix("an "): words for words in (*aspect.exact, *aspect.wider)}
        # the words of narrow scenes are of the groups of the same words elsewhere
        some.append(_Family(dict.fromkeys(plain, "" if name != "wearing" else "garment"), _of_aspect(name, plain)))
    for pair in CONVERSES:
        some.append(_Family(dict.fromkeys(pair, "comparison"), _exclusive))
    some.append(_Family(dict.fromkeys((*KIN, *ROLES), "relation"), _exclusive))
    some.extend(_of_group(group) for group in groups())
    return tuple(some)


def _of_aspect(name: str, plain: Mapping[str, str]) -> Callable[[str, str], Relation]:
    return lambda told, said: ASPECTS[name].relation(plain[told], plain[said])


def _of_group(group: Group) -> _Family:
    """Return a group of words written by hand as a family, whose words have no group name of their own."""
    nodes = {word: node for node in group.nodes for word in node.words if "{" not in word}

    def relation(told: str, said: str) -> Relation:
        link = link_of(nodes[told], nodes[said])
        return "contradiction" if link == "excludes" else "neutral" if link is None else "entailment"

    wider = {word: tuple(one.words[0] for one in node.wider if "{" not in one.words[0]) for word, node in nodes.items()}
    return _Family(dict.fromkeys(nodes, ""), relation, wider)


def _exclusive(told: str, said: str) -> Relation:
    return "entailment" if told == said else "contradiction"


def _named_groups(name: str) -> dict[str, str]:
    """Name the groups of a taxonomy's words: kinds of things have one for each of the widest."""
    wider = taxonomy(name).wider
    if name != _TOPS:
        return dict.fromkeys(wider, name)
    tops = {word for word, above in wider.items() if not above}
    return {word: next((one for one in (word, *above) if one in tops), word) for word, above in wider.items()}


def _quality_names() -> dict[str, str]:
    """Name the groups of qualities: those with a word in common, such as wet and dry of two subjects, are one."""
    parents: dict[str, str] = {}

    def first(word: str) -> str:
        while parents.setdefault(word, word) != word:
            word = parents[word]
        return word

    for kind in QUALITIES:
        for group in quality_groups(kind):
            first(group.words[0])
            for one, two in pairwise(group.words):
                parents[first(two)] = first(one)
    return {word: first(word) for word in parents}
