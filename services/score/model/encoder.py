"""A CLIP model on its device: from pixels and token ids in host memory to pooled features and tokens.

Shapes: B images, N texts, P patches, W text tokens, D width, E embedding width.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.broken_model import BrokenModel
from services.nn.captured import Captured
from services.nn.clip_model import ClipModel
from services.nn.clip_texts import InputIds
from services.nn.device_copies import stack, to_device
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import PlainEncoder
from services.nn.text_transformer import cut_at_end
from services.nn.vision_transformer import PackedBlocks, has_plain_blocks, pack_tower
from services.score.model.dense_features import encode_cut, encode_images, end_of_text
from services.score.model.features import BatchPart, Features, TokenBatch


class Encoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the checkpoint's model and repacks it on CPUs.

    Raises BrokenModel if a number of the features is not finite.
    """

    reads_padding = False

    def __init__(self, clip: ClipModel, device: torch.device, dtype: torch.dtype) -> None:
        self._model = clip.model
        self._device = device
        self._encode_pixels = Captured(partial(_encode_pixels, clip, dtype))
        self._encode_cut = Captured(partial(_encode_cut, clip.model))
        if can_pack(device, dtype):
            if has_plain_blocks(self._model.visual):
                pack_tower(self._model.visual)
            text_tower = getattr(self._model, "text", self._model)
            if has_plain_blocks(text_tower):
                text_tower.transformer = PackedBlocks(text_tower)

    def encode_images(self, pixels: Tensor) -> list[Features]:
        """Encode images (B, height, width, 3) uint8."""
        found, tokens = self._encode_pixels(to_device(pixels, self._device), num_rows=len(pixels))
        return _to_features(found, tokens, [(0, tokens.shape[1])] * len(tokens))

    def encode_texts(self, texts: Sequence[InputIds]) -> list[Features]:
        """Encode token ids (W,) each."""
        input_ids = stack(texts, self._device)
        end = end_of_text(self._model, input_ids)
        found, tokens = self._encode_cut(*cut_at_end(input_ids, end, self._device), num_rows=len(texts))
        return _to_features(found, tokens, [(1, one + 1) for one in end.tolist()])


class GlobalEncoder:
    """Encodes like an Encoder with any towers: pooled features alone, and no tokens."""

    def __init__(self, clip: ClipModel, device: torch.device, dtype: torch.dtype) -> None:
        self._encoder = PlainEncoder(clip, device, dtype)
        self.reads_padding = self._encoder.reads_padding

    def encode_images(self, pixels: Tensor) -> list[Features]:
        """Encode images (B, height, width, 3) uint8."""
        return _without_tokens(self._encoder.encode_images(pixels))

    def encode_texts(self, texts: Sequence[InputIds]) -> list[Features]:
        """Encode token ids (W,) each."""
        return _without_tokens(self._encoder.encode_texts(texts))


def _encode_pixels(clip: ClipModel, dtype: torch.dtype, pixels: Tensor) -> tuple[Tensor, Tensor]:
    features = encode_images(clip.model, clip.transform.normalise(pixels).to(dtype))
    tokens = features.tokens.float()
    lengths = tokens.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)  # the longest patch of each
    return _checkable(features.pooled, tokens / lengths)


def _encode_cut(model: Any, input_ids: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    features = encode_cut(model, input_ids, end)
    tokens = F.normalize(features.tokens.float(), dim=-1).masked_fill(~features.mask[:, :, None], 0.0)
    return _checkable(features.pooled, tokens)


def _without_tokens(pooled: Tensor) -> list[Features]:
    return _to_features(*_checkable(pooled, pooled.new_empty(len(pooled), 0, pooled.shape[1])), [(0, 0)] * len(pooled))


def _checkable(pooled: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Normalise `pooled` (B, E) of any dtype again in float32, and add a number that tells whether the tokens
    (B, T, E) are finite, (B, E + 1); tokens become float16."""
    rows = F.normalize(pooled.float(), dim=-1)
    return torch.cat([rows, tokens.sum(dim=(1, 2))[:, None]], dim=1), tokens.half()


def _to_features(found: Tensor, tokens: Tensor, spans: Sequence[tuple[int, int]]) -> list[Features]:
    """Copy what `_checkable` returned to the host, but for the tokens; each item has those of a span."""
    batch, rows = TokenBatch(tokens), found.cpu().numpy()
    if not np.isfinite(rows).all():
        raise BrokenModel("a feature contains a number that is not finite")
    return [
        Features(row, BatchPart(batch, place, *span))
        for place, (row, span) in enumerate(zip(rows[:, :-1], spans, strict=True))
    ]
