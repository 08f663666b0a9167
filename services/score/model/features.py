"""Features of an image or a caption, in host memory and as bytes for a cache.

Of tokens only what affects a score is kept: the directions of words and patches, and the relative lengths of patches.
Scaled to a length of at most 1, they fit into half precision for any model.

Shapes: P patches, W text tokens, E embedding width.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

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
