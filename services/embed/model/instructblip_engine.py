"""An InstructBLIP's image side on a device: images under instructions, which are conditions, to unit vectors.

An image's state is what the image tower makes of it, in half precision: reading an image again under another condition
costs only the Q-Former.

Shapes: B images, P tokens of an image, D width of the tower, R readouts, W text tokens.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.embed.model.instructblip_checkpoint import InstructBlipCheckpoint, load_instructblip
from services.embed.model.items import ImageItem, Item
from services.embed.model.stacking_engine import NO_INSTRUCTION, Costs, FeatureEngine, half_precision
from services.nn.clip_texts import InputIds, Text
from services.nn.packed_linear import can_pack, pack_linear_layers

# Each readout needs its image's tokens once more.
MAX_READOUTS_AT_ONCE = 64


class InstructBlipEngine(FeatureEngine[InstructBlipCheckpoint]):
    """Runs one InstructBLIP checkpoint."""

    image_only = "an InstructBLIP"

    def __init__(self, checkpoint: InstructBlipCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        vision, qformer = checkpoint.model.vision.config, checkpoint.model.qformer.config
        num_patches = (vision.image_size // vision.patch_size) ** 2 + 1
        # what a readout costs in tokens of the tower: its queries pass the Q-Former, and half its layers read the image
        read = checkpoint.model.query_tokens.shape[1] + num_patches / 6
        weights = [one.num_hidden_layers * one.hidden_size**2 for one in (qformer, vision)]
        self._read_cost = math.ceil(read * weights[0] / weights[1])
        super().__init__(
            checkpoint,
            device,
            dtype,
            Costs(num_patches),
            features_shape=(num_patches, int(vision.hidden_size)),
            no_instruction=checkpoint.tokenizer([NO_INSTRUCTION])[0].numpy(),
        )
        self._model = checkpoint.model
        self._padding = checkpoint.tokenizer.padding
        if can_pack(device, dtype):
            pack_linear_layers(self._model)

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> InstructBlipCheckpoint:
        return load_instructblip(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: InstructBlipCheckpoint) -> int:
        return int(checkpoint.model.vision.config.hidden_size)

    def cost(self, item: Item) -> int:
        """Count the tokens that the image tower processes for an image, and their equivalents of each readout."""
        assert not isinstance(item, Text), "texts have no embeddings"
        readouts = self._read_cost * len(item.conditions)
        return int(readouts + (self._costs.num_patches if isinstance(item, ImageItem) else 0))

    @property
    def embedding_width(self) -> int:
        return self._model.width

    @property
    def state_dtype(self) -> torch.dtype:
        return half_precision(self._dtype)

    def _image_features(self, pixels: Tensor) -> Tensor:
        return self._model.image_features(self._normalised(pixels))

    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        asked = [torch.from_numpy(ids) for ids in conditions.values()]
        input_ids = pad_sequence(asked, batch_first=True, padding_value=self._padding).to(self._device)
        mask = pad_sequence([torch.ones_like(ids) for ids in asked], batch_first=True).to(self._device)
        features = features.to(self._dtype)
        parts = []
        for start in range(0, len(images), MAX_READOUTS_AT_ONCE):
            some = slice(start, start + MAX_READOUTS_AT_ONCE)
            parts.append(self._model(features[images[some]], input_ids[texts[some]], mask[texts[some]]))
        return torch.cat(parts)
