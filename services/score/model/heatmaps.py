"""Readable heatmaps of the words of a caption: token strings, and attention as a grid.

A heatmap is the attention of Eq. 6, which weights a token's patches: 0 at the patch least similar to the token, 1 at
the most similar. A token equally similar to all patches attends to all of them with 1.

Shapes: P patches, W text tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.nn.clip_tokenizer import Tokenizer

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
