"""The norm of T5 and of Llama's family, run on the weight that transformers has loaded.

Shapes: D width.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor


class RmsNorm:
    """Division by the root of the mean square over the last dimension, without a shift: (…, D) → (…, D)."""

    def __init__(self, module: Any) -> None:
        self._weight: Tensor = module.weight.detach().clone()  # a view would keep all of a mapped file in memory
        self._epsilon: float = module.variance_epsilon

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self._weight.shape, self._weight, self._epsilon)
