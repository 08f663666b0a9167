"""Relations of things in a caption: phrases of place, their opposites, and the things around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

from services.score.negatives.annotation import Annotation, Span

# Pairs of phrases that are opposites: they cannot both be true of the same two things.
_OPPOSED = (
    ("to the left of", "to the right of"),
    ("on the left of", "on the right of"),
    ("at the left of", "at the right of"),
    ("to the left side of", "to the right side of"),
    ("on the left side of", "on the right side of"),
    ("on the left hand side of", "on the right hand side of"),
    ("left of", "right of"),
    ("above", "below"),
    ("in front of", "behind"),
    ("inside", "outside"),
    ("inside of", "outside of"),
    ("at the top of", "at the bottom of"),
    ("on the top of", "on the bottom of"),
    ("near the top of", "near the bottom of"),
    ("into", "out of"),
    ("far from", "next to"),
)
# Pairs whose second phrase is an opposite of the first, but not vice versa.
_ONE_WAY = (
    ("on top of", "underneath"),
    ("on top of", "under"),
    ("atop", "underneath"),
    ("over", "under"),
    ("under", "above"),
    ("under", "on top of"),
    ("underneath", "on top of"),
    ("beneath", "above"),
    ("beneath", "on top of"),
    ("ahead of", "behind"),
    ("far away from", "next to"),
    ("in the middle of", "on the edge of"),
    ("in the center of", "on the edge of"),
    ("in back of", "in front of"),
    ("on", "under"),
    ("near", "far from"),
    ("beside", "far from"),
    ("close to", "far from"),
    ("onto", "off"),
    ("toward", "away from"),
    ("towards", "away from"),
    ("away from", "toward"),
    ("in", "outside"),
)
# Places in the picture itself, which need not be followed by a thing.
_SIDES = (
    ("in the foreground", "in the background"),
    ("on the left side", "on the right side"),
    ("on the left", "on the right"),
    ("to the left", "to the right"),
    ("at the left", "at the right"),
    ("at the top", "at the bottom"),
    ("at the front", "at the back"),
)
# Parts of the picture, with their vertical or horizontal opposites.
_ROWS = {"top": "bottom", "bottom": "top", "upper": "lower", "lower": "upper", "middle": None}
_COLUMNS = {"left": "right", "right": "left", "center": None}
# Symmetric phrases remain true if their two things are exchanged, so these are never exchanged.
_SYMMETRIC = frozenset(("next to", "near", "beside", "close to", "far from", "far away from"))
# Very common phrases are inverted only if a caption has nothing clearer; `in` (a shirt, a kitchen) is last.
_RANKS = {"on": 1, "next to": 1, "near": 1, "beside": 1, "close to": 1, "in": 3}
_DEED_RANK = 2
_TIMES_TEXT = """
day days night nights morning afternoon evening noon summer winter spring fall autumn weekend time year years month week
minute hour monday tuesday wednesday thursday friday saturday sunday
"""
TIMES = frozenset(_TIMES_TEXT.split())
# Words for a picture are not part of the thing that it shows: left of "a photo of a dog" is left of the dog.
_PICTURES_TEXT = """
photo photograph picture pic image shot close-up closeup up view painting drawing sketch rendering render scene portrait
"""
PICTURES = frozenset(_PICTURES_TEXT.split())
_SAYS_WHERE = frozenset(("ADP", "ADV", "SCONJ"))
_NAMES_THING = frozenset(("NOUN", "PROPN", "NUM"))
_SOMETHING = frozenset(("something", "someone", "somebody", "anything", "anyone", "everything", "nothing", "one"))
_BETWEEN = frozenset(("VERB", "AUX", "ADV", "PART"))
RELATIVES = frozenset(("that", "which", "who"))


def _table() -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    both_ways = (*_OPPOSED, *_SIDES)
    for one, other in (*both_ways, *((other, one) for one, other in both_ways), *_ONE_WAY):
        table[one] = (*table.get(one, ()), other)
    return table


def _corners() -> dict[str, tuple[str, ...]]:
    table = {}
    for (row, other_row), (column, other_column) in product(_ROWS.items(), _COLUMNS.items()):
        others = [f"{other_row} {column}"] * bool(other_row) + [f"{row} {other_column}"] * bool(other_column)
        for before in ("", "in the ", "at the ", "on the ") if others else ():
            table[f"{before}{row} {column}"] = tuple(f"{before}{other}" for other in others)
    return table


_CORNERS = _corners()
OPPOSITES = _table() | _CORNERS
NEEDS_NO_OBJECT = frozenset((*(phrase for pair in _SIDES for phrase in pair), *_CORNERS))
_BY_FIRST_WORD: dict[str, list[tuple[str, ...]]] = {}
for _phrase in sorted(OPPOSITES, key=lambda phrase: -len(phrase.split())):
    _BY_FIRST_WORD.setdefault(_phrase.split()[0], []).append(tuple(_phrase.split()))


class Phrase(NamedTuple):
    """A phrase of place in a caption."""

    span: Span
    text: str  # lower-case, a key of OPPOSITES


@dataclass(frozen=True)
class Relation:
    """A phrase of place or an action, the thing before it and the thing after it, each None if there is none.

    A thing is a noun chunk with the chunks that `of` joins to it. Relations of the lowest rank are the clearest.
    """

    phrase: Phrase | None
    subject: Span | None
    object: Span | None
    rank: int

    @property
    def can_be_exchanged(self) -> bool:
        """Tell whether both things exist, and the caption would be false with the two exchanged."""
        is_symmetric = self.phrase is not None and self.phrase.text in _SYMMETRIC
        return self.subject is not None and self.object is not None and not is_symmetric


class Reading:
    """The content of a caption, computed on demand: phrases of place, things, and their relations."""

    def __init__(self, annotation: Annotation) -> None:
        self.annotation = annotation

    @cached_property
    def phrases(self) -> list[Phrase]:
        """The phrases of place, the longest at each word, from left to right."""
        words, kinds, found, done = self.annotation.lowered, self.annotation.kinds, [], 0
        for place, word in enumerate(words):
            if place < done or word not in _BY_FIRST_WORD:
                continue
            for parts in _BY_FIRST_WORD[word]:
                end = place + len(parts)
                if words[place:end] == parts and (len(parts) > 1 or kinds[place] in _SAYS_WHERE):
                    found.append(Phrase((place, end), " ".join(parts)))
                    done = end
                    break
        return found

    @cached_property
    def things(self) -> list[Span]:
        """The noun chunks that are not part of a phrase of place, without pronouns."""
        taken = {place for phrase in self.phrases for place in range(*phrase.span)}
        kinds = self.annotation.kinds
        chunks = [
            chunk
            for chunk in self.annotation.noun_chunks
            if kinds[chunk[1] - 1] in _NAMES_THING and self.annotation.lowered[chunk[1] - 1] not in _SOMETHING
        ]
        return [chunk for chunk in chunks if taken.isdisjoint(range(*chunk))] if taken else chunks

    @cached_property
    def relations(self) -> list[Relation]:
        """The phrases of place that locate a thing, and the actions with an object."""
        annotation = self.annotation
        whole = _with_of(annotation, self.things)
        by_start = {thing[0]: thing for thing in whole}
        relations = []
        for phrase in self.phrases:
            after = by_start.get(phrase.span[1])
            if after is not None and annotation.lowered[after[1] - 1] in TIMES:
                continue
            if after is not None or phrase.text in NEEDS_NO_OBJECT:
                before = _before(annotation, whole, phrase.span[0])
                relations.append(Relation(phrase, before, after, _RANKS.get(phrase.text, 0)))
        for thing in whole:
            place = thing[0] - 1
            is_done_to = place > 0 and annotation.kinds[place] == "VERB" and annotation.tags[place] != "VBN"
            if is_done_to and (doer := _before(annotation, whole, thing[0])) is not None:
                relations.append(Relation(None, doer, thing, _DEED_RANK))
        return relations


def _with_of(annotation: Annotation, chunks: Sequence[Span]) -> list[Span]:
    """Join chunks that are separated only by `of`."""
    joined: list[Span] = []
    for chunk in chunks:
        hangs = bool(joined) and joined[-1][1] + 1 == chunk[0] and annotation.lowered[chunk[0] - 1] == "of"
        if hangs and annotation.lowered[joined[-1][1] - 1] not in PICTURES:
            joined[-1] = (joined[-1][0], chunk[1])
        else:
            joined.append(chunk)
    return joined


def _before(annotation: Annotation, whole: Sequence[Span], place: int) -> Span | None:
    """Find the thing before a place with only verbs and the like between; what it is `with` is not part of it."""
    found = [thing for thing in whole if thing[1] <= place]
    if not found:
        return None
    between = range(found[-1][1], place)
    if not all(annotation.kinds[p] in _BETWEEN or annotation.lowered[p] in RELATIVES for p in between):
        return None
    while len(found) > 1 and found[-2][1] + 1 == found[-1][0] and annotation.lowered[found[-2][1]] == "with":
        found.pop()
    return found[-1]
