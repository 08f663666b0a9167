"""Features of an image or a caption, as bytes for a cache, and readable heatmaps of the words of a caption.

Of tokens only what affects a score is kept: the directions of words and patches, and the relative lengths of patches.
Scaled to a length of at most 1, they fit into half precision for any model.

A heatmap is the attention of Eq. 6, which weights a token's patches: 0 at the patch least similar to the token, 1 at
the most similar. A token equally similar to all patches attends to all of them with 1.

Shapes: P patches, W text tokens, E embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.nn.clip_tokenizer import Tokenizer
from services.nn.device_copies import to_host

Pooled = np.ndarray[Any, np.dtype[np.float32]]
Tokens = np.ndarray[Any, np.dtype[np.float16]]

# Distinguishes these bytes from other formats in a cache that outlives the process.
BYTES_FORMAT = "pooled-float32-tokens-float16"


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """The tokens of a batch of images (B, P, E) or captions (N, W, E), float16, on the device that computed them.

    All of them are copied to the host together, once one of them is needed there.
    """

    on_device: Tensor

    @cached_property
    def on_host(self) -> Tokens:
        return to_host(self.on_device)


class BatchPart(NamedTuple):
    """The tokens of one image or caption: those from `start` to `end` at a place in a batch."""

    batch: TokenBatch
    place: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class Features:
    """`pooled` (E,) of length 1; `tokens` (P, E) of an image, the longest of length 1, or (W, E) of a caption, from
    its first word to the end of the text, all of length 1."""

    pooled: Pooled
    kept: Tokens | BatchPart

    @property
    def num_tokens(self) -> int:
        return len(self.kept) if isinstance(self.kept, np.ndarray) else self.kept.end - self.kept.start

    @property
    def tokens(self) -> Tokens:
        """The tokens in host memory."""
        if isinstance(self.kept, np.ndarray):
            return self.kept
        batch, place, start, end = self.kept
        return batch.on_host[place, start:end]

    def tokens_on(self, device: torch.device) -> Tensor | None:
        """Return the tokens if a device of this type has them."""
        if isinstance(self.kept, np.ndarray) or self.kept.batch.on_device.device.type != device.type:
            return None
        batch, place, start, end = self.kept
        return batch.on_device[place, start:end]

    def to_bytes(self) -> bytes:
        """Convert to little-endian bytes, the pooled features first."""
        return b"".join((self.pooled.astype("<f4", copy=False).data, self.tokens.astype("<f2", copy=False).data))

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
