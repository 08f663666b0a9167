"""Hard negatives of captions: similar texts that are not true of the picture."""

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Literal, get_args

from services.score.negatives.agreement import agreeing_articles, agreeing_swap
from services.score.negatives.annotation import Annotator, best_annotator
from services.score.negatives.lexicon import FirstOf, Lexicon, Vocabulary
from services.score.negatives.relations import Reading
from services.score.negatives.replacements import replace
from services.score.negatives.swaps import bigram_shuffle, deny, negclip, normalised, turn
from services.score.negatives.wordnet import find_wordnet
from services.score.negatives.wordnet_lexicon import WordNetLexicon

# Two phrases of a caption exchanged, a word replaced, pairs of words shuffled, a spatial relation inverted, a verb or a
# thing denied.
Kind = Literal["negclip", "replace", "bigram_shuffle", "relation", "negate"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Kinds used in FSC-CLIP's published tuning.
PAPER_KINDS: tuple[Kind, ...] = ("negclip", "replace", "bigram_shuffle")


# A picture's caption takes about 4 KB, one as long as the annotation limit up to 60: usually 16 MB and at most 256 in
# each process that makes negatives.
MAX_CACHED = 4_096
# longer captions are annotated each time, so that their texts add little to that
MAX_CACHED_CHARACTERS = 1_000
# number of attempts to draw a text that differs from the caption
DRAWS = 3


class HardNegatives:
    """Makes hard negatives and caches the annotations of recent captions, because captions recur in every epoch."""

    def __init__(self, annotator: Annotator, lexicon: Lexicon, sources: Mapping[str, str | None] | None = None) -> None:
        self.sources = dict(sources or {"tagger": annotator.name, "wordnet": None})
        self._annotator = annotator
        self._lexicon = lexicon
        self._kept = lru_cache(MAX_CACHED)(self._read)

    def __reduce__(self) -> tuple[type["HardNegatives"], tuple[Annotator, Lexicon, dict[str, str | None]]]:
        return HardNegatives, (self._annotator, self._lexicon, self.sources)

    def make(self, caption: str, kinds: Sequence[Kind], seed: int) -> dict[Kind, str | None]:
        """Make a text of each kind, or None if the caption has no counterpart of it.

        The result depends only on the caption, kind and seed, not on other requested kinds; it is never the caption
        itself, even with other capitals or white space.
        """
        reading = self._kept(caption) if len(caption) <= MAX_CACHED_CHARACTERS else self._read(caption)
        tail = reading.annotation.tail
        same = normalised(caption.removesuffix(tail))
        made: dict[Kind, str | None] = {}
        for kind in kinds:
            generator = _generator(caption, kind, seed)
            texts = (self._one(reading, kind, generator) for _ in range(DRAWS))
            # the text beyond the limits is the same in all of them
            made[kind] = next((t for t in texts if t is None or normalised(t.removesuffix(tail)) != same), None)
        return made

    def _read(self, caption: str) -> Reading:
        return Reading(self._annotator.annotate(caption))

    def _one(self, reading: Reading, kind: Kind, generator: Random) -> str | None:
        annotation = reading.annotation
        if kind == "bigram_shuffle":
            return bigram_shuffle(annotation, generator)
        if kind == "negclip":
            swapped = negclip(annotation, generator)
            edits = agreeing_swap(annotation, swapped) if swapped else None
        elif kind == "replace":
            edits = replace(reading, self._lexicon, generator)
        elif kind == "negate":
            edits = deny(annotation, generator)
        else:
            edits = turn(reading, generator)
        return annotation.replaced(agreeing_articles(annotation, edits)) if edits else None


def installed_hard_negatives(wordnet: Path | None = None) -> HardNegatives:
    """Make hard negatives with the best tagger and the WordNet of this machine, or the WordNet in a folder.

    The small vocabulary has priority, because its colors, sizes and counts are mutually exclusive with certainty.
    Raises ModuleNotFoundError without a tagger, FileNotFoundError if the folder holds no WordNet.
    """
    annotator, database = best_annotator(), find_wordnet(wordnet)
    lexicon = Vocabulary() if database is None else FirstOf((Vocabulary(), WordNetLexicon(database)))
    source = None if database is None else str(database.source)
    return HardNegatives(annotator, lexicon, {"tagger": annotator.name, "wordnet": source})


def _generator(caption: str, kind: Kind, seed: int) -> Random:
    text = f"{kind} {seed} {caption}".encode("utf-8", "surrogatepass")
    return Random(int.from_bytes(hashlib.blake2b(text, digest_size=16).digest()))
