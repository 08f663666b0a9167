"""Hard negatives that deny a part of the caption, as CREPE's NEGATE."""

import re
from itertools import pairwise
from random import Random

from services.score.negatives.agreement import QUANTITIES
from services.score.negatives.annotation import Annotation, Span
from services.score.negatives.inflection import cased_like

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
