"""Where things are to each other in a caption: phrases of place, their opposites, and the things around them."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.score.annotation import Annotation, Span

# Of two phrases each is the other's opposite: both cannot be true of one pair of things.
_OPPOSED = (
    ("to the left of", "to the right of"),
    ("on the left of", "on the right of"),
    ("at the left of", "at the right of"),
    ("to the left side of", "to the right side of"),
    ("on the left side of", "on the right side of"),
    ("left of", "right of"),
    ("above", "below"),
    ("in front of", "behind"),
    ("inside", "outside"),
    ("inside of", "outside of"),
    ("at the top of", "at the bottom of"),
    ("on the top of", "on the bottom of"),
    ("into", "out of"),
    ("far from", "next to"),
)
# Of these the second is the opposite of the first, which is not that of the second.
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
    ("near", "far from"),
    ("beside", "far from"),
    ("close to", "far from"),
    ("onto", "off"),
    ("toward", "away from"),
    ("towards", "away from"),
    ("away from", "toward"),
)
# Said of so much beside places that they are only turned where a caption has nothing stronger.
_WEAK = (("on", "under"), ("in", "outside"), ("next to", "far from"), ("near", "far from"))
# What is near, is near the other way round: its two things are not exchanged.
_SYMMETRIC = frozenset(("next to", "near", "beside", "close to", "far from"))
_TIMES = """
day night morning afternoon evening noon summer winter spring fall autumn weekend time year month week minute hour
monday tuesday wednesday thursday friday saturday sunday
"""


def _opposites() -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for one, other in (*_OPPOSED, *((other, one) for one, other in _OPPOSED), *_ONE_WAY, *_WEAK):
        table[one] = (*table.get(one, ()), other)
    return {phrase: tuple(dict.fromkeys(others)) for phrase, others in table.items()}


OPPOSITES = _opposites()
TIMES = frozenset(_TIMES.split())
_BY_FIRST_WORD: dict[str, list[tuple[str, ...]]] = {}
for _phrase in sorted(OPPOSITES, key=lambda phrase: -len(phrase.split())):
    _BY_FIRST_WORD.setdefault(_phrase.split()[0], []).append(tuple(_phrase.split()))


@dataclass(frozen=True)
class Relation:
    """A phrase of place, the thing after it, and the one before it where there is one."""

    span: Span
    phrase: str
    subject: Span | None
    object: Span

    @property
    def is_strong(self) -> bool:
        return self.phrase not in {phrase for phrase, _ in _WEAK}

    @property
    def is_symmetric(self) -> bool:
        return self.phrase in _SYMMETRIC


def find_phrases(annotation: Annotation) -> list[Span]:
    """The phrases of place, the longest at each word, from left to right."""
    words, found, place = annotation.lowered, [], 0
    while place < len(words):
        length = next((len(p) for p in _BY_FIRST_WORD.get(words[place], ()) if words[place : place + len(p)] == p), 0)
        if length:
            found.append((place, place + length))
        place += length or 1
    return found


def things(annotation: Annotation, phrases: Sequence[Span]) -> list[Span]:
    """The noun chunks that are no part of a phrase of place."""
    taken = {place for start, end in phrases for place in range(start, end)}
    return [chunk for chunk in annotation.noun_chunks if taken.isdisjoint(range(*chunk))]


def find_relations(annotation: Annotation) -> list[Relation]:
    """The phrases of place that a thing follows."""
    phrases = find_phrases(annotation)
    chunks = things(annotation, phrases)
    starts = {chunk[0]: chunk for chunk in chunks}
    relations = []
    for span in phrases:
        if (behind := starts.get(span[1])) is None or annotation.lowered[behind[1] - 1] in TIMES:
            continue
        phrase = " ".join(annotation.lowered[slice(*span)])
        relations.append(Relation(span, phrase, _subject(annotation, chunks, span), behind))
    return relations


def _subject(annotation: Annotation, chunks: Sequence[Span], span: Span) -> Span | None:
    """The thing before a phrase with nothing but verbs and their company between."""
    before = next((chunk for chunk in reversed(chunks) if chunk[1] <= span[0]), None)
    if before is None or not {"VERB", "AUX", "ADV"}.issuperset(annotation.kinds[before[1] : span[0]]):
        return None
    return before
