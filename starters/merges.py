"""Vocabularies of byte-pair merges, made of the words that a checkpoint is trained on."""

import gzip
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path


def learn_merges(texts: Iterable[str]) -> list[tuple[str, str]]:
    """Return byte-pair merges that make one token of each lower-case word of `texts`; other words fall into bytes.

    Words are merged from the left, each along the merges learned before it.
    """
    words = sorted({word for text in texts for word in re.findall(r"[a-z]+", text.lower())})
    merges: dict[tuple[str, str], int] = {}
    for word in words:
        symbols = [*word[:-1], word[-1] + "</w>"]
        while len(symbols) > 1:
            pairs = list(itertools.pairwise(symbols))
            best = min(pairs, key=lambda pair: merges.get(pair, len(merges)))
            merges.setdefault(best, len(merges))
            at = pairs.index(best)
            symbols[at : at + 2] = ["".join(best)]
    return list(merges)


def vocabulary_size(merges: Sequence[tuple[str, str]]) -> int:
    """Count a SimpleTokenizer's tokens with these merges: bytes inside and at the end of words, merges, start, end."""
    return 512 + len(merges) + 2


def write_merges(merges: Sequence[tuple[str, str]], path: Path) -> None:
    """Write a BPE vocabulary in the format of open_clip's SimpleTokenizer: a header line, then one merge per line."""
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    # a fixed time in the gzip header makes the bytes, and so the digests, of equal vocabularies equal
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
