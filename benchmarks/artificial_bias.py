"""A checkpoint whose attention has an artificial bias of position: its documents at both ends get more of it.

A direction that tells the numbers of the first and the last document from all other tokens, by ridge regression on the
inputs of one layer's attention, is added to that layer's keys, and a constant to its queries, in the dimension that
rotary positions turn least. Every row's logits of these tokens then rise by about `strength`.

Shapes: T tokens, D width.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from services.generate.prompts.templates import Prompt
from services.nn.loading import declare_torchvision_operators

RIDGE = 1.0
# an end's number is one token among a few hundred
WEIGHT_OF_ENDS = 50.0


def save_with_bias(
    source: Path, target: Path, tokenizer: Any, prompts: Sequence[Prompt], layer: int, strength: float
) -> None:
    """Write a Llama checkpoint's copy with the bias in `layer`, into a new folder; `prompts` are to find the direction.

    Raises ValueError if the number of no first or last document is a token of its own.
    """
    declare_torchvision_operators()
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(source, target)
    config = LlamaConfig.from_pretrained(source)
    config.attention_bias = True
    model = LlamaForCausalLM.from_pretrained(source, config=config, dtype=torch.float32)
    attention, norm = model.model.layers[layer].self_attn, model.model.layers[layer].input_layernorm
    direction = _direction(model, norm, layer, prompts, [_places(tokenizer, prompt) for prompt in prompts])
    for every in model.model.layers:
        for linear in (every.self_attn.q_proj, every.self_attn.k_proj, every.self_attn.v_proj, every.self_attn.o_proj):
            torch.nn.init.zeros_(linear.bias)
    size = (strength / attention.scaling) ** 0.5
    slowest = attention.head_dim // 2 - 1
    with torch.no_grad():
        attention.q_proj.bias[slowest :: attention.head_dim] += size
        attention.k_proj.weight[slowest :: attention.head_dim] += size * direction
    model.save_pretrained(target)


def _places(tokenizer: Any, prompt: Prompt) -> list[int]:
    """The positions of the first and the last document's number."""
    found = []
    for number in (1, len(prompt.spans)):
        start, stop = prompt.spans[number - 1][0], prompt.contents[number - 1][0][0]
        texts = [tokenizer.decode([token]).strip() for token in prompt.input_ids[start:stop]]
        if str(number) not in texts:
            raise ValueError(f"the number {number} is no token of its own in {texts}")
        found.append(start + texts.index(str(number)))
    return found


def _direction(model: Any, norm: Any, layer: int, prompts: Sequence[Prompt], places: Sequence[Sequence[int]]) -> Tensor:
    """Find w (D,) with w · x about 1 at the places and about 0 elsewhere, x the normalised inputs of the layer."""
    inputs, wanted = [], []
    with torch.inference_mode():
        for prompt, ends in zip(prompts, places, strict=True):
            states = model(torch.tensor([prompt.input_ids]), output_hidden_states=True).hidden_states[layer]
            inputs.append(norm(states)[0].double())
            wanted.append(torch.zeros(len(prompt.input_ids), dtype=torch.float64).index_fill_(0, torch.tensor(ends), 1))
    x, y = torch.cat(inputs).clone(), torch.cat(wanted).clone()
    weights = 1 + (WEIGHT_OF_ENDS - 1) * y
    gram = x.T @ (weights[:, None] * x) + RIDGE * torch.eye(x.shape[1], dtype=torch.float64)
    direction: Tensor = torch.linalg.solve(gram, x.T @ (weights * y)).float()
    return direction
