"""A CLIP model on its device: from pixels and token ids in host memory to pooled features and tokens.

Shapes: B images, N texts, P patches, W text tokens, D width, E embedding width.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.broken_model import BrokenModel
from services.nn.clip_model import ClipModel
from services.nn.clip_texts import InputIds
from services.nn.device_copies import stack, to_device
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import PlainEncoder
from services.nn.vision_transformer import PackedBlocks, has_plain_blocks, pack_tower
from services.score.model.dense_features import encode_images, encode_texts, end_of_text
from services.score.model.features import BatchPart, Features, TokenBatch


class Encoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the checkpoint's model and repacks it on CPUs.

    Raises BrokenModel if a number of the features is not finite.
    """

    reads_padding = False

    def __init__(self, clip: ClipModel, device: torch.device, dtype: torch.dtype) -> None:
        self._model = clip.model
        self._transform = clip.transform
        self._device = device
        self._dtype = dtype
        if can_pack(device, dtype):
            if has_plain_blocks(self._model.visual):
                pack_tower(self._model.visual)
            text_tower = getattr(self._model, "text", self._model)
            if has_plain_blocks(text_tower):
                text_tower.transformer = PackedBlocks(text_tower)

    def encode_images(self, pixels: Tensor) -> list[Features]:
        """Encode images (B, height, width, 3) uint8."""
        normalised = self._transform.normalise(to_device(pixels, self._device)).to(self._dtype)
        features = encode_images(self._model, normalised)
        tokens = features.tokens.float()
        lengths = tokens.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)  # the longest patch of each
        return _to_features(features.pooled, tokens / lengths, [(0, tokens.shape[1])] * len(tokens))

    def encode_texts(self, texts: Sequence[InputIds]) -> list[Features]:
        """Encode token ids (W,) each."""
        input_ids = stack(texts, self._device)
        features = encode_texts(self._model, input_ids)
        tokens = F.normalize(features.tokens.float(), dim=-1).masked_fill(~features.mask[:, :, None], 0.0)
        return _to_features(
            features.pooled, tokens, [(1, end + 1) for end in end_of_text(self._model, input_ids).tolist()]
        )


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


def _without_tokens(pooled: Tensor) -> list[Features]:
    return _to_features(pooled, pooled.new_empty(len(pooled), 0, pooled.shape[1]), [(0, 0)] * len(pooled))


def _to_features(pooled: Tensor, tokens: Tensor, spans: Sequence[tuple[int, int]]) -> list[Features]:
    """Combine `pooled` (B, E) or (N, E) of any dtype, normalised again in float32, with the tokens at the span of each.

    Tokens stay on the device; only whether they are finite, which their sum tells, is copied with the pooled features.
    """
    batch = TokenBatch(tokens.half())
    rows = F.normalize(pooled.float(), dim=-1)
    found = torch.cat([rows, tokens.sum(dim=(1, 2))[:, None]], dim=1).cpu().numpy()
    if not np.isfinite(found).all():
        raise BrokenModel("a feature contains a number that is not finite")
    return [
        Features(row, BatchPart(batch, place, *span))
        for place, (row, span) in enumerate(zip(found[:, :-1], spans, strict=True))
    ]
