"""CLIP's byte-pair tokenizer, and vocabularies of one's own for it.

Shapes: N texts, W text tokens.
"""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

# SimpleTokenizer remembers every word that it ever saw; a server forgets them at this many.
MAX_REMEMBERED_WORDS = 100_000


class Tokenizer:
    """A CLIP tokenizer that can say how long a text is before it cuts it."""

    def __init__(self, tokenizer: Any, context_length: int) -> None:
        self._tokenizer = tokenizer
        self.context_length = context_length

    def num_tokens(self, text: str) -> int:
        """Tokens of a text with its start and end, before any truncation."""
        if hasattr(self._tokenizer, "encode"):
            self._forget_words()
            return len(self._tokenizer.encode(text)) + 2
        return len(self._tokenizer.tokenizer(text)["input_ids"])

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(N, W) int64, padded to and cut at the model's context length."""
        self._forget_words()
        input_ids: Tensor = self._tokenizer(list(texts), context_length=self.context_length)
        return input_ids

    def _forget_words(self) -> None:
        words: dict[str, str] = getattr(self._tokenizer, "cache", {})
        if len(words) > MAX_REMEMBERED_WORDS:
            words.clear()


def write_merges(merges: Sequence[tuple[str, str]], path: Path) -> None:
    """A BPE vocabulary in the format of open_clip's SimpleTokenizer: a header line, then a merge a line."""
    lines = ["#version: 0.2", *(" ".join(merge) for merge in merges)]
    # a fixed time in the gzip header keeps equal vocabularies equal in bytes, and so in digest
    path.write_bytes(gzip.compress("\n".join(lines).encode(), mtime=0))
