"""A MagicLens on a device: images under instructions, which are conditions, to unit vectors.

An image's state is the image tower's features, a few kilobytes in single precision: reading an image again under
another condition costs next to nothing, and the row is the same.

Shapes: B images, R readouts (an image under a condition, or under none), D embedding width, W text tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from services.embed.model.encoder import Bytes, ConditionTokens, Rows, to_rows
from services.embed.model.magiclens_checkpoint import MagicLensCheckpoint, load_magiclens
from services.embed.model.readout_plan import UNCONDITIONAL, Pair
from services.embed.model.stacking_engine import Costs, Encoders, StackingEngine
from services.nn.clip_texts import InputIds
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import tower_width
from services.nn.vision_transformer import PackedBlocks, has_plain_blocks, pack_tower

# The instruction of an image without one.
NO_INSTRUCTION = ""


class MagicLensEncoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the model, and repacks it on CPUs."""

    visibility = "readout"
    state_dtype = torch.float32

    def __init__(self, checkpoint: MagicLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = checkpoint.model
        self._transform = checkpoint.transform
        self._device = device
        clip = checkpoint.model.clip
        if can_pack(device, dtype):
            pack_tower(clip.visual)
            if has_plain_blocks(clip):
                clip.transformer = PackedBlocks(clip)
        self._features = ConditionTokens(
            lambda texts: self._model.text_features(torch.from_numpy(np.stack(texts)).to(device))
        )
        self._no_instruction: InputIds = checkpoint.tokenizer([NO_INSTRUCTION])[0].numpy()

    @property
    def embedding_width(self) -> int:
        """Return D."""
        return int(self._model.fusion.query.shape[1])

    @property
    def state_bytes(self) -> int:
        """Bytes of an image's features."""
        return self.embedding_width * self.state_dtype.itemsize

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Encode images (B, height, width, 3) uint8."""
        return self._fused(self._image_features(pixels), conditions, pairs)

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Rows, list[Bytes | None]]:
        """Encode like `encode`, and also return the state (state_bytes,) of each image."""
        features = self._image_features(pixels)
        return self._fused(features, conditions, pairs), list(features.contiguous().view(torch.uint8).cpu().numpy())

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Read images from states (B, state_bytes) uint8."""
        features = states.to(self._device, non_blocking=True).view(self.state_dtype)
        return self._fused(features, conditions, pairs)

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self._model.image_features(self._transform.normalise(pixels.to(self._device, non_blocking=True)))

    def _fused(self, features: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Fuse images' features (B, D) with those of conditions → (R, D); the last text is no instruction."""
        texts = self._features.of({**conditions, NO_INSTRUCTION: self._no_instruction})
        images, places = zip(*pairs, strict=True)
        rows = [len(conditions) if place == UNCONDITIONAL else place for place in places]
        return to_rows(self._model.fusion(features[list(images)], texts[rows]))


class MagicLensEngine(StackingEngine[MagicLensCheckpoint]):
    """Runs one MagicLens checkpoint."""

    image_only = "a MagicLens"

    def __init__(self, checkpoint: MagicLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        num_patches = int(checkpoint.model.clip.visual.positional_embedding.shape[0]) - 1
        encoder = MagicLensEncoder(checkpoint, device, dtype)
        costs = Costs(num_patches, share_of_blocks=1, state=0)
        super().__init__(checkpoint, device, dtype, Encoders(encoder, states=encoder), costs)

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> MagicLensCheckpoint:
        return load_magiclens(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: MagicLensCheckpoint) -> int:
        return tower_width(checkpoint.model.clip.visual)
