"""The layers of a T5, run on the weights that transformers has loaded.

T5 adds a bias to the logits of its self-attention that depends on the distance of two tokens, and does not scale them;
SDPA supports both. Inputs of unequal length are packed without padding, except in attention.

Shapes: B inputs, T tokens of an input, N decoder rows of an input, S rows that they see, R rows of all inputs together,
D width, H heads, K numbers of a head, L layers, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.device_copies import integers
from services.nn.int8_linear import Int8Linear, can_quantise
from services.nn.packed_linear import PackedLinear, can_pack
from services.nn.rms_norm import RmsNorm

Linear = Callable[[Tensor], Tensor]
# Tokens further apart than a checkpoint's own limit share one bias; no checkpoint's limit is above this.
MAX_DISTANCE = 1024
# Maximum number of pairs of a row and a token whose vectors are in memory at once.
MAX_PAIRS = 4096


@dataclass(frozen=True, eq=False)
class Group:
    """Adjacent inputs of one length: all their `rows`, (B · T), and which of their `keys` are tokens.

    `keys` is (B, 1, 1, T) float, 0 or −∞, None if all are tokens.
    """

    rows: slice
    num_inputs: int
    num_tokens: int
    keys: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Memory:
    """B inputs as a decoder sees them: the keys and values of its layers in turn, and which of them are tokens.

    `keys_and_values` is (2 · L, B, H, T, K); `mask` is (B, 1, 1, T) float, 0 or −∞, None if all are tokens.
    """

    keys_and_values: Tensor
    mask: Tensor | None

    @cached_property
    def layers(self) -> Sequence[tuple[Tensor, Tensor]]:
        """Keys and values (B, H, T, K) of each layer."""
        parts = self.keys_and_values.unbind()
        return list(zip(parts[::2], parts[1::2], strict=True))

    @property
    def num_inputs(self) -> int:
        return self.keys_and_values.shape[1]

    @property
    def num_tokens(self) -> int:
        """T, those of the longest input."""
        return self.keys_and_values.shape[3]

    def of(self, indices: Sequence[int]) -> "Memory":
        """Select the inputs of these indices, in this order; neighbours are not copied."""
        start, stop = indices[0], indices[0] + len(indices)
        if list(indices) != list(range(start, stop)):
            return self.at(*integers(indices, device=self.keys_and_values.device))
        return self if len(indices) == self.num_inputs else self.at(slice(start, stop))

    def at(self, inputs: Tensor | slice) -> "Memory":
        """Select some of the inputs, (B',) int64."""
        mask = None if self.mask is None else self.mask[inputs]
        return Memory(self.keys_and_values[:, inputs], mask)


class Cache:
    """Keys and values of earlier decoder rows, for B sequences of one length."""

    def __init__(self, num_layers: int) -> None:
        self._layers: list[Tensor | None] = [None] * num_layers
        self.length = 0

    def extend(self, layer: int, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Add the newest key and value of a layer, (2, B, H, 1, K), and return all of them, (B, H, length + 1, K)."""
        kept = self._layers[layer]
        if kept is None or kept.shape[3] == self.length:
            room = newest.new_empty((*newest.shape[:3], max(16, 2 * self.length), newest.shape[4]))
            if kept is not None:
                room[:, :, :, : self.length] = kept
            kept = self._layers[layer] = room
        stop = self.length + 1
        kept[:, :, :, self.length : stop] = newest
        keys, values = kept[:, :, :, :stop].unbind()
        return keys, values

    def keep(self, sequences: Tensor) -> None:
        """Keep only these sequences, (B',) int64."""
        self._layers = [None if kept is None else kept[:, sequences] for kept in self._layers]


class T5:
    """Encoder, decoder and head for inference, in the dtype and on the device of the original model."""

    def __init__(self, model: Any, *, is_int8: bool = False) -> None:
        """`model` is transformers' T5ForConditionalGeneration; it may be discarded afterwards. Raises ValueError."""
        config = model.config
        self.device: torch.device = model.device
        self.dtype: torch.dtype = model.dtype
        self.num_heads: int = config.num_heads
        if is_int8 and not can_quantise(self.device, self.dtype):
            raise ValueError(f"8-bit integers need a CPU and float32, not {self.device} and {self.dtype}")
        # Parameters may be views of one mapped file, and any view would keep all of it in memory. If products have
        # their own layout, nothing else refers to it.
        own = Tensor.clone if is_int8 or can_pack(self.device, self.dtype) else Tensor.detach
        if is_int8:
            self._make_linear: Callable[[Tensor], Linear] = Int8Linear
        elif can_pack(self.device, self.dtype):
            self._make_linear = lambda weight: PackedLinear(weight, None)
        else:
            self._make_linear = _PlainLinear
        embeddings, head = model.shared.weight.detach(), model.lm_head.weight.detach()
        self._embeddings: Tensor = own(embeddings)
        self._encoder = [_EncoderLayer(block, self._linear) for block in model.encoder.block]
        self._decoder = [_DecoderLayer(block, self._linear) for block in model.decoder.block]
        crossing = [block.layer[1].EncDecAttention for block in model.decoder.block]
        self._cross_kv = self._linear(*(part for attention in crossing for part in (attention.k, attention.v)))
        self._encoder_norm = RmsNorm(model.encoder.final_layer_norm)
        self._decoder_norm = RmsNorm(model.decoder.final_layer_norm)
        self._head = self._linear(model.lm_head)
        self._head_rows = self._embeddings if head.data_ptr() == embeddings.data_ptr() else own(head)
        self._head_scale: float = config.d_model**-0.5 if config.scale_decoder_outputs else 1.0
        # (H, 2 · MAX_DISTANCE − 1) for distances from −(MAX_DISTANCE − 1) on, and (H, MAX_DISTANCE) for those up to 0
        self._encoder_bias = _biases(model.encoder, 2 * MAX_DISTANCE - 1)
        self._decoder_bias = _biases(model.decoder, MAX_DISTANCE)

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self._decoder)

    def encode(self, input_ids: Tensor, groups: Sequence[Group]) -> Tensor:
        """Encode (R,) int64 → (R, D), the groups' rows in order."""
        longest = max(group.num_tokens for group in groups)
        bias = self._bias_between(longest)
        biases = []
        for group in groups:
            own = bias[:, :, : group.num_tokens, : group.num_tokens]
            biases.append(own if group.keys is None else own + group.keys)
        x = F.embedding(input_ids, self._embeddings)
        for layer in self._encoder:
            qkv = layer.qkv(layer.norm(x))
            attended = []
            for group, group_bias in zip(groups, biases, strict=True):
                q, k, v = self._heads(qkv[group.rows].view(group.num_inputs, group.num_tokens, -1), 3)
                attended.append(_attend(q, k, v, group_bias).flatten(0, 1))
            _add(x, layer.o, attended[0] if len(attended) == 1 else torch.cat(attended))
            layer.feed_forward.add_to(x)
        return self._encoder_norm(x)

    def memory(self, encoded: Tensor, rows: Tensor | None, num_inputs: int, mask: Tensor | None) -> Memory:
        """Compute keys and values of the cross attention from (R, D).

        `rows` (B, T) int64 are the rows of each input, None if they are already in that form; `mask` (B, 1, 1, T).
        """
        projected = self._cross_kv(encoded)
        projected = projected.view(num_inputs, -1, projected.shape[-1]) if rows is None else projected[rows]
        return Memory(self._heads(projected, 2 * self.num_layers), mask)

    def decode(self, input_ids: Tensor, bias: Tensor, memory: Memory, cache: Cache | None = None) -> Tensor:
        """Decode rows (B, N) int64 → (B, N, D).

        `bias` is (B or 1, H, N, S), −∞ where a row does not see another. Without a cache, the rows see each other; with
        one, N is 1, and each row sees the earlier rows and itself.
        """
        x = F.embedding(input_ids, self._embeddings)
        for number, (layer, (keys, values)) in enumerate(zip(self._decoder, memory.layers, strict=True)):
            qkv = self._heads(layer.qkv(layer.norm(x)), 3)
            q, k, v = qkv
            if cache is not None:
                k, v = cache.extend(number, qkv[1:])
            _add(x, layer.o, _attend(q, k, v, bias))
            (q,) = self._heads(layer.cross_q(layer.cross_norm(x)), 1)
            _add(x, layer.cross_o, _attend(q, keys, values, memory.mask))
            layer.feed_forward.add_to(x)
        if cache is not None:
            cache.length += 1
        return self._decoder_norm(x)

    def logits(self, decoded: Tensor) -> Tensor:
        """Compute logits: (R, D) → (R, V) float32."""
        if self._head_scale != 1.0:
            decoded = decoded * self._head_scale
        return self._head(decoded).float()

    def token_logits(self, decoded: Tensor, rows: Tensor, tokens: Tensor) -> Tensor:
        """Compute only the logits of E pairs of a row of (R, D) and a token, (E,) int64 each: (E,) float32."""
        parts = [
            (decoded[some].float() * F.embedding(those, self._head_rows).float()).sum(dim=1) * self._head_scale
            for some, those in zip(torch.split(rows, MAX_PAIRS), torch.split(tokens, MAX_PAIRS), strict=True)
        ]
        return torch.cat(parts)

    def tree_bias(self, depths: Tensor, stops: Tensor) -> Tensor:
        """Compute the bias among rows of trees, in preorder: (…, H, N, N).

        `depths` and `stops` are (…, N) int64; a row is seen by itself and those behind it, up to its stop.
        """
        rows = torch.arange(depths.shape[-1], device=depths.device)
        is_visible = (rows[:, None] < stops[..., None, :]).tril()
        distances = (depths[..., :, None] - depths[..., None, :]).clamp(0, MAX_DISTANCE - 1)
        bias = self._decoder_bias[:, MAX_DISTANCE - 1 - distances].movedim(0, -3)
        return bias.masked_fill_(~is_visible[..., None, :, :], float("-inf"))

    def last_row_bias(self, num_rows: int) -> Tensor:
        """Return the bias of the last of `num_rows` decoder rows towards all of them: (1, H, 1, N)."""
        bias = self._decoder_bias[:, -num_rows:]
        if num_rows > MAX_DISTANCE:
            bias = torch.cat([bias[:, :1].expand(-1, num_rows - MAX_DISTANCE), bias], dim=1)
        return bias[None, :, None]

    def _linear(self, *modules: Any) -> Linear:
        """Join several linear modules into one product, their outputs side by side."""
        weights = [module.weight.detach() for module in modules]
        return self._make_linear(weights[0] if len(weights) == 1 else torch.cat(weights))

    def _heads(self, projected: Tensor, num_parts: int) -> Tensor:
        """Split heads: (B, T, parts · H · K) → (parts, B, H, T, K)."""
        return projected.view(*projected.shape[:2], num_parts, self.num_heads, -1).permute(2, 0, 3, 1, 4)

    def _bias_between(self, num_tokens: int) -> Tensor:
        """The encoder's bias, (1, H, T, T)."""
        bias = self._encoder_bias
        if (missing := num_tokens - MAX_DISTANCE) > 0:
            near, far = bias[:, :1].expand(-1, missing), bias[:, -1:].expand(-1, missing)
            bias = torch.cat([near, bias, far], dim=1)
        centre = bias.shape[1] // 2
        # row i begins at the distance −i
        windows = bias[:, centre - num_tokens + 1 : centre + num_tokens].unfold(1, num_tokens, 1)
        return windows.flip(1)[None]


class _PlainLinear:
    """x Wᵀ in the weight's own layout."""

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight)

    def add_to(self, x: Tensor, y: Tensor) -> None:
        """x += y Wᵀ in one operation, which rounds only once."""
        x.view(-1, x.shape[-1]).addmm_(y.reshape(-1, y.shape[-1]), self._weight.t())


def _add(x: Tensor, linear: Linear, y: Tensor) -> None:
    """Add the product of y to x in place."""
    if isinstance(linear, _PlainLinear):
        linear.add_to(x, y)
    else:
        x.add_(linear(y))


class _FeedForward:
    def __init__(self, module: Any, linear: Callable[..., Linear]) -> None:
        dense = module.DenseReluDense
        self._norm = RmsNorm(module.layer_norm)
        self._is_gated = hasattr(dense, "wi_0")
        self._widen = linear(dense.wi_0, dense.wi_1) if self._is_gated else linear(dense.wi)
        self._narrow = linear(dense.wo)
        name = type(dense.act).__name__
        # transformers computes the tanh form of GELU in five operations
        self._act = {"NewGELUActivation": partial(F.gelu, approximate="tanh")}.get(name, dense.act)

    def add_to(self, x: Tensor) -> None:
        wide = self._widen(self._norm(x))
        if self._is_gated:
            gate, wide = wide.chunk(2, dim=-1)
            _add(x, self._narrow, self._act(gate).mul_(wide))
        else:
            _add(x, self._narrow, self._act(wide))


class _EncoderLayer:
    def __init__(self, block: Any, linear: Callable[..., Linear]) -> None:
        attention = block.layer[0].SelfAttention
        self.norm = RmsNorm(block.layer[0].layer_norm)
        self.qkv = linear(attention.q, attention.k, attention.v)
        self.o = linear(attention.o)
        self.feed_forward = _FeedForward(block.layer[-1], linear)


class _DecoderLayer(_EncoderLayer):
    def __init__(self, block: Any, linear: Callable[..., Linear]) -> None:
        super().__init__(block, linear)
        attention = block.layer[1].EncDecAttention
        self.cross_norm = RmsNorm(block.layer[1].layer_norm)
        self.cross_q = linear(attention.q)
        self.cross_o = linear(attention.o)


def _attend(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> Tensor:
    """Attend: (B, H, N, K) and (B, H, S, K) → (B, N, H · K); `bias` is added to the logits, which are not scaled."""
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    return attended.transpose(1, 2).flatten(2)


def _biases(stack: Any, num_distances: int) -> Tensor:
    """Return the learnt bias of a row at position MAX_DISTANCE − 1 towards each token: (H, num_distances)."""
    attention = stack.block[0].layer[0].SelfAttention
    with torch.no_grad():
        bias: Tensor = attention.compute_bias(1, num_distances, past_seen_tokens=MAX_DISTANCE - 1)
    return bias[0, :, 0].detach().contiguous()
