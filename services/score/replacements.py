"""Hard negatives by another word: a thing, a property of it or a relation gives way to what excludes it.

After SugarCrepe's "replace", which FSC-CLIP draws while training: a caption must name two things, and a relation or a
property; up to PER_ELEMENT replacements of each element are drawn by weight, then one of all of them.
"""

from collections.abc import Iterator
from itertools import accumulate
from random import Random

from services.score.annotation import NOUN_TAGS, Annotation, Span
from services.score.inflection import cased_like
from services.score.lexicon import Candidates, Lexicon
from services.score.relations import OPPOSITES, find_phrases, things

PER_ELEMENT = 2
_MODIFIER_KINDS = frozenset(("DET", "NUM", "ADJ", "VERB"))


def replace(annotation: Annotation, lexicon: Lexicon, generator: Random) -> dict[Span, str] | None:
    """One element's span and what stands there instead; None where there is none."""
    phrases = find_phrases(annotation)
    chunks = things(annotation, phrases)
    has_modifier = any(_modifiers(annotation, chunk) for chunk in chunks)
    if len(chunks) < 2 or not (has_modifier or phrases or annotation.verb_phrases):
        return None
    drawn = [
        (span, text)
        for span, candidates in _elements(annotation, chunks, phrases, lexicon)
        for text in _drawn(candidates, generator)
    ]
    if not drawn:
        return None
    span, text = drawn[generator.randrange(len(drawn))]
    return {span: cased_like(text, annotation.words[span[0]])}


def _elements(
    annotation: Annotation, chunks: list[Span], phrases: list[Span], lexicon: Lexicon
) -> Iterator[tuple[Span, Candidates]]:
    words, tags = annotation.lowered, annotation.tags
    for chunk in chunks:
        head = chunk[1] - 1
        yield (head, head + 1), lexicon.candidates(words[head], tags[head])
        for place in _modifiers(annotation, chunk):
            tag = "CD" if annotation.kinds[place] == "NUM" else "JJ"
            yield (place, place + 1), lexicon.candidates(words[place], tag)
    for span in phrases:
        yield span, [(text, 1.0) for text in OPPOSITES[" ".join(words[slice(*span)])]]
    for place, kind in enumerate(annotation.kinds):
        if kind == "VERB" and not any(start <= place < end for start, end in (*chunks, *phrases)):
            yield (place, place + 1), lexicon.candidates(words[place], tags[place])


def _modifiers(annotation: Annotation, chunk: Span) -> list[int]:
    return [
        place
        for place in range(chunk[0], chunk[1] - 1)
        if annotation.kinds[place] in _MODIFIER_KINDS or annotation.tags[place] in NOUN_TAGS
    ]


def _drawn(candidates: Candidates, generator: Random) -> list[str]:
    """Up to PER_ELEMENT of the candidates, none twice."""
    if len(candidates) <= PER_ELEMENT:
        return [text for text, _ in candidates]
    sums = list(accumulate(weight for _, weight in candidates))
    drawn: dict[str, None] = {}
    for _ in range(PER_ELEMENT * 4):
        drawn[generator.choices(candidates, cum_weights=sums)[0][0]] = None
        if len(drawn) == PER_ELEMENT:
            break
    return list(drawn)
