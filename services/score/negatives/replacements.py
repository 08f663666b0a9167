"""Hard negatives by another word: a thing, a property, an action or a place is replaced by one that excludes it.

After SugarCrepe's "replace", which FSC-CLIP draws in training: a caption must name two things, and a relation or a
property; up to PER_ELEMENT replacements of each element are drawn by weight, then one of all of them.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from random import Random

from services.score.negatives.agreement import MEASURES, QUANTITIES, agreeing_verb
from services.score.negatives.annotation import NOUN_TAGS, Annotation, Span
from services.score.negatives.inflection import cased_like, plural
from services.score.negatives.lexicon import Candidates, Lexicon
from services.score.negatives.relations import NEEDS_NO_OBJECT, OPPOSITES, PICTURES, TIMES, Reading

PER_ELEMENT = 2
_PROPERTY_KINDS = frozenset(("DET", "NUM", "ADJ", "VERB"))
# Phrases of place by meaning, with their frequencies in 9,060 captions of COCO. Two meanings usually exclude each
# other; `near` and `at` are compatible with most of them, so they never replace any.
_PLACES: tuple[dict[str, int], ...] = (
    {"in": 2450, "inside": 39},
    {"on": 2803, "on top of": 363, "atop": 4},
    {"under": 109, "underneath": 26, "below": 15, "beneath": 5},
    {"over": 140, "above": 52},
    {"in front of": 317},
    {"behind": 136},
    {"outside": 86},
    {"far from": 10},
)
# other phrases of place, which may be replaced by those above
_REPLACEABLE = frozenset(("at", "by", "near", "next to", "beside", "close to", "against", "around", "along", "through"))
# Phrases that may be true together with those on the left, beside those of the same meaning.
_COMPATIBLE = {
    **dict.fromkeys(("by", "near", "next to", "beside", "close to"), ("in front of", "behind", "outside")),
    **{"against": ("on", "in front of"), "at": ("in", "on", "in front of", "outside"), "along": ("on", "in")},
    **{"through": ("in", "over"), "around": ("outside", "on", "in")},
}
# Phrases of a direction are excluded only by the opposite direction.
_DIRECTIONS = frozenset(("into", "out of", "onto", "off", "toward", "towards", "away from"))
_OTHER_PREPOSITIONS: dict[str, Candidates] = {"with": (("without", 1.0),), "without": (("with", 1.0),)}
# no particular word excludes these
_KEPT = frozenset((*TIMES, "background", "foreground", "close"))
# pronouns that may stand for one thing, and would not for two
_OF_ONE = frozenset(("he", "him", "his", "himself", "she", "her", "hers", "herself", "it", "its", "itself"))
_NOT_COUNTED = frozenset((*PICTURES, *_KEPT, *QUANTITIES))
# what may hold a thing: a glass of water
CONTAINERS = frozenset(
    form for noun in ("cup", "mug", "bottle", "bowl", "plate", "glass", "can", "box") for form in (noun, plural(noun))
)
_PARTICLES = frozenset(("up", "down", "out", "off", "away", "together", "back"))
_OPPOSITE_WEIGHT = 3.0


def replace(reading: Reading, lexicon: Lexicon, generator: Random) -> dict[Span, str] | None:
    """Draw a replacement, returned as the changed texts by span; None if nothing can be replaced.

    In addition to the elements, one thing that is `a` or `one` may become two or three.
    """
    annotation, chunks = reading.annotation, reading.things
    says_more = reading.phrases or annotation.verb_phrases or any(_properties(annotation, chunk) for chunk in chunks)
    if len(chunks) < 2 or not says_more:
        return None
    # one of all replacements that would be drawn: up to PER_ELEMENT of each element
    shares = [(span, found) for span, found in _elements(reading, lexicon) for _ in range(min(PER_ELEMENT, len(found)))]
    may_be_more = _OF_ONE.isdisjoint(annotation.lowered)
    counted = [chunk for chunk in chunks if may_be_more and _is_one(annotation, chunk)]
    chosen = generator.randrange(len(shares) + bool(counted)) if shares or counted else None
    if chosen is None:
        return None
    if chosen == len(shares):
        return _more(annotation, counted[generator.randrange(len(counted))], generator)
    span, candidates = shares[chosen]
    text = _drawn(candidates, generator, is_second=chosen > 0 and shares[chosen - 1][0] == span)
    return {span: cased_like(text, annotation.text(span))}


def _is_one(annotation: Annotation, chunk: Span) -> bool:
    """Whether a thing is stated to be one and may become more."""
    head = annotation.lowered[chunk[1] - 1]
    if annotation.lowered[chunk[1] : chunk[1] + 1] == ("of",) and head in MEASURES:
        return False
    is_thing = annotation.tags[chunk[1] - 1] == "NN" and head not in _NOT_COUNTED
    return is_thing and annotation.lowered[chunk[0]] in ("a", "an", "one") and chunk[1] - chunk[0] > 1


def _more(annotation: Annotation, chunk: Span, generator: Random) -> dict[Span, str]:
    """Make one thing two or three, and adapt its verb."""
    head = (chunk[1] - 1, chunk[1])
    number = cased_like(generator.choice(("two", "two", "three")), annotation.words[chunk[0]])
    noun = cased_like(plural(annotation.lowered[head[0]]), annotation.words[head[0]])
    return {(chunk[0], chunk[0] + 1): number, head: noun, **agreeing_verb(annotation, chunk)}


def _elements(reading: Reading, lexicon: Lexicon) -> Iterator[tuple[Span, Candidates]]:
    annotation, chunks, phrases = reading.annotation, reading.things, reading.phrases
    words, tags = annotation.lowered, annotation.tags
    for chunk in chunks:
        yield _head(annotation, chunk, lexicon)
        for place in _properties(annotation, chunk):
            yield (place, place + 1), lexicon.candidates(words[place], _property_tag(annotation, place))
    times = {chunk[0] for chunk in chunks if words[chunk[1] - 1] in TIMES}
    for phrase in phrases:
        if phrase.span[1] not in times:
            yield phrase.span, place_candidates(phrase.text)
    taken = {place for span in (*chunks, *(phrase.span for phrase in phrases)) for place in range(*span)}
    for place, kind in enumerate(annotation.kinds):
        if place in taken:
            continue
        if kind == "VERB" and not _has_particle(annotation, place):
            yield (place, place + 1), lexicon.candidates(words[place], tags[place])
        elif kind == "ADP" and place + 1 in taken - times and not _names_doer(annotation, place):
            yield (place, place + 1), place_candidates(words[place])


def _has_particle(annotation: Annotation, place: int) -> bool:
    """Whether a particle follows a verb: what excludes `sticks` does not go with `out`."""
    after = place + 1
    return annotation.tags[after : after + 1] == ("RP",) or not _PARTICLES.isdisjoint(annotation.lowered[after:][:1])


def _names_doer(annotation: Annotation, place: int) -> bool:
    """Whether a preposition is the `by` of a passive."""
    return annotation.lowered[place] == "by" and annotation.tags[place - 1 : place] in (("VBN",), ("VBD",))


def _head(annotation: Annotation, chunk: Span, lexicon: Lexicon) -> tuple[Span, Candidates]:
    """Return a thing's noun, or the compound that ends with it if the lexicon knows that."""
    words, tags, end = annotation.lowered, annotation.tags, chunk[1]
    last = (end - 1, end)
    of_something = words[end : end + 1] == ("of",)
    if words[end - 1] in _KEPT or (of_something and words[end - 1] in PICTURES | MEASURES):
        return last, ()
    if of_something and words[end - 1] in CONTAINERS:
        found = lexicon.candidates(words[end - 1], tags[end - 1])
        return last, [candidate for candidate in found if candidate[0] in CONTAINERS]
    if end - 2 >= chunk[0] and tags[end - 2] in NOUN_TAGS:
        compound = lexicon.candidates(f"{words[end - 2]} {words[end - 1]}", tags[end - 1])
        if compound:
            return (end - 2, end), compound
    return last, lexicon.candidates(words[end - 1], tags[end - 1])


def _properties(annotation: Annotation, chunk: Span) -> list[int]:
    """List the places of a thing's determiner, number, adjectives and nouns used as adjectives."""
    return [
        place
        for place in range(chunk[0], chunk[1] - 1)
        if annotation.kinds[place] in _PROPERTY_KINDS or annotation.tags[place] in NOUN_TAGS
    ]


def _property_tag(annotation: Annotation, place: int) -> str:
    if annotation.kinds[place] == "NUM":
        return "CD"
    tag = annotation.tags[place]
    return tag if tag in ("DT", "PRP$", "JJR", "JJS") else "JJ"


@lru_cache
def place_candidates(text: str) -> Candidates:
    """List phrases that exclude a phrase, weighted by the root of their frequency; opposites have the most weight."""
    if text in _OTHER_PREPOSITIONS:
        return _OTHER_PREPOSITIONS[text]
    opposites = OPPOSITES.get(text, ())
    if not opposites and text not in _REPLACEABLE and not any(text in meaning for meaning in _PLACES):
        return ()
    compatible = _COMPATIBLE.get(text, ())
    others = [meaning for meaning in _PLACES if text not in meaning and meaning.keys().isdisjoint(compatible)]
    total = {phrase: math.sqrt(count) for meaning in others for phrase, count in meaning.items()}
    is_side = text in NEEDS_NO_OBJECT or (text.endswith(" of") and not any(text in meaning for meaning in _PLACES))
    if is_side or text in _DIRECTIONS:  # only its opposite excludes "to the left of"
        total = {}
    share = _OPPOSITE_WEIGHT * (sum(total.values()) or 1) / (len(opposites) or 1)
    return tuple((total | dict.fromkeys(opposites, share)).items())


def _drawn(candidates: Candidates, generator: Random, *, is_second: bool) -> str:
    """Return the first of the draws by weight without replacement, or the second."""
    sums = list(accumulate(weight for _, weight in candidates))
    drawn = generator.choices(candidates, cum_weights=sums)[0]
    if is_second:
        others = [candidate for candidate in candidates if candidate != drawn]
        drawn = generator.choices(others, [weight for _, weight in others])[0] if others else drawn
    return drawn[0]
