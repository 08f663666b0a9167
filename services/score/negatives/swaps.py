"""Hard negatives made of a caption's own words.

Two phrases are exchanged (NegCLIP), or the caption's pairs of words are shuffled; both follow the released code of
FSC-CLIP draw by draw: a `random.Random` with the same seed gives the same texts if the annotations are equal, except
for the capital at the start of a sentence, which stays there. Alternatively, a relation becomes its opposite, or its
two things are exchanged; or a verb or a thing is denied.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import TypeVar

from services.score.negatives.agreement import QUANTITIES, agreeing_verb, is_plural
from services.score.negatives.annotation import Annotation, Span
from services.score.negatives.inflection import cased_like
from services.score.negatives.relations import OPPOSITES, Reading, Relation


def turn(reading: Reading, generator: Random) -> dict[Span, str] | None:
    """Invert a relation of the caption, returned as the changed texts by span; None if there is no relation.

    One of the clearest relations is drawn; if both its phrase and its things can be changed, one of these is drawn too.
    """
    annotation = reading.annotation
    relations = [one for one in reading.relations if one.phrase or _exchanged(annotation, one)]
    clearest = [one for one in relations if one.rank == min(other.rank for other in relations)]
    if not clearest:
        return None
    relation = clearest[generator.randrange(len(clearest))]
    exchanged = _exchanged(annotation, relation)
    if relation.phrase is None or (exchanged and generator.random() < 0.5):
        return exchanged
    opposites = OPPOSITES[relation.phrase.text]
    text = opposites[generator.randrange(len(opposites))]
    return {relation.phrase.span: cased_like(text, annotation.text(relation.phrase.span))}


def _exchanged(annotation: Annotation, relation: Relation) -> dict[Span, str] | None:
    """Give each thing the other's text; the verb between them agrees with the new subject."""
    if not relation.can_be_exchanged or relation.subject is None or relation.object is None:
        return None
    if annotation.text(relation.subject).lower() == annotation.text(relation.object).lower():
        return None
    edits = exchange(annotation, relation.subject, relation.object)
    if is_plural(annotation, relation.subject) != is_plural(annotation, relation.object):
        edits |= agreeing_verb(annotation, relation.subject)
    return edits


T = TypeVar("T")

# Attempts to shuffle pairs until the result differs.
SHUFFLES = 10
# Noun phrases of this many words or more are swapped as a whole; shorter ones by their nouns.
MIN_CHUNK_WORDS = 3


def normalised(text: str) -> str:
    """Remove differences of case and white space, which do not make two texts different."""
    return " ".join(text.casefold().split())


def negclip(annotation: Annotation, generator: Random) -> dict[Span, str] | None:
    """Exchange the texts of two spans of one kind: one pair of each kind is drawn, then one of the pairs.

    The kinds are noun chunks of three words and more, verb phrases, singular nouns, plural nouns, adverbs and
    adjectives. None if no kind has two spans of different texts.
    """
    pairs = []
    for spans in _kinds_of_spans(annotation):
        drawn = generator.sample(spans, 2) if len(spans) > 2 else spans
        if len(drawn) == 2 and normalised(annotation.text(drawn[0])) != normalised(annotation.text(drawn[1])):
            pairs.append((drawn[0], drawn[1]))
    return exchange(annotation, *generator.sample(pairs, 1)[0]) if pairs else None


def exchange(annotation: Annotation, one: Span, other: Span) -> dict[Span, str]:
    """Give each of two spans the other's text; the capital at the start of a sentence stays there."""
    first, second = sorted((one, other))
    texts = annotation.text(first), annotation.text(second)
    if not annotation.starts_sentence(first[0]):
        return {first: texts[1], second: texts[0]}
    return {first: cased_like(texts[1], texts[0]), second: inside_sentence(annotation, first)}


def inside_sentence(annotation: Annotation, first: Span) -> str:
    """Return the text of the span at the start of a sentence as it is written inside of one."""
    text, word = annotation.text(first), annotation.words[first[0]]
    # names, titles and texts in capitals keep their capitals
    is_name = annotation.tags[first[0]].startswith("NNP") or word == "I" or (" " in text and text.istitle())
    is_shouted = any(len(one) > 1 and one.isupper() for one in (word, text))
    return text if is_name or is_shouted else text[:1].lower() + text[1:]


def _kinds_of_spans(annotation: Annotation) -> Iterable[Sequence[Span]]:
    yield [span for span in annotation.noun_chunks if span[1] - span[0] >= MIN_CHUNK_WORDS]
    yield annotation.verb_phrases
    for values, wanted in (
        (annotation.tags, "NN"),
        (annotation.tags, "NNS"),
        (annotation.kinds, "ADV"),
        (annotation.kinds, "ADJ"),
    ):
        yield [(place, place + 1) for place, value in enumerate(values) if value == wanted]


def bigram_shuffle(annotation: Annotation, generator: Random) -> str | None:
    """Shuffle the caption's consecutive pairs of words; None if it has at most one pair, or all are alike.

    A single punctuation mark at the end is put after a random pair. The white space between words is not kept.
    """
    same = _without_edges(annotation, range(len(annotation.words)))
    for _ in range(SHUFFLES):
        pairs = _shuffled_pairs(annotation, generator)
        if pairs is None:
            return None
        order = [place for pair in pairs for place in pair]
        if _without_edges(annotation, order) != same:
            return " ".join(_joined(annotation, pair) for pair in pairs) + annotation.tail
    return None


def _shuffled_pairs(annotation: Annotation, generator: Random) -> list[list[int]] | None:
    places = range(len(annotation.words))
    pairs = [list(places[start : start + 2]) for start in places[::2]]
    if len(pairs) < 2:
        return None
    last = pairs[-1]
    if len(last) == 1 and annotation.kinds[last[0]] == "PUNCT":
        if len(pairs) == 2:
            return None
        pairs.pop()
        generator.shuffle(pairs)
        behind = generator.randint(0, len(pairs))
        if behind == 0:
            pairs.insert(0, last)
        else:
            pairs[behind - 1].extend(last)
    else:
        generator.shuffle(pairs)
    return pairs


def _joined(annotation: Annotation, places: Sequence[int]) -> str:
    parts = []
    for position, place in enumerate(places):
        clings = annotation.kinds[place] == "PUNCT" or (place in places[1:] and not annotation.spaces[place - 1])
        parts.append(annotation.words[place] if position == 0 or clings else f" {annotation.words[place]}")
    return "".join(parts)


def _without_edges(annotation: Annotation, order: Sequence[int]) -> str:
    ends = (0, len(order) - 1)
    kept = [p for at, p in enumerate(order) if not (at in ends and annotation.kinds[p] == "PUNCT")]
    return normalised(" ".join(annotation.words[place] for place in kept))


# Auxiliaries that `not` may follow, words that already deny, and words with which `no` does not go.
_DENIED = frozenset(("is", "are", "was", "were", "can", "could", "has", "have", "had", "does", "do"))
_DENIALS = frozenset(
    ("not", "n't", "n’t", "cannot", "no", "none", "nobody", "nothing", "never", "neither", "nor", "without")
)
_CLITIC = re.compile(r"(n['’]t|['’]\w+)")
_AMOUNTS = QUANTITIES | {"few", "little", "bit", "great", "dozen", "hundred", "thousand"}


def deny(annotation: Annotation, generator: Random) -> dict[Span, str] | None:
    """Put `not` after an auxiliary such as `is`, or `no` in the place of an article, returned as changed text by span.

    None if the caption has neither, or denies something already, because two denials would make no English.
    """
    words, tags = annotation.lowered, annotation.tags
    if not _DENIALS.isdisjoint(words):
        return None
    denied = [
        (place, f"{annotation.words[place]} not")
        for place, kind in enumerate(annotation.kinds)
        if kind == "AUX" and words[place] in _DENIED and not is_joined(annotation, place + 1)
    ]
    denied += [
        (place, cased_like("no", annotation.words[place]))
        for place, (word, following) in enumerate(pairwise(words))
        if word in ("a", "an") and tags[place] == "DT" and annotation.spaces[place] and _is_denied_thing(following)
    ]
    if not denied:
        return None
    place, text = denied[generator.randrange(len(denied))]
    return {(place, place + 1): text}


def is_joined(annotation: Annotation, place: int) -> bool:
    """Whether a word is the second half of a contraction: `'s`, `n't`."""
    return place < len(annotation.words) and bool(_CLITIC.fullmatch(annotation.lowered[place]))


def _is_denied_thing(word: str) -> bool:
    return word[0].isalnum() and word not in _AMOUNTS
