"""Heatmaps of the words of a caption, for a reader: tokens that can be read, attention as a grid.

A heatmap is the attention of Eq. 6, by which a token's patches are weighted: 0 at the patch that is least like the
token, 1 at the one that is most. A token to which all patches are alike attends to all of them with 1.

Shapes: P patches, W text tokens.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from services.nn.clip_tokenizer import Tokenizer

Heatmaps = np.ndarray[Any, np.dtype[np.float32]]

# More would be digits of half-precision tokens that mean nothing.
DECIMALS = 4
CONTINUES_A_WORD = "##"


def readable_pieces(tokenizer: Tokenizer, input_ids: Sequence[int]) -> list[str]:
    """A string for each token (W,): pieces of words, then `<end_of_text>`.

    One that continues a word begins with `##`; a byte that is no character of its own is the replacement character.
    """
    pieces: list[str] = []
    begins_a_word = True
    for token in input_ids:
        piece = tokenizer.decode([token])
        pieces.append(piece.rstrip(" ") if begins_a_word else CONTINUES_A_WORD + piece.rstrip(" "))
        begins_a_word = piece.endswith(" ")
    return pieces


def as_heatmaps(weights: np.ndarray[Any, np.dtype[np.float32]], grid: tuple[int, int]) -> Heatmaps:
    """(W, P) → (W, rows, columns), rounded."""
    heatmaps: Heatmaps = np.round(weights.reshape(-1, *grid), DECIMALS)
    return heatmaps
