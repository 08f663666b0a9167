"""Similarities of an image and captions, computed from their features without the model.

The tokens of an image's captions are concatenated in one row, and compared in slices: on a CPU one at a time, so that
nothing is padded; on a GPU many at once, padded to the longest. Only numbers come back from the device, all of a batch
in one copy.

Shapes: N captions, P patches, W text tokens, E embedding width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.nn.device_copies import host_buffer, to_device
from services.score.fsc_clip import patch_weights, token_cosines
from services.score.model.features import Features

Cosines = np.ndarray[Any, np.dtype[np.float32]]
Weights = np.ndarray[Any, np.dtype[np.float32]]

# Numbers in the largest tensor of a slice, 4 MiB: larger ones exceed a CPU's caches, which doubles the time.
MAX_NUMBERS_AT_ONCE = 2**20
# On a GPU, numbers in the largest tensor of all slices that are compared at once, 256 MiB.
MAX_NUMBERS_ON_GPU = 2**26


@dataclass(frozen=True, eq=False)
class PairItem:
    """An image and at least one caption; `explains` asks for the attention of the captions' tokens."""

    image: Features
    captions: Sequence[Features]
    explains: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(caption.num_tokens for caption in self.captions)

    @property
    def num_weights(self) -> int:
        return self.num_tokens * self.image.num_tokens if self.explains else 0


@dataclass(frozen=True, eq=False)
class Similarities:
    """Similarities of each caption with the image: the cosine of the pooled features, and the mean of its tokens'
    cosines, (N,) each, NaN for features without tokens. `weights` (W, P) are those of Eq. 6, None if they were not
    requested."""

    global_cosines: Cosines
    local_cosines: Cosines
    weights: Sequence[Weights] | None


class _Slice(NamedTuple):
    """Words (W, E) of an image's captions, and its patches (P, E)."""

    patches: Tensor
    words: Tensor
    explains: bool


class PairEngine:
    """Compares features on a device; runs on one thread at a time."""

    def __init__(self, device: torch.device, *, max_numbers: int | None = None) -> None:
        """`max_numbers` bounds the largest tensor of several slices; the default is one slice at a time on a CPU."""
        self._device = device
        self._max_numbers = (MAX_NUMBERS_ON_GPU if device.type == "cuda" else 0) if max_numbers is None else max_numbers

    def cost(self, item: PairItem) -> int:
        """Count the tokens that are compared with the image, or the captions if they have none."""
        return max(item.num_tokens, len(item.captions))

    def run_batch(self, items: Sequence[PairItem]) -> list[Similarities]:
        """Compare each item separately: items share nothing."""
        with torch.inference_mode():
            slices = self._slices(items)
            cosines: list[Tensor] = []
            weights: list[Tensor] = []
            for some in self._at_once(slices):
                patches = torch.stack([one.patches for one in some]).float()
                words = pad_sequence([one.words for one in some], batch_first=True).float()
                rows = token_cosines(patches, words)
                cosines += [row[: len(one.words)] for row, one in zip(rows, some, strict=True)]
                if any(one.explains for one in some):
                    rows = patch_weights(patches, words)
                    weights += [
                        row[: len(one.words)].flatten() for row, one in zip(rows, some, strict=True) if one.explains
                    ]
            numbers = torch.cat([*cosines, *weights]).cpu().numpy() if slices else np.empty(0, np.float32)
        of_tokens, of_weights = np.split(numbers, [sum(item.num_tokens for item in items)])
        return [
            _similarities(item, *own)
            for item, *own in zip(
                items,
                _parts(of_tokens, [item.num_tokens for item in items]),
                _parts(of_weights, [item.num_weights for item in items]),
                strict=True,
            )
        ]

    def _slices(self, items: Sequence[PairItem]) -> list[_Slice]:
        tokens = self._on_device([one for item in items for one in (item.image, *item.captions)])
        slices = []
        for item in items:
            if item.num_tokens:
                patches, words = tokens[id(item.image)], torch.cat([tokens[id(one)] for one in item.captions])
                size = max(1, MAX_NUMBERS_AT_ONCE // max(patches.shape))
                slices += [_Slice(patches, some, item.explains) for some in torch.split(words, size)]
        return slices

    def _on_device(self, features: Sequence[Features]) -> dict[int, Tensor]:
        """Return the tokens of each, by its `id`; those in host memory are copied together."""
        distinct = {id(one): one for one in features}
        found = {key: there for key, one in distinct.items() if (there := one.tokens_on(self._device)) is not None}
        if in_host := {key: one.tokens for key, one in distinct.items() if key not in found}:
            lengths = [len(one) for one in in_host.values()]
            joined = host_buffer((sum(lengths), len(features[0].pooled)), torch.float16, self._device)
            np.concatenate(list(in_host.values()), out=joined.numpy())
            found |= zip(in_host, torch.split(to_device(joined, self._device), lengths), strict=True)
        return found

    def _at_once(self, slices: Sequence[_Slice]) -> list[Sequence[_Slice]]:
        """Group slices such that no tensor of a group has more than `max_numbers` numbers."""
        largest = max((max(one.patches.shape) * max(*one.words.shape, len(one.patches)) for one in slices), default=1)
        size = max(1, self._max_numbers // largest)
        return [slices[start : start + size] for start in range(0, len(slices), size)]


def _parts(numbers: np.ndarray[Any, np.dtype[np.float32]], lengths: Sequence[int]) -> list[Weights]:
    return np.split(numbers, np.cumsum(lengths[:-1]))


def _similarities(item: PairItem, cosines: Cosines, weights: Weights) -> Similarities:
    """Take apart the cosines of all tokens of an item (W,) and their weights, (W · P,) or none."""
    global_cosines = np.stack([caption.pooled for caption in item.captions]) @ item.image.pooled
    lengths = [caption.num_tokens for caption in item.captions]
    if not len(cosines):
        return Similarities(global_cosines, np.full(len(lengths), np.nan, np.float32), None)
    starts = np.cumsum([0, *lengths[:-1]])
    local = np.add.reduceat(cosines.astype(np.float64), starts) / lengths
    of_captions = None
    if item.explains:
        of_captions = np.split(weights.reshape(len(cosines), -1), starts[1:])
    return Similarities(global_cosines, local.astype(np.float32), of_captions)
