"""A MagicLens on a device: images under instructions, which are conditions, to unit vectors.

An image's state is the image tower's features, a few kilobytes in single precision: reading an image again under
another condition costs next to nothing, and the row is the same.

Shapes: B images, R readouts (an image under a condition, or under none), D embedding width, W text tokens.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from services.embed.model.magiclens_checkpoint import MagicLensCheckpoint, load_magiclens
from services.embed.model.stacking_engine import NO_INSTRUCTION, ConditionTokens, Costs, FeatureEngine
from services.nn.clip_texts import InputIds
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import tower_width
from services.nn.vision_transformer import PackedBlocks, has_plain_blocks, pack_tower


class MagicLensEngine(FeatureEngine[MagicLensCheckpoint]):
    """Runs one MagicLens checkpoint."""

    image_only = "a MagicLens"

    def __init__(self, checkpoint: MagicLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = model = checkpoint.model
        super().__init__(
            checkpoint,
            device,
            dtype,
            Costs(int(model.clip.visual.positional_embedding.shape[0]) - 1),
            features_shape=(self.embedding_width,),
            no_instruction=checkpoint.tokenizer([NO_INSTRUCTION])[0].numpy(),
        )
        if can_pack(device, dtype):
            pack_tower(model.clip.visual)
            if has_plain_blocks(model.clip):
                model.clip.transformer = PackedBlocks(model.clip)
        self._texts = ConditionTokens(lambda texts: model.text_features(self._stacked(texts)))

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> MagicLensCheckpoint:
        return load_magiclens(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: MagicLensCheckpoint) -> int:
        return tower_width(checkpoint.model.clip.visual)

    @property
    def embedding_width(self) -> int:
        return int(self._model.fusion.query.shape[1])

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self._model.image_features(self._normalised(pixels))

    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        fused: Tensor = self._model.fusion(features[images], self._texts.of(conditions)[texts])
        return fused
