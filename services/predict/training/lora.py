"""Low-rank matrices beside a T5's attention (Hu et al. 2022), for models that are too large to be trained whole."""

import copy
from typing import Any

import torch

# LoRA's scale is SCALE / rank · rank: what the matrices add does not shrink where the rank is small.
SCALE = 2


def add_lora(model: Any, rank: int, seed: int) -> Any:
    """Put matrices of this rank beside the queries and values of `model`, in place, and let only these be trained.

    Returns peft's handle, for `merged_copy`. Raises ValueError where peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ValueError("lora_rank needs the package peft, which is not installed") from None
    config = LoraConfig(r=rank, lora_alpha=SCALE * rank, lora_dropout=0.0, target_modules=["q", "v"])
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return get_peft_model(model, config)


def merged_copy(handle: Any) -> Any:
    """A plain model with the matrices added to the weights that they stand beside."""
    return copy.deepcopy(handle).merge_and_unload()
