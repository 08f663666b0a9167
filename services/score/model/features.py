"""Features of an image or a caption, as bytes for a cache, and readable heatmaps of the words of a caption.

Of tokens only what affects a score is kept: the directions of words and patches, and the relative lengths of patches.
Scaled to a length of at most 1, they fit into half precision for any model.

A heatmap is the attention of Eq. 6, which weights a token's patches: 0 at the patch least similar to the token, 1 at
the most similar. A token equally similar to all patches attends to all of them with 1.

Shapes: P patches, W text tokens, E embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.nn.clip_tokenizer import Tokenizer

Pooled = np.ndarray[Any, np.dtype[np.float32]]
Tokens = np.ndarray[Any, np.dtype[np.float16]]

# Distinguishes these bytes from other formats in a cache that outlives the process.
BYTES_FORMAT = "pooled-float32-tokens-float16"


@dataclass(frozen=True, eq=False)
class Features:
    """`pooled` (E,) of length 1; `tokens` (P, E) of an image, the longest of length 1, or (W, E) of a caption, from
    its first word to the end of the text, all of length 1."""

    pooled: Pooled
    tokens: Tokens

    def to_bytes(self) -> bytes:
        """Convert to little-endian bytes, the pooled features first."""
        return self.pooled.astype("<f4").tobytes() + self.tokens.astype("<f2").tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, width: int) -> "Features":
        """Read the output of `to_bytes` for features of this width."""
        pooled = np.frombuffer(data, "<f4", count=width)
        return cls(pooled, np.frombuffer(data, "<f2", offset=pooled.nbytes).reshape(-1, width))


Heatmaps = np.ndarray[Any, np.dtype[np.float32]]

# Further digits would be meaningless, because tokens are in half precision.
DECIMALS = 4
CONTINUES_A_WORD = "##"


def readable_pieces(tokenizer: Tokenizer, input_ids: Sequence[int]) -> list[str]:
    """Return a string for each token (W,): pieces of words, then `<end_of_text>`.

    A piece that continues a word begins with `##`; a byte that is not a complete character becomes U+FFFD.
    """
    pieces: list[str] = []
    begins_a_word = True
    for token in input_ids:
        piece = tokenizer.decode([token])
        pieces.append(piece.rstrip(" ") if begins_a_word else CONTINUES_A_WORD + piece.rstrip(" "))
        begins_a_word = piece.endswith(" ")
    return pieces


def as_heatmaps(weights: np.ndarray[Any, np.dtype[np.float32]], grid: tuple[int, int]) -> Heatmaps:
    """Arrange weights (W, P) → (W, rows, columns), rounded."""
    heatmaps: Heatmaps = np.round(weights.reshape(-1, *grid), DECIMALS)
    return heatmaps
