"""An engine whose images have one size: it stacks a batch's, and an encoder reads them under their conditions.

Each distinct image, each distinct condition and each distinct (image, condition) pair is encoded once for all requests
that contain it.

Shapes: B images, E embedding width, W text tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from services.embed.model.conditional_engine import CheckpointT, ConditionalEngine
from services.embed.model.items import Bytes, Embeddings, ImageItem, Item, Reading, StateItem
from services.embed.model.readout_plan import Pair, ReadoutPlan
from services.nn.clip_texts import InputIds, Text


@dataclass(frozen=True)
class Stack:
    """Distinct images of a batch in one array in host memory, ready for the device: `data` (B, …) uint8 are pixels or
    states, `place_of` maps an image's digest to its place."""

    place_of: dict[str, int]
    data: Tensor


@dataclass(frozen=True)
class CollatedBatch:
    """A batch together with its stacked images."""

    items: Sequence[Item]
    pixels: Stack
    states: Stack


class ConditionalEncoder(Protocol):
    """A model on its device: from pixels and token ids in host memory to unit vectors.

    `conditions` are token ids (W,) by their digest; `pairs` point into images and conditions, in order. `visibility` is
    `readout` if an image is encoded once for all conditions, and `full` if for each anew.
    """

    @property
    def embedding_width(self) -> int: ...
    @property
    def visibility(self) -> str: ...

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings: ...


class StateEncoder(Protocol):
    """An encoder that can keep an image's state, the part of its computation that no condition affects.

    A state has `state_bytes` of numbers of `state_dtype`; None if nothing of an image is the same under all conditions.
    """

    @property
    def state_dtype(self) -> torch.dtype: ...
    @property
    def state_bytes(self) -> int | None: ...

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]: ...

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings: ...


class TextEncoder(Protocol):
    """An encoder of texts by themselves, into the space of the images."""

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings: ...


@dataclass(frozen=True)
class Encoders:
    """The sides of a model: `states` and `texts` are None where it has no such side."""

    images: ConditionalEncoder
    states: StateEncoder | None = None
    texts: TextEncoder | None = None


@dataclass(frozen=True)
class Costs:
    """Tokens that a tower processes for an image, and their equivalents for reading an image from its state: the share
    of its blocks that run again, and the state itself."""

    num_patches: int
    share_of_blocks: float
    state: int


class StackingEngine(ConditionalEngine[CheckpointT]):
    """Runs one checkpoint by its encoders."""

    def __init__(
        self, checkpoint: CheckpointT, device: torch.device, dtype: torch.dtype, encoders: Encoders, costs: Costs
    ) -> None:
        super().__init__(checkpoint, device, dtype)
        self._encoder = encoders.images
        self._states = encoders.states
        self._texts = encoders.texts
        self._costs = costs

    @property
    def embedding_width(self) -> int:
        return self._encoder.embedding_width

    @property
    def visibility(self) -> str:
        return self._encoder.visibility

    @property
    def state_bytes(self) -> int | None:
        return None if self._states is None else self._states.state_bytes

    @property
    def state_dtype(self) -> torch.dtype:
        return torch.float32 if self._states is None else self._states.state_dtype

    def cost(self, item: Item) -> int:
        """Count a text's tokens, or an image's patches and what each condition adds; for a state, what the condition
        adds and an equivalent of reading the state."""
        if isinstance(item, Text):
            return item.num_tokens
        num_conditions = len(item.conditions)
        is_readout = self.visibility == "readout"
        if isinstance(item, ImageItem):
            return self._costs.num_patches * (1 if is_readout else num_conditions) + 2 * num_conditions
        num_tokens = num_conditions * (2 if is_readout else self._costs.num_patches + 2)
        return math.ceil(num_tokens * self._costs.share_of_blocks) + self._costs.state

    def collate(self, items: Sequence[Item]) -> CollatedBatch:
        """Stack the images of a batch, in page-locked memory if the device is CUDA; runs on any thread."""
        return CollatedBatch(
            items,
            pixels=self._stack({item.digest: item.pixels for item in items if isinstance(item, ImageItem)}),
            states=self._stack({item.digest: item.state for item in items if isinstance(item, StateItem)}),
        )

    def run_collated(self, batch: CollatedBatch) -> list[Reading]:
        """Run a collated batch with the same result as `run_batch`."""
        readings: dict[int, Reading] = {}
        with torch.inference_mode():
            if images := [item for item in batch.items if isinstance(item, ImageItem)]:
                readings |= zip(map(id, images), self._encode(images, batch.pixels), strict=True)
            if kept := [item for item in batch.items if isinstance(item, StateItem)]:
                readings |= zip(map(id, kept), self._read(kept, batch.states), strict=True)
            if texts := [item for item in batch.items if isinstance(item, Text)]:
                readings |= zip(map(id, texts), self._embed_texts(texts), strict=True)
        return [readings[id(item)] for item in batch.items]

    def _stack(self, distinct: dict[str, Bytes]) -> Stack:
        data = torch.from_numpy(np.stack(list(distinct.values()))) if distinct else torch.empty(0, dtype=torch.uint8)
        if distinct and self._device.type == "cuda":
            data = data.pin_memory()
        return Stack({digest: place for place, digest in enumerate(distinct)}, data)

    def _encode(self, items: Sequence[ImageItem], stack: Stack) -> list[Reading]:
        plan, conditions = _plan(items, stack)
        if self._states is None or self.state_bytes is None or not any(item.keeps_state for item in items):
            rows = self._encoder.encode(stack.data, conditions, plan.pairs)
            return [Reading(own) for own in plan.scatter(rows)]
        rows, states = self._states.encode_with_states(stack.data, conditions, plan.pairs)
        return [
            Reading(own, states[stack.place_of[item.digest]] if item.keeps_state else None)
            for item, own in zip(items, plan.scatter(rows), strict=True)
        ]

    def _read(self, items: Sequence[StateItem], stack: Stack) -> list[Reading]:
        plan, conditions = _plan(items, stack)
        assert self._states is not None, "only an encoder that keeps states returned one"
        rows = self._states.read(stack.data, conditions, plan.pairs)
        return [Reading(own) for own in plan.scatter(rows)]

    def _embed_texts(self, texts: Sequence[Text]) -> list[Reading]:
        unique = {text.digest: text.input_ids for text in texts}
        row_of = {digest: row for row, digest in enumerate(unique)}
        assert self._texts is not None, "texts that have no embeddings are refused before"
        rows = self._texts.embed_texts(list(unique.values()))
        return [Reading(rows[row_of[text.digest]][None]) for text in texts]


def _plan(items: Sequence[ImageItem | StateItem], stack: Stack) -> tuple[ReadoutPlan, dict[str, InputIds]]:
    """Plan the items' readouts together, and collect their distinct conditions."""
    conditions = {c.digest: c.input_ids for item in items for c in item.conditions if c is not None}
    wanted = [
        (stack.place_of[item.digest], [None if c is None else c.digest for c in item.conditions]) for item in items
    ]
    return ReadoutPlan.of(wanted, {digest: place for place, digest in enumerate(conditions)}), conditions
