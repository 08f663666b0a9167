"""Similarities of an image and captions, computed from their features without the model.

The tokens of all captions are concatenated in one row, so that nothing is padded, and processed in slices.

Shapes: N captions, P patches, W text tokens, E embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from services.score.fsc_clip import patch_weights, token_cosines
from services.score.model.features import Features

Cosines = np.ndarray[Any, np.dtype[np.float32]]
Weights = np.ndarray[Any, np.dtype[np.float32]]

# Numbers in the largest tensor of a slice, 4 MiB: larger ones exceed a CPU's caches, which doubles the time.
MAX_NUMBERS_AT_ONCE = 2**20


@dataclass(frozen=True, eq=False)
class PairItem:
    """An image and at least one caption; `explains` asks for the attention of the captions' tokens."""

    image: Features
    captions: Sequence[Features]
    explains: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(len(caption.tokens) for caption in self.captions)


@dataclass(frozen=True, eq=False)
class Similarities:
    """Similarities of each caption with the image: the cosine of the pooled features, and the mean of its tokens'
    cosines, (N,) each, NaN for features without tokens. `weights` (W, P) are those of Eq. 6, None if they were not
    requested."""

    global_cosines: Cosines
    local_cosines: Cosines
    weights: Sequence[Weights] | None


class PairEngine:
    """Compares features on a device; runs on one thread at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def cost(self, item: PairItem) -> int:
        """Count the tokens that are compared with the image, or the captions if they have none."""
        return max(item.num_tokens, len(item.captions))

    def run_batch(self, items: Sequence[PairItem]) -> list[Similarities]:
        """Compare each item separately: items share nothing."""
        with torch.inference_mode():
            return [self._compare(item) for item in items]

    def _compare(self, item: PairItem) -> Similarities:
        pooled = np.stack([caption.pooled for caption in item.captions])
        if not item.num_tokens:
            return Similarities(pooled @ item.image.pooled, np.full(len(pooled), np.nan, np.float32), None)
        ends = np.cumsum([len(caption.tokens) for caption in item.captions])
        starts = np.concatenate([[0], ends[:-1]])
        patches = self._on_device(item.image.tokens)
        tokens = np.concatenate([caption.tokens for caption in item.captions])
        size = max(1, MAX_NUMBERS_AT_ONCE // max(tokens.shape[1], len(item.image.tokens)))
        slices = [tokens[start : start + size] for start in range(0, len(tokens), size)]
        cosines = np.concatenate(
            [token_cosines(patches, self._on_device(some))[0].cpu().numpy() for some in slices], dtype=np.float64
        )
        local = np.add.reduceat(cosines, starts) / (ends - starts)
        weights: list[Weights] | None = None
        if item.explains:
            every = np.concatenate([patch_weights(patches, self._on_device(some))[0].cpu().numpy() for some in slices])
            weights = [every[start:end] for start, end in pairwise([0, *ends])]
        return Similarities(pooled @ item.image.pooled, local.astype(np.float32), weights)

    def _on_device(self, tokens: np.ndarray[Any, np.dtype[np.float16]]) -> torch.Tensor:
        """Copy (W, E) or (P, E) → (1, W, E) or (1, P, E) float32 to the device."""
        return torch.tensor(tokens, device=self._device)[None].float()
