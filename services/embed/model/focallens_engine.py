"""FocalLens-CLIP: its checkpoint directories, and the engine that runs one.

A directory holds the configuration and the merges of an open_clip directory, `model.safetensors` (image tower, frozen
text tower, condition tower) and `focallens.json`.

Shapes: B images, S numbers in a state, R readouts (an image under a condition, or under none), C conditions,
E embedding width, W text tokens, N texts.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from services.embed.focallens import FocalLens
from services.embed.model.image_engine import Checkpoint, to_rows
from services.embed.model.items import Bytes, Embeddings
from services.embed.model.stacking_engine import ConditionTokens, Costs, Pair, StackingEngine, half_precision, packed
from services.embed.visibility import Grid, Index, Readouts, ranks_within
from services.nn.captured import Captured
from services.nn.clip_model import ClipModel, build_clip, write_config
from services.nn.clip_model import half_precision as half_precision_weights
from services.nn.clip_texts import InputIds
from services.nn.clip_tokenizer import Tokenizer
from services.nn.device_copies import stack, to_device
from services.nn.image_transform import ImageTransform
from services.nn.packed_linear import can_pack
from services.nn.text_transformer import TextEncoder
from services.nn.vision_transformer import pack_tower

FOCALLENS_CONFIG = "focallens.json"
FOCALLENS_WEIGHTS = "model.safetensors"
# Reading a number of a state from memory, widening it and attending to it takes a CPU about as long as this many
# multiplications of a forward pass.
STATE_READ_COST = 32
# Readouts of an image in one pass, since the work of their attention grows with their square.
MAX_READOUTS_AT_ONCE = 256
# Tokens of empty places in a pass, as a share of its patches: images with fewer readouts than others have some.
MAX_SHARE_OF_EMPTY = 1 / 16


FocalLensCheckpoint = Checkpoint[FocalLens, Tokenizer, ImageTransform]


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
    return Checkpoint(model.to(device=device, dtype=dtype), clip.tokenizer, clip.transform)


class _Pass(NamedTuple):
    """Pairs that pass the tower together: their places among all, the images that they are of, None for all images in
    order, and what is read of these."""

    rows: Index
    images: Tensor | None
    readouts: Readouts

    def select(self, inputs: Tensor) -> Tensor:
        """Select what belongs to the images of this pass: (B, …) → the same for fewer."""
        return inputs if self.images is None else inputs[self.images]


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
        self.visual = model.clip.visual
        if can_pack(device, dtype):
            pack_tower(model.clip.visual)
        self._encode_grid = Captured(partial(_encode_grid, model, checkpoint.transform, dtype))
        self._texts = TextEncoder(model.clip, device)
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
        uploaded, tokens = to_device(pixels, self._device), self._tokens_of(conditions)
        passes, rows = self._passes(pairs, len(pixels)), []
        for one in passes:
            images = one.select(uploaded)
            asked = self._model.grid(tokens, one.readouts, images)
            num_rows = len(images if asked.images is None else asked.images) * asked.num_places
            (found,) = self._encode_grid(images, asked.tokens, asked.has_token, asked.images, num_rows=num_rows)
            rows.append(asked.chosen(found))
        return _joined(passes, rows)

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]:
        normalised, tokens = self._normalised(pixels), self._tokens_of(conditions)
        passes, rows = self._passes(pairs, len(pixels)), []
        states = normalised.new_empty(0, dtype=self.state_dtype)
        for one in passes:
            found, own = self._model.encode_images_and_states(
                one.select(normalised), tokens, one.readouts, dtype=self.state_dtype
            )
            rows.append(found)
            if one.images is None:
                states = own
            else:
                states = states if len(states) else own.new_empty(len(pixels), own.shape[1])
                states[one.images] = own
        return _joined(passes, rows), packed(states, self.state_dtype)

    def read_states(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        unpacked, tokens = to_device(states, self._device).view(self.state_dtype), self._tokens_of(conditions)
        passes = self._passes(pairs, len(states))
        return _joined(passes, [self._model.read_states(one.select(unpacked), tokens, one.readouts) for one in passes])

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings:
        return to_rows(self._texts.encode(texts))

    def _tokens_of(self, conditions: Mapping[str, InputIds]) -> Tensor | None:
        return self._tokens.of(conditions) if conditions else None

    def _passes(self, pairs: Sequence[Pair], num_images: int) -> list[_Pass]:
        """Share pairs out among passes: one for all, unless images have so different numbers of readouts that the
        places left empty would cost more than further passes."""
        images, conditions = np.array(pairs).T
        group = np.zeros_like(images)
        if self._model.visibility == "readout":
            group = ranks_within(images) // MAX_READOUTS_AT_ONCE
            sizes = np.minimum(np.bincount(images)[images] - group * MAX_READOUTS_AT_ONCE, MAX_READOUTS_AT_ONCE)
            num_empty = 2 * (num_images * sizes.max() - len(pairs))
            if num_empty > MAX_SHARE_OF_EMPTY * num_images * self._costs.num_patches:
                group = group * MAX_READOUTS_AT_ONCE + np.frexp(sizes)[1]
        passes = []
        for one in np.unique(group):
            rows = np.flatnonzero(group == one)
            of_pass, places = np.unique(images[rows], return_inverse=True)
            readouts = Readouts(torch.from_numpy(places), torch.from_numpy(conditions[rows]))
            is_whole = len(of_pass) == num_images
            chosen = None if is_whole else to_device(torch.from_numpy(of_pass), self._device)
            passes.append(_Pass(rows, chosen, readouts))
        return passes


def _encode_grid(  # noqa: PLR0913 (a grid's tensors)
    model: FocalLens,
    transform: ImageTransform,
    dtype: torch.dtype,
    pixels: Tensor,
    tokens: Tensor | None,
    has_token: Tensor | None,
    images: Tensor | None,
) -> tuple[Tensor]:
    normalised = transform.normalise(pixels).to(dtype)
    return (model.encode_grid(normalised, Grid(tokens, has_token, images=images)),)


def _joined(passes: Sequence[_Pass], rows: Sequence[Tensor]) -> Embeddings:
    """Put the rows of all passes in the order of their pairs."""
    found = to_rows(torch.cat(list(rows)))
    return found if len(passes) == 1 else found[np.argsort(np.concatenate([one.rows for one in passes]))]
