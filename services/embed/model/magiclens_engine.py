"""A MagicLens on a device: images under instructions, which are conditions, to unit vectors.

An image's state is the image tower's features, a few kilobytes in single precision: reading an image again under
another condition costs next to nothing, and the row is the same.

Shapes: B images, R readouts (an image under a condition, or under none), D embedding width, W text tokens.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.embed.model.encoders import NO_INSTRUCTION, ConditionTokens, FeatureEncoder
from services.embed.model.image_engine import Costs, StackingEngine
from services.embed.model.magiclens_checkpoint import MagicLensCheckpoint, load_magiclens
from services.nn.clip_texts import InputIds
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import tower_width
from services.nn.vision_transformer import PackedBlocks, has_plain_blocks, pack_tower


class MagicLensEncoder(FeatureEncoder):
    """A MagicLens on its device."""

    def __init__(self, checkpoint: MagicLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = checkpoint.model
        self._transform = checkpoint.transform
        clip = checkpoint.model.clip
        if can_pack(device, dtype):
            pack_tower(clip.visual)
            if has_plain_blocks(clip):
                clip.transformer = PackedBlocks(clip)
        self._texts = ConditionTokens(
            lambda texts: self._model.text_features(torch.from_numpy(np.stack(texts)).to(device))
        )
        super().__init__(device, (self.embedding_width,), checkpoint.tokenizer([NO_INSTRUCTION])[0].numpy())

    @property
    def embedding_width(self) -> int:
        return int(self._model.fusion.query.shape[1])

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self._model.image_features(self._transform.normalise(pixels.to(self._device, non_blocking=True)))

    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        fused: Tensor = self._model.fusion(features[images], self._texts.of(conditions)[texts])
        return fused


class MagicLensEngine(StackingEngine[MagicLensCheckpoint]):
    """Runs one MagicLens checkpoint."""

    image_only = "a MagicLens"

    def __init__(self, checkpoint: MagicLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        num_patches = int(checkpoint.model.clip.visual.positional_embedding.shape[0]) - 1
        super().__init__(checkpoint, device, dtype, MagicLensEncoder(checkpoint, device, dtype), Costs(num_patches))

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> MagicLensCheckpoint:
        return load_magiclens(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: MagicLensCheckpoint) -> int:
        return tower_width(checkpoint.model.clip.visual)
