"""Matrix products on a CPU through oneDNN, with weights packed once.

Torch multiplies float32 matrices with MKL, which does not use the wide vectors of other manufacturers' processors; and
every library repacks the weights at each call, which is expensive for a small batch.

Shapes: D inputs, E outputs; … is any number of leading dimensions.
"""

import platform
from typing import Any

import torch
from torch import Tensor, nn

X86 = ("x86_64", "AMD64")


class PackedLinear(nn.Module):
    """x W ᵀ + b in float32, for inference: equal to `nn.Linear` except for rounding.

    It keeps no weight that could be saved, trained or moved to another device.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach())
        self._bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Multiply (…, D) → (…, E)."""
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return product


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether packing speeds up a model of this dtype on this device, and torch was built with oneDNN."""
    onednn: Any = torch.backends.mkldnn
    is_x86 = device.type == "cpu" and platform.machine() in X86
    return is_x86 and dtype == torch.float32 and bool(onednn.is_available())


def pack_linear_layers(model: nn.Module) -> None:
    """Replace every `nn.Linear` of a model in place, freeing weights that nothing else uses."""
    for module in model.modules():
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, PackedLinear(child.weight, child.bias))
