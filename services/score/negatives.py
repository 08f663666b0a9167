"""Hard negatives of captions: texts that say nearly the same and are not true of the picture.

Four kinds: two phrases of a caption exchanged (`negclip`), a word replaced (`replace`), pairs of words shuffled
(`bigram_shuffle`), and a spatial relation turned round (`relation`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Literal, get_args

from services.score.annotation import Annotation, Annotator, Span, TextBlobAnnotator
from services.score.inflection import article, cased_like
from services.score.lexicon import Lexicon, Vocabulary
from services.score.relations import OPPOSITES, Relation, find_relations
from services.score.replacements import replace
from services.score.swaps import bigram_shuffle, negclip, normalised

Kind = Literal["negclip", "replace", "bigram_shuffle", "relation"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_CACHED = 65_536
# longer captions are annotated each time, so that the cache stays small
MAX_CACHED_CHARACTERS = 2_000


class HardNegatives:
    """Makes hard negatives; annotations of the last captions are kept, for captions come again in every epoch."""

    def __init__(self, annotator: Annotator, lexicon: Lexicon, sources: Mapping[str, str | None] | None = None) -> None:
        self.sources = dict(sources or {"tagger": annotator.name, "wordnet": None})
        self._lexicon = lexicon
        self._annotate = annotator.annotate
        self._annotated = lru_cache(MAX_CACHED)(annotator.annotate)

    def make(self, caption: str, kinds: Sequence[Kind], seed: int) -> dict[Kind, str | None]:
        """A text of each kind, or None where the caption has no counterpart of it.

        The same for the same caption, kind and seed, whatever else is asked; never the caption itself.
        """
        annotate = self._annotated if len(caption) <= MAX_CACHED_CHARACTERS else self._annotate
        annotation = annotate(caption)
        return {kind: self._one(annotation, caption, kind, _generator(caption, kind, seed)) for kind in kinds}

    def _one(self, annotation: Annotation, caption: str, kind: Kind, generator: Random) -> str | None:
        if kind == "bigram_shuffle":
            text = bigram_shuffle(annotation, generator)
        else:
            edits = (
                negclip(annotation, caption, generator)
                if kind == "negclip"
                else replace(annotation, self._lexicon, generator)
                if kind == "replace"
                else turned_round(annotation, generator)
            )
            text = annotation.replaced(_agreeing(annotation, edits)) if edits else None
        return text if text and normalised(text) != normalised(caption) else None


def turned_round(annotation: Annotation, generator: Random) -> dict[Span, str] | None:
    """A relation's phrase replaced by its opposite, or the two things around it exchanged."""
    relations = find_relations(annotation)
    relations = [one for one in relations if one.is_strong] or relations
    if not relations:
        return None
    relation = relations[generator.randrange(len(relations))]
    exchanged = _exchanged(annotation, relation)
    if exchanged and generator.random() < 0.5:
        return exchanged
    opposites = OPPOSITES[relation.phrase]
    text = opposites[generator.randrange(len(opposites))]
    return {relation.span: cased_like(text, annotation.words[relation.span[0]])}


def _exchanged(annotation: Annotation, relation: Relation) -> dict[Span, str] | None:
    if relation.subject is None or relation.is_symmetric:
        return None
    first, second = annotation.text(relation.subject), annotation.text(relation.object)
    if normalised(first) == normalised(second):
        return None
    if relation.subject[0] == 0 and first[:1].isupper() and first[1:2] != first[1:2].upper():
        first, second = first[:1].lower() + first[1:], second[:1].upper() + second[1:]
    return {relation.subject: second, relation.object: first}


def _agreeing(annotation: Annotation, edits: Mapping[Span, str]) -> dict[Span, str]:
    """The edits, and `a` or `an` before each as its new first word wants it."""
    agreeing = dict(edits)
    for (start, _), text in edits.items():
        before = start - 1
        if start and annotation.lowered[before] in ("a", "an") and not any(s <= before < e for s, e in edits):
            agreeing[before, start] = article(text, annotation.words[before])
    return agreeing


def installed_hard_negatives(wordnet: Path | None = None) -> HardNegatives:
    """Hard negatives with the best tagger and WordNet that this machine has."""
    return HardNegatives(TextBlobAnnotator(), Vocabulary())


def _generator(caption: str, kind: Kind, seed: int) -> Random:
    text = f"{kind} {seed} {caption}".encode("utf-8", "surrogatepass")
    return Random(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest()))
