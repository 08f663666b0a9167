"""An InstructBLIP's image side on a device: images under instructions, which are conditions, to unit vectors.

An image's state is what the image tower makes of it, in half precision: reading an image again under another condition
costs only the Q-Former.

Shapes: B images, P tokens of an image, D width of the tower, R readouts, W text tokens.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.embed.model.encoder import Bytes, Rows, to_rows
from services.embed.model.instructblip_checkpoint import InstructBlipCheckpoint, load_instructblip
from services.embed.model.items import ImageItem, Item
from services.embed.model.readout_plan import UNCONDITIONAL, Pair
from services.embed.model.stacking_engine import Costs, Encoders, StackingEngine
from services.nn.clip_texts import InputIds, Text
from services.nn.packed_linear import can_pack, pack_linear_layers

# The instruction of an image without one.
NO_INSTRUCTION = ""
# Each readout needs its image's tokens once more.
MAX_READOUTS_AT_ONCE = 64


class InstructBlipEncoder:
    """Runs under torch.inference_mode, on one thread at a time. It owns the model, and repacks it on CPUs."""

    visibility = "readout"

    def __init__(self, checkpoint: InstructBlipCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        self._model = checkpoint.model
        self._transform = checkpoint.transform
        self._device = device
        self._dtype = dtype
        self._padding = checkpoint.tokenizer.padding
        self._no_instruction: InputIds = checkpoint.tokenizer([NO_INSTRUCTION])[0].numpy()
        vision = checkpoint.model.vision.config
        self._shape = ((vision.image_size // vision.patch_size) ** 2 + 1, int(vision.hidden_size))
        self.state_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float16
        if can_pack(device, dtype):
            pack_linear_layers(self._model)

    @property
    def embedding_width(self) -> int:
        return self._model.width

    @property
    def state_bytes(self) -> int:
        """Bytes of an image's tokens."""
        return int(self._shape[0] * self._shape[1] * self.state_dtype.itemsize)

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Encode images (B, height, width, 3) uint8."""
        return self._read(self._image_features(pixels), conditions, pairs)

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Rows, list[Bytes | None]]:
        """Encode like `encode`, and also return each image's state (state_bytes,), None if a number of it is too large
        for half precision."""
        features = self._image_features(pixels)
        packed = features.flatten(1).to(self.state_dtype)
        is_whole = packed.isfinite().all(dim=1).tolist()
        rows = packed.view(torch.uint8).cpu().numpy()
        states = [row if is_whole[place] else None for place, row in enumerate(rows)]
        return self._read(features, conditions, pairs), states

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Read images from states (B, state_bytes) uint8."""
        numbers = states.to(self._device, non_blocking=True).view(self.state_dtype)
        return self._read(numbers.view(-1, *self._shape).to(self._dtype), conditions, pairs)

    def _image_features(self, pixels: Tensor) -> Tensor:
        normalised = self._transform.normalise(pixels.to(self._device, non_blocking=True))
        return self._model.image_features(normalised.to(self._dtype))

    def _read(self, features: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Rows:
        """Read images' tokens (B, P, D) under conditions → (R, E); the last text is no instruction."""
        asked = [torch.from_numpy(ids) for ids in (*conditions.values(), self._no_instruction)]
        input_ids = pad_sequence(asked, batch_first=True, padding_value=self._padding).to(self._device)
        mask = pad_sequence([torch.ones_like(ids) for ids in asked], batch_first=True).to(self._device)
        images = [image for image, _ in pairs]
        texts = [len(conditions) if place == UNCONDITIONAL else place for _, place in pairs]
        parts = []
        for start in range(0, len(pairs), MAX_READOUTS_AT_ONCE):
            some = slice(start, start + MAX_READOUTS_AT_ONCE)
            parts.append(self._model(features[images[some]], input_ids[texts[some]], mask[texts[some]]))
        return to_rows(torch.cat(parts))


class InstructBlipEngine(StackingEngine[InstructBlipCheckpoint]):
    """Runs one InstructBLIP checkpoint."""

    image_only = "an InstructBLIP"

    def __init__(self, checkpoint: InstructBlipCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        encoder = InstructBlipEncoder(checkpoint, device, dtype)
        vision, qformer = checkpoint.model.vision.config, checkpoint.model.qformer.config
        num_patches = (vision.image_size // vision.patch_size) ** 2 + 1
        # what a readout costs in tokens of the tower: its queries pass the Q-Former, and half its layers read the image
        read = checkpoint.model.query_tokens.shape[1] + num_patches / 6
        weights = [one.num_hidden_layers * one.hidden_size**2 for one in (qformer, vision)]
        self._read_cost = math.ceil(read * weights[0] / weights[1])
        super().__init__(
            checkpoint, device, dtype, Encoders(encoder, states=encoder), Costs(num_patches, share_of_blocks=1, state=0)
        )

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
