"""The layers of a Llama, Mistral, Qwen2 or Qwen3, run on the weights that transformers has loaded.

Products of the same input are one product, and a layer is a short function: to start the operations of a single token
takes longer than to compute them, with small models and on GPUs with any. What a token attends to is decided by the
`ForwardPass` of each call.

Shapes: B batch, T tokens of a forward call, D width, H query heads, H' key/value heads, D' head width, V vocabulary.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.packed_linear import PackedLinear, can_pack
from services.nn.rms_norm import RmsNorm

Linear = Callable[[Tensor], Tensor]


class ForwardPass(Protocol):
    """The attention of a forward call."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, sliding_window: int | None
    ) -> Tensor:
        """Attend (B, H, T, D') queries over (B, H', T, D') keys and values, rotated → (B, T, H, D').

        `sliding_window` is the number of keys up to itself that a token of this layer sees, None for all of them.
        """
        ...


class Rotation(NamedTuple):
    """Cosines, and sines whose first half is negative, of the tokens' positions: (B, 1, T, D') each."""

    cos: Tensor
    sin: Tensor

    def of(self, x: Tensor) -> Tensor:
        """Rotate heads (B, …, T, D') by rotary position embeddings."""
        first, second = x.chunk(2, dim=-1)
        return torch.addcmul(x * self.cos, torch.cat([second, first], dim=-1), self.sin)


class Decoder:
    """Embeddings, layers and head for inference, in the dtype and on the device of the original model."""

    def __init__(self, model: Any) -> None:
        """`model` is transformers' causal language model, on its device; it can't be run any more afterwards.

        Raises ValueError if its position embeddings are of a part of each head.
        """
        trunk = model.model
        if 2 * len(trunk.rotary_emb.inv_freq) != trunk.layers[0].self_attn.head_dim:
            raise ValueError("position embeddings of a part of each head (partial_rotary_factor) are not supported")
        self._embeddings: Tensor = trunk.embed_tokens.weight.detach()
        self.rotary_embedding = trunk.rotary_emb
        self.layers = [DecoderLayer(layer, index, model.config) for index, layer in enumerate(trunk.layers)]
        self._norm = RmsNorm(trunk.norm)
        self._head = _joined(model.lm_head)

    def embed(self, input_ids: Tensor) -> Tensor:
        """Look up (B, T) int64 → (B, T, D)."""
        return F.embedding(input_ids, self._embeddings)

    def rotation(self, positions: Tensor) -> Rotation:
        """Compute the rotation of tokens at positions (B, T) int64."""
        cos, sin = self.rotary_embedding(self._embeddings, position_ids=positions)
        first, second = sin.chunk(2, dim=-1)
        return Rotation(cos[:, None], torch.cat([-first, second], dim=-1)[:, None])

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits: (T, D) → (T, V) float32."""
        return self._head(self._norm(hidden)).float()


class DecoderLayer:
    """A layer: attention and then an MLP, each added to its input."""

    def __init__(self, layer: Any, index: int, config: Any) -> None:
        """`layer` is transformers' layer of a model with this configuration."""
        attention, mlp = layer.self_attn, layer.mlp
        self._index = index
        self._head_dim: int = attention.head_dim
        self._num_heads: int = config.num_attention_heads
        self._scaling: float = attention.scaling
        # all of Mistral's layers have the window of its configuration
        configured = config.sliding_window if config.model_type == "mistral" else None
        self._window: int | None = getattr(attention, "sliding_window", configured)
        self._input_norm, self._mlp_norm = RmsNorm(layer.input_layernorm), RmsNorm(layer.post_attention_layernorm)
        self._qkv = _joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self._num_rotated = attention.q_proj.out_features + attention.k_proj.out_features
        self._head_norms = (
            [RmsNorm(attention.q_norm), RmsNorm(attention.k_norm)] if hasattr(attention, "q_norm") else None
        )
        self._o = _joined(attention.o_proj)
        self._gate_up = _joined(mlp.gate_proj, mlp.up_proj)
        self._down = _joined(mlp.down_proj)
        self._act: Callable[[Tensor], Tensor] = mlp.act_fn

    def attend(self, hidden: Tensor, rotation: Rotation, forward_pass: ForwardPass) -> Tensor:
        """Attend hidden states (B, T, D) → (B, T, H · D'), before the output's projection."""
        heads = self._qkv(self._input_norm(hidden)).view(*hidden.shape[:2], -1, self._head_dim).transpose(1, 2)
        rotated, value = heads.tensor_split([self._num_rotated // self._head_dim], dim=1)
        if self._head_norms is not None:
            parts = rotated.tensor_split([self._num_heads], dim=1)
            rotated = torch.cat([norm(part) for norm, part in zip(self._head_norms, parts, strict=True)], dim=1)
        query, key = rotation.of(rotated).tensor_split([self._num_heads], dim=1)
        attended = forward_pass.attend(
            self._index, query, key, value, scaling=self._scaling, sliding_window=self._window
        )
        return attended.flatten(2)

    def finish(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Run what comes after the attention, token by token: (…, D) and (…, H · D') → (…, D)."""
        hidden = hidden + self._o(attended)
        gate, up = self._gate_up(self._mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + self._down(self._act(gate).mul_(up))


def _joined(*modules: Any) -> Linear:
    """Join linear modules of one input into one product, their outputs side by side. They give up their weights, so
    that memory holds them once."""
    weights = [module.weight.detach() for module in modules]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    bias = None if modules[0].bias is None else torch.cat([module.bias.detach() for module in modules])
    for module in modules:
        module.weight = None
    return (
        PackedLinear(weight, bias)
        if can_pack(weight.device, weight.dtype)
        else partial(F.linear, weight=weight, bias=bias)
    )
