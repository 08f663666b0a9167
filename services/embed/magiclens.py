"""MagicLens: one embedding of an image and an instruction (Zhang et al., ICML 2024, arXiv:2403.19651).

    v, t    = CLIP's projected features of image and instruction, not normalised; without an instruction, t of ""
    X       = (v, t) as a sequence of two tokens
    X       ← X + A(N(X));  X ← X + W_2 relu(W_1 N(X))         for each of four layers, each with its own weights
    r       = N(A_q(X)),  the attention of one learnt query over both tokens, with heads four times as wide
    output  = r / |r|
    A       = W_o softmax(50 tanh(Q K' / 50)) V                with Q times 1 / √d, or, in the pooling, times a learnt
                                                               vector softplus(s) / (√d ln 2)

N is layer norm. The towers see an image and an instruction each by itself; only X brings them together, so an image is
encoded once for all instructions. As the authors' code has it (github.com/google-deepmind/magiclens), of the paper's
description only the pooled features of both towers are in X. What follows the towers is computed in single precision.

Shapes: B images, C instructions, R pairs of them, D embedding width, H width of a head, N heads, T tokens.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOGIT_CAP = 50.0
EPSILON = 1e-6
SMALLEST_SQUARE = 1e-12


@dataclass(frozen=True)
class MagicLensShape:
    """The sizes of what follows the towers, whose features have D numbers."""

    width: int
    num_layers: int = 4
    num_heads: int = 8
    hidden: int = 2048
    pooling_width: int = 2048  # of all heads together


class CappedAttention(nn.Module):
    """Attention whose logits are capped; `is_scaled` by a learnt vector instead of 1 / √H."""

    def __init__(self, width: int, inner: int, num_heads: int, *, is_scaled: bool) -> None:
        super().__init__()
        self.num_heads, self.head_width = num_heads, inner // num_heads
        self.query, self.key, self.value = (nn.Linear(width, inner) for _ in range(3))
        self.post = nn.Linear(inner, width)
        self.per_dim_scale = nn.Parameter(torch.ones(self.head_width)) if is_scaled else None

    def forward(self, queries: Tensor, tokens: Tensor) -> Tensor:
        """Attend from (R, Q, D) to (R, T, D) → (R, Q, D)."""
        q, k, v = self._heads(self.query(queries)), self._heads(self.key(tokens)), self._heads(self.value(tokens))
        scale = 1 / math.sqrt(self.head_width)
        if self.per_dim_scale is not None:
            q = q * (F.softplus(self.per_dim_scale) / math.log(2))
        logits = LOGIT_CAP * torch.tanh(scale * q @ k.mT / LOGIT_CAP)
        x: Tensor = self.post((logits.softmax(dim=-1) @ v).transpose(1, 2).flatten(2))
        return x

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.num_heads, self.head_width).transpose(1, 2)


class FusionLayer(nn.Module):
    """Self-attention and a network with ReLU, each after its own norm and beside an identity."""

    def __init__(self, shape: MagicLensShape) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(shape.width, EPSILON)
        self.attention = CappedAttention(shape.width, shape.width, shape.num_heads, is_scaled=False)
        self.hidden_norm = nn.LayerNorm(shape.width, EPSILON)
        self.hidden = nn.Linear(shape.width, shape.hidden)
        self.output = nn.Linear(shape.hidden, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.attention_norm(x)
        x = x + self.attention(normed, normed)
        y: Tensor = x + self.output(self.hidden(self.hidden_norm(x)).relu())
        return y


class Fusion(nn.Module):
    """The network after the towers: features of R pairs (R, D) and (R, D) → (R, D), of length 1."""

    def __init__(self, shape: MagicLensShape) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FusionLayer(shape) for _ in range(shape.num_layers))
        self.query = nn.Parameter(torch.zeros(1, shape.width))
        self.pooling = CappedAttention(shape.width, shape.pooling_width, shape.num_heads, is_scaled=True)
        self.norm = nn.LayerNorm(shape.width, EPSILON)

    def forward(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        x = torch.stack([image_features, text_features], dim=1)
        for layer in self.layers:
            x = layer(x)
        pooled: Tensor = self.norm(self.pooling(self.query.expand(len(x), 1, -1), x))[:, 0]
        return pooled / (pooled.square().sum(dim=-1, keepdim=True) + SMALLEST_SQUARE).sqrt()


class MagicLens(nn.Module):
    """CLIP's two towers and what follows them. `encode_image` and `encode_text` are the towers' forward passes."""

    def __init__(
        self,
        clip: Any,
        shape: MagicLensShape,
        *,
        encode_image: Callable[[Any, Tensor], Tensor],
        encode_text: Callable[[Any, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.clip = clip
        self.fusion = Fusion(shape)
        self._encode_image, self._encode_text = encode_image, encode_text

    def image_features(self, pixels: Tensor) -> Tensor:
        """Encode normalised pixels (B, 3, height, width) → (B, D) float32, not normalised."""
        return self._encode_image(self.clip, pixels).float()

    def text_features(self, input_ids: Tensor) -> Tensor:
        """Encode token ids (C, W) int64 → (C, D) float32, not normalised."""
        return self._encode_text(self.clip, input_ids).float()

    def forward(self, pixels: Tensor, input_ids: Tensor) -> Tensor:
        """Embed R images, each under its own instruction: (R, D), of length 1."""
        fused: Tensor = self.fusion(self.image_features(pixels), self.text_features(input_ids))
        return fused
