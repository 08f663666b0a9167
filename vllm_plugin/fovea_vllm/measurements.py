"""The measured attention of prompts, kept on each worker until it is taken."""

from collections import OrderedDict

import torch
from torch import Tensor

# Requests whose attention nobody has taken; the oldest are dropped first.
MAX_KEPT = 1024


class Measurements:
    """Attn(k) of prompts' last rows, by the key that a request gave, layer by layer.

    H heads of this worker, K documents.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._kept: OrderedDict[str, dict[int, Tensor]] = OrderedDict()

    def put(self, key: str, layer: int, attention: Tensor) -> None:
        """Keep a layer's attention (K, H), replacing an earlier one of the same key."""
        self._kept.setdefault(key, {})[layer] = attention
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def take(self, key: str) -> list[list[list[float]]] | None:
        """Return and forget Attn(k), L × H × K numbers; None if the key is unknown or layers are missing."""
        layers = self._kept.get(key)
        if layers is None or len(layers) < self._num_layers:
            return None
        del self._kept[key]
        numbers: list[list[list[float]]] = torch.stack([layers[i].T for i in range(self._num_layers)]).tolist()
        return numbers
