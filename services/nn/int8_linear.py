"""Matrix products of 8-bit integers on a CPU through oneDNN, with a separate scale for each row of activations.

Torch's own dynamic quantisation uses one scale for a whole batch, so a row's product would depend on the other rows.
Here each row is scaled to the range of the integers separately, and the product is scaled back.

Shapes: D inputs, E outputs; … is any number of leading dimensions.
"""

from typing import Any

import torch
from torch import Tensor

LEVELS = 127  # on each side of 0
# Levels of activations without VNNI, where two products are summed in 16 bits: 2 (2 · 64 + 1) 127 < 2 ** 15.
NARROW_LEVELS = 64
SMALLEST = torch.finfo(torch.float32).tiny


class Int8Linear:
    """Approximate x W ᵀ for inference: 8-bit weights with one scale per output, 8-bit activations with one per row.

    On CPUs without VNNI activations have 7 bits. A row's product does not depend on the other rows.
    """

    def __init__(self, weight: Tensor) -> None:
        """Quantise `weight`, (E, D) float32 on the CPU; no reference to it is kept."""
        weight = weight.detach()
        self._levels = LEVELS if torch.cpu._is_vnni_supported() else NARROW_LEVELS
        self._zero_point = self._levels + 1  # of activations, which are unsigned
        self._scales = weight.abs().amax(dim=1).clamp(min=SMALLEST) / LEVELS
        levels = (weight / self._scales[:, None]).round().to(torch.int8)
        self._weight = torch.ops.onednn.qlinear_prepack(levels, None)
        self._zero_points = torch.zeros(len(levels), dtype=torch.int32)
        # half a level is added, because conversion to integers truncates
        self._middle = torch.tensor([self._zero_point + 0.5])

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply (…, D) float32 → (…, E). Rows of zeros give zeros; rows that are not finite give NaN."""
        rows = x.reshape(-1, x.shape[-1])
        scales = rows.abs().amax(dim=1, keepdim=True).add_(SMALLEST)
        levels = torch.addcdiv(self._middle, rows, scales, value=self._levels).to(torch.uint8)
        product: Tensor = torch.ops.onednn.qlinear_pointwise(
            levels,
            1 / self._levels,
            self._zero_point,
            self._weight,
            self._scales,
            self._zero_points,
            None,  # no bias
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return product.mul_(scales).view(*x.shape[:-1], -1)


def can_quantise(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a model of this dtype on this device can be quantised, and torch was built with oneDNN."""
    onednn: Any = torch.backends.mkldnn
    return device.type == "cpu" and dtype == torch.float32 and bool(onednn.is_available())
