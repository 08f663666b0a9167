"""MagicLens: its checkpoint directories, and the engine that runs one.

A directory holds the configuration of an open_clip model, whose towers it has, `model.safetensors` (the towers and what
follows them) and `magiclens.json`, the sizes of what follows them.

An image's state is the image tower's features, a few kilobytes in single precision: reading an image again under
another condition costs next to nothing, and the row is the same.

Shapes: B images, R readouts (an image under a condition, or under none), D embedding width, W text tokens.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from services.embed.magiclens import MagicLens, MagicLensShape
from services.embed.model.image_engine import Checkpoint
from services.embed.model.stacking_engine import ConditionTokens, Costs, FeatureEngine
from services.nn.captured import Captured
from services.nn.clip_model import build_clip
from services.nn.clip_texts import InputIds
from services.nn.clip_tokenizer import Tokenizer
from services.nn.device_copies import stack, to_device
from services.nn.image_transform import ImageTransform
from services.nn.model_configs import StoredWeights
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import tower_width
from services.nn.text_transformer import encode_text
from services.nn.vision_transformer import PackedBlocks, encode, has_plain_blocks, pack_tower, pool_unscaled
from services.nn.weight_files import load_exactly, readable_weights

# the kind of such a directory in manifests of the model store
MAGICLENS_KIND = "magiclens"
MAGICLENS_CONFIG = "magiclens.json"
MAGICLENS_WEIGHTS = "model.safetensors"


MagicLensCheckpoint = Checkpoint[MagicLens, Tokenizer, ImageTransform]


def encode_image(clip: Any, pixels: Tensor) -> Tensor:
    """Encode normalised pixels by a plain ViT: (B, 3, height, width) → (B, E), not normalised."""
    return pool_unscaled(clip.visual, encode(clip.visual, pixels.to(clip.visual.conv1.weight.dtype)))


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
        )
        if can_pack(device, dtype):
            pack_tower(model.clip.visual)
            if has_plain_blocks(model.clip):
                model.clip.transformer = PackedBlocks(model.clip)
        self._encode_pixels = Captured(partial(_encode_pixels, model, checkpoint.transform, dtype))
        self._texts = ConditionTokens(lambda texts: model.text_features(stack(texts, device)))

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> MagicLensCheckpoint:
        """Read a directory as `ImageEngine.read`; only its towers compute in `dtype`."""
        clip = build_clip(directory)
        sizes, stored = json.loads((directory / MAGICLENS_CONFIG).read_text()), StoredWeights.in_folder(directory)
        stored.check(sizes, MAGICLENS_CONFIG)
        with stored.bound(MAGICLENS_CONFIG):
            model = MagicLens(clip.model, MagicLensShape(**sizes), encode_image=encode_image, encode_text=encode_text)
        with readable_weights(directory):
            load_exactly(model, load_file(directory / MAGICLENS_WEIGHTS))
        model.eval().requires_grad_(False).to(device)
        model.clip.to(dtype)
        return Checkpoint(model, clip.tokenizer, clip.transform)

    @classmethod
    def tower_width(cls, checkpoint: MagicLensCheckpoint) -> int:
        return tower_width(checkpoint.model.clip.visual)

    @property
    def embedding_width(self) -> int:
        return int(self._model.fusion.query.shape[1])

    def _image_features(self, pixels: Tensor) -> Tensor:
        (features,) = self._encode_pixels(to_device(pixels, self._device), num_rows=len(pixels))
        return features

    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        fused: Tensor = self._model.fusion(features[images], self._texts.of(conditions)[texts])
        return fused


def _encode_pixels(model: MagicLens, transform: ImageTransform, dtype: torch.dtype, pixels: Tensor) -> tuple[Tensor]:
    return (model.image_features(transform.normalise(pixels).to(dtype)),)
