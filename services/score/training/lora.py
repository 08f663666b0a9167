"""Low-rank matrices for CLIP's weights (Hu et al. 2022), so that fine-tuning trains a hundredth of the parameters.

    W' = W + B A / rank

They are added to the attention's input and output projections, the linear layers and the convolutions of both towers;
everything else, including the temperature, is frozen.

peft adds the matrices of layers that are called. The weights of attention are parametrized instead: peft would add to
these frozen weights before each pass and subtract afterwards, which changes them by rounding errors.

Shapes: D inputs of a layer, E outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from services.nn.loading import transformers

# The matrices' product is scaled by ALPHA / rank, as in the released code.
ALPHA = 1
ADAPTER = "default"


class LowRank(nn.Module):
    """A parametrization: (E, D) frozen → W + B A / rank; `b` (E, rank) is initially zero, so that W' = W."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        self.a = nn.Parameter(weight.new_empty(rank, weight.shape[1]))
        self.b = nn.Parameter(weight.new_zeros(weight.shape[0], rank))
        self.scale = ALPHA / rank
        nn.init.kaiming_uniform_(self.a, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            return weight + self.scale * (self.b @ self.a)


def add_lora(clip: Any, rank: int, *, official_init: bool = False) -> None:
    """Add matrices of this rank to an open_clip model, in place, and train only these.

    `official_init` draws both matrices of the attention's input projections from Xavier's distribution, as in the
    released code: the model then differs from the original even before its first step. Raises ValueError for a rank
    below 1, and if peft is not installed.
    """
    if rank < 1:
        raise ValueError(f"the rank is {rank}: it must be at least 1")
    clip.requires_grad_(False)
    attentions = [module for module in clip.modules() if isinstance(getattr(module, "in_proj_weight", None), Tensor)]
    looked_into = {id(attention.out_proj): attention.out_proj for attention in attentions}
    # open_clip checks whether a text projection is a matrix or a layer
    looked_into |= {id(layer): layer for name, layer in clip.named_modules() if name.endswith("text_projection")}
    called = [
        name
        for name, layer in clip.named_modules()
        if isinstance(layer, nn.Linear | nn.Conv2d) and id(layer) not in looked_into
    ]
    _add_by_peft(clip, called, rank)
    for attention in attentions:
        _parametrize(attention, "in_proj_weight", rank, is_xavier=official_init)
    for layer in looked_into.values():
        _parametrize(layer, "weight", rank, is_xavier=False)


@torch.no_grad()
def merged_state_dict(clip: Any) -> dict[str, Tensor]:
    """The weights of a plain open_clip model, with the matrices merged into them."""
    merged: dict[str, Tensor] = {
        key.replace(".base_layer.", "."): tensor
        for key, tensor in clip.state_dict().items()
        if ".lora_" not in key and ".parametrizations." not in key
    }
    for prefix, module in clip.named_modules():
        if hasattr(module, "base_layer"):
            merged[f"{prefix}.weight"] = module.base_layer.weight + module.get_delta_weight(ADAPTER)
        for name in getattr(module, "parametrizations", ()):
            merged[f"{prefix}.{name}"] = getattr(module, name)
    return merged


def _add_by_peft(clip: Any, layers: list[str], rank: int) -> None:
    transformers()  # which peft imports
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise ValueError("LoRA needs the package peft, which is not installed") from None
    config = LoraConfig(r=rank, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=layers)
    inject_adapter_in_model(config, clip, ADAPTER)


def _parametrize(module: Any, name: str, rank: int, *, is_xavier: bool) -> None:
    added = LowRank(getattr(module, name), rank)
    if is_xavier:
        nn.init.xavier_uniform_(added.a)
        nn.init.xavier_uniform_(added.b)
    parametrize.register_parametrization(module, name, added)
