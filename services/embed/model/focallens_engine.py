"""FocalLens-CLIP: its checkpoint directories, and the engine that runs one.

A directory holds the configuration and the merges of an open_clip directory, `model.safetensors` (image tower, frozen
text tower, condition tower) and `focallens.json`.

Shapes: B images, S numbers in a state, R readouts (an image under a condition, or under none), C conditions,
E embedding width, W text tokens, N texts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.embed.focallens import FocalLens, Readouts
from services.embed.model.image_engine import to_rows
from services.embed.model.items import Bytes, Embeddings
from services.embed.model.stacking_engine import ConditionTokens, Costs, Pair, StackingEngine, half_precision, packed
from services.nn.clip_model import ClipModel, build_clip, write_config
from services.nn.clip_model import half_precision as half_precision_weights
from services.nn.clip_texts import InputIds
from services.nn.clip_tokenizer import Tokenizer
from services.nn.devices import stack, to_device
from services.nn.image_transform import ImageTransform
from services.nn.packed_linear import can_pack
from services.nn.vision_transformer import pack_tower

FOCALLENS_CONFIG = "focallens.json"
FOCALLENS_WEIGHTS = "model.safetensors"
# Reading a number of a state from memory, widening it and attending to it takes a CPU about as long as this many
# multiplications of a forward pass.
STATE_READ_COST = 32
# A readout copies its image's keys and values, so a batch of many is read in slices.
MAX_READOUTS_AT_ONCE = 256


@dataclass(frozen=True)
class FocalLensCheckpoint:
    """A FocalLens model ready to embed."""

    model: FocalLens
    tokenizer: Tokenizer
    transform: ImageTransform


def save_focallens(model: FocalLens, clip: ClipModel, directory: Path) -> None:
    """Write a FocalLens directory with `clip`'s configuration and tokenizer. Weights are stored as float16."""
    directory.mkdir(parents=True, exist_ok=True)
    write_config(clip, directory)
    settings = {"condition_layer": model.condition_layer, "visibility": model.visibility}
    (directory / FOCALLENS_CONFIG).write_text(json.dumps(settings, indent=2) + "\n")
    save_file(half_precision_weights(model.state_dict()), directory / FOCALLENS_WEIGHTS)


def load_focallens(
    directory: Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> FocalLensCheckpoint:
    """Read a FocalLens directory for inference. Raises OSError, ValueError or RuntimeError if it is not one."""
    clip = build_clip(directory)
    model = FocalLens(clip.model, **json.loads((directory / FOCALLENS_CONFIG).read_text()))
    model.load_state_dict(load_file(directory / FOCALLENS_WEIGHTS))
    model.eval().requires_grad_(False)
    return FocalLensCheckpoint(model.to(device=device, dtype=dtype), clip.tokenizer, clip.transform)


class FocalLensEngine(StackingEngine[FocalLensCheckpoint]):
    """Runs one FocalLens checkpoint.

    States are packed in half precision, so a row read from one differs in its last digits from the row computed from
    pixels.
    """

    def __init__(self, checkpoint: FocalLensCheckpoint, device: torch.device, dtype: torch.dtype) -> None:
        model = checkpoint.model
        blocks = model.clip.visual.transformer.resblocks
        width = model.condition_projection.out_features
        num_weights = 12 * width**2 * len(blocks)  # of attention and an MLP four times as wide
        costs = Costs(
            num_patches=int(model.clip.visual.positional_embedding.shape[0]) - 1,
            share_of_blocks=1 - model.condition_layer / len(blocks),
            state=math.ceil(STATE_READ_COST * (model.state_size or 0) / num_weights),
        )
        super().__init__(checkpoint, device, dtype, costs)
        self._model = model
        if can_pack(device, dtype):
            pack_tower(model.clip.visual)
        self._tokens = ConditionTokens(lambda texts: model.encode_conditions(stack(texts, device)))

    @classmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> FocalLensCheckpoint:
        return load_focallens(directory, device=device, dtype=dtype)

    @classmethod
    def tower_width(cls, checkpoint: FocalLensCheckpoint) -> int:
        return int(checkpoint.model.condition_projection.out_features)

    @property
    def embedding_width(self) -> int:
        return int(self._model.clip.visual.proj.shape[1])

    @property
    def visibility(self) -> str:
        return self._model.visibility

    @property
    def state_bytes(self) -> int | None:
        size = self._model.state_size
        return None if size is None else size * self.state_dtype.itemsize

    @property
    def state_dtype(self) -> torch.dtype:
        return half_precision(self._dtype)

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        slices = self._slices(pairs)
        if len(slices) > 1:
            return self._encode_in_slices(pixels, conditions, slices, self._dtype)[0]
        readouts = self._readouts(pairs, len(pixels))
        return to_rows(self._model.encode_images(self._normalised(pixels), self._tokens_of(conditions), readouts))

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]:
        slices = self._slices(pairs)
        dtype = self.state_dtype if len(slices) == 1 else self._dtype  # rows are never read from rounded numbers
        rows, states = self._encode_in_slices(pixels, conditions, slices, dtype)
        return rows, packed(states, self.state_dtype)

    def read_states(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        unpacked = to_device(states, self._device).view(self.state_dtype)
        tokens = self._tokens_of(conditions)
        slices = [pairs[start : start + MAX_READOUTS_AT_ONCE] for start in range(0, len(pairs), MAX_READOUTS_AT_ONCE)]
        return to_rows(torch.cat([self._read_slice(unpacked, tokens, some) for some in slices]))

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings:
        return to_rows(self._model.encode_texts(stack(texts, self._device)))

    def _encode_in_slices(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], slices: Sequence[Sequence[Pair]], dtype: torch.dtype
    ) -> tuple[Embeddings, Tensor]:
        """Compute the first readouts together with the images' states (B, S) of `dtype`; read the others from these."""
        tokens, readouts = self._tokens_of(conditions), self._readouts(slices[0], len(pixels))
        first, states = self._model.encode_images_and_states(self._normalised(pixels), tokens, readouts, dtype=dtype)
        return to_rows(torch.cat([first, *(self._read_slice(states, tokens, some) for some in slices[1:])])), states

    def _read_slice(self, states: Tensor, tokens: Tensor | None, pairs: Sequence[Pair]) -> Tensor:
        return self._model.read_states(states, tokens, self._readouts(pairs, len(states)))

    def _slices(self, pairs: Sequence[Pair]) -> Sequence[Sequence[Pair]]:
        """Cut pairs into slices; only one in `full`, where each readout is a pass and slices would save nothing."""
        size = MAX_READOUTS_AT_ONCE if self._model.visibility == "readout" else len(pairs)
        return [pairs[start : start + size] for start in range(0, len(pairs), size)]

    def _tokens_of(self, conditions: Mapping[str, InputIds]) -> Tensor | None:
        return self._tokens.of(conditions) if conditions else None

    def _readouts(self, pairs: Sequence[Pair], num_images: int) -> Readouts:
        images, conditions = zip(*pairs, strict=True)
        is_one_each = images == tuple(range(num_images))
        index = None if is_one_each else torch.tensor(images, device=self._device)
        return Readouts(index, torch.tensor(conditions, device=self._device))
