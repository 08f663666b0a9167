"""Engines of models whose images have one size: they stack the images of a batch, and encode each distinct image, each
distinct condition and each distinct (image, condition) pair once.

An image's state is the part of its computation that no condition affects: with it, the image is read under another
condition without being encoded again.

Shapes: B images, R readouts (an image under a condition, or under none), C conditions, E embedding width, W text
tokens, N texts.
"""

import math
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from threading import Lock
from typing import Self

import torch
from torch import Tensor

from services.embed.model.image_engine import CheckpointT, ImageEngine, to_rows
from services.embed.model.items import Bytes, Embeddings, ImageItem, Item, Reading, StateItem
from services.nn.clip_texts import InputIds, Text
from services.nn.device_copies import stack, to_device

# Places of an image and a condition in a batch.
Pair = tuple[int, int]
UNCONDITIONAL = -1
# This many condition tokens take a few hundred kilobytes.
MAX_REMEMBERED_CONDITIONS = 256
# The instruction of an image without one.
NO_INSTRUCTION = ""


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


@dataclass(frozen=True)
class Costs:
    """Tokens that a tower processes for an image, and their equivalents for reading an image from its state: the share
    of its blocks that run again, and the state itself."""

    num_patches: int
    share_of_blocks: float = 1.0
    state: int = 0


class StackingEngine(ImageEngine[CheckpointT]):
    """Runs one checkpoint, whose model it owns and repacks on CPUs.

    What its subclasses define runs under torch.inference_mode, on one thread at a time: `conditions` are token ids (W,)
    by their digest; `pairs` point into images and conditions, in order. Rows are (R, E) float32, L2-normalised;
    BrokenModel is raised if one of their numbers is not finite.
    """

    def __init__(self, checkpoint: CheckpointT, device: torch.device, dtype: torch.dtype, costs: Costs) -> None:
        super().__init__(checkpoint, device, dtype)
        self._normalise: Callable[[Tensor], Tensor] = checkpoint.transform.normalise
        self._costs = costs

    @abstractmethod
    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        """Encode images (B, height, width, 3) uint8."""

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]:
        """Encode like `encode`, and also return the state (state_bytes,) of each image from the same pass.

        A state is None if `state_dtype` can't represent one of its numbers.
        """
        raise NotImplementedError

    def read_states(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        """Read images from states (B, state_bytes) uint8, made by an engine of the same model and dtype."""
        raise NotImplementedError

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings:
        """Embed texts by themselves, into the space of the images: token ids (W,) each → (N, E)."""
        raise NotImplementedError

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
                readings |= zip(map(id, images), self._run_images(images, batch.pixels), strict=True)
            if kept := [item for item in batch.items if isinstance(item, StateItem)]:
                readings |= zip(map(id, kept), self._run_states(kept, batch.states), strict=True)
            if texts := [item for item in batch.items if isinstance(item, Text)]:
                readings |= zip(map(id, texts), self._run_texts(texts), strict=True)
        return [readings[id(item)] for item in batch.items]

    def _normalised(self, pixels: Tensor) -> Tensor:
        return self._normalise(to_device(pixels, self._device)).to(self._dtype)

    def _stack(self, distinct: dict[str, Bytes]) -> Stack:
        data = stack(list(distinct.values()), self._device) if distinct else torch.empty(0, dtype=torch.uint8)
        return Stack({digest: place for place, digest in enumerate(distinct)}, data)

    def _run_images(self, items: Sequence[ImageItem], stack: Stack) -> list[Reading]:
        plan = ReadoutPlan.of(items, stack)
        if self.state_bytes is None or not any(item.keeps_state for item in items):
            rows = self.encode(stack.data, plan.conditions, plan.pairs)
            return [Reading(own) for own in plan.scatter(rows)]
        rows, states = self.encode_with_states(stack.data, plan.conditions, plan.pairs)
        return [
            Reading(own, states[stack.place_of[item.digest]] if item.keeps_state else None)
            for item, own in zip(items, plan.scatter(rows), strict=True)
        ]

    def _run_states(self, items: Sequence[StateItem], stack: Stack) -> list[Reading]:
        plan = ReadoutPlan.of(items, stack)
        rows = self.read_states(stack.data, plan.conditions, plan.pairs)
        return [Reading(own) for own in plan.scatter(rows)]

    def _run_texts(self, texts: Sequence[Text]) -> list[Reading]:
        unique = {text.digest: text.input_ids for text in texts}
        row_of = {digest: row for row, digest in enumerate(unique)}
        rows = self.embed_texts(list(unique.values()))
        return [Reading(rows[row_of[text.digest]][None]) for text in texts]


@dataclass(frozen=True)
class ReadoutPlan:
    """The distinct `conditions` of some items, token ids by digest, and their distinct `pairs`, each of which is
    computed once for all requests that contain it.

    `row_index` holds the pair for each condition of each item, in order, and `ends` where each item ends in it.
    """

    conditions: dict[str, InputIds]
    pairs: Sequence[Pair]
    row_index: Sequence[int]
    ends: Sequence[int]

    @classmethod
    def of(cls, items: Sequence[ImageItem | StateItem], stack: Stack) -> Self:
        conditions = {c.digest: c.input_ids for item in items for c in item.conditions if c is not None}
        place_of = {digest: place for place, digest in enumerate(conditions)}
        wanted = [
            (stack.place_of[item.digest], UNCONDITIONAL if c is None else place_of[c.digest])
            for item in items
            for c in item.conditions
        ]
        row_of = {pair: row for row, pair in enumerate(dict.fromkeys(wanted))}
        ends = list(accumulate(len(item.conditions) for item in items))
        return cls(conditions, list(row_of), [row_of[pair] for pair in wanted], ends)

    def scatter(self, rows: Embeddings) -> list[Embeddings]:
        """Split the pairs' rows (R, E) into each item's own."""
        spread = rows[self.row_index]
        return [spread[start:end] for start, end in pairwise([0, *self.ends])]


class FeatureEngine(StackingEngine[CheckpointT]):
    """Runs a model that computes an image's features whatever the condition; these are the image's state.

    `features_shape` is the shape of one image's. An image without a condition is read under an empty instruction.
    """

    def __init__(
        self,
        checkpoint: CheckpointT,
        device: torch.device,
        dtype: torch.dtype,
        costs: Costs,
        *,
        features_shape: tuple[int, ...],
    ) -> None:
        super().__init__(checkpoint, device, dtype, costs)
        self._features_shape = features_shape
        self._no_instruction: InputIds = checkpoint.tokenizer([NO_INSTRUCTION])[0].numpy()

    @property
    def state_bytes(self) -> int:
        return math.prod(self._features_shape) * self.state_dtype.itemsize

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        return self._read(self._image_features(pixels), conditions, pairs)

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]:
        features = self._image_features(pixels)
        return self._read(features, conditions, pairs), packed(features.flatten(1), self.state_dtype)

    def read_states(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        features = to_device(states, self._device).view(self.state_dtype)
        return self._read(features.view(-1, *self._features_shape), conditions, pairs)

    def _read(self, features: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings:
        """Read the features (B, …) of images under conditions → (R, E)."""
        images, texts = zip(*with_last(pairs, len(conditions)), strict=True)
        asked = {**conditions, NO_INSTRUCTION: self._no_instruction}
        return to_rows(self._fuse(features, asked, list(images), list(texts)))

    @abstractmethod
    def _image_features(self, pixels: Tensor) -> Tensor:
        """Compute the features (B, …) of images (B, height, width, 3) uint8."""

    @abstractmethod
    def _fuse(
        self, features: Tensor, conditions: Mapping[str, InputIds], images: list[int], texts: list[int]
    ) -> Tensor:
        """Read the features at `images` under the conditions at `texts` → (R, E)."""


class ConditionTokens:
    """Caches the outputs of `encode`, the condition tower: token ids (W,) each → (C, D)."""

    def __init__(self, encode: Callable[[Sequence[InputIds]], Tensor]) -> None:
        self._encode = encode
        self._remembered: OrderedDict[str, Tensor] = OrderedDict()
        self._using = Lock()

    def of(self, conditions: Mapping[str, InputIds]) -> Tensor:
        """Return the tokens (C, D) of one or more conditions by digest; only those not cached pass through the
        tower. On any thread."""
        with self._using:
            return self._tokens_of(conditions)

    def _tokens_of(self, conditions: Mapping[str, InputIds]) -> Tensor:
        remembered = self._remembered
        new = [digest for digest in conditions if digest not in remembered]
        if new:
            tokens = self._encode([conditions[digest] for digest in new])
            for digest, token in zip(new, tokens, strict=True):
                remembered[digest] = token.clone()  # a view would keep its whole batch in memory
        for digest in conditions:
            remembered.move_to_end(digest)
        chosen = torch.stack([remembered[digest] for digest in conditions])
        while len(remembered) > MAX_REMEMBERED_CONDITIONS:
            remembered.popitem(last=False)
        return chosen


def half_precision(dtype: torch.dtype) -> torch.dtype:
    """Choose the dtype of half precision that goes with a model's."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float16


def with_last(pairs: Sequence[Pair], last: int) -> list[Pair]:
    """Let images without a condition be read under the one at the place `last`."""
    return [(image, last if place == UNCONDITIONAL else place) for image, place in pairs]


def packed(states: Tensor, dtype: torch.dtype) -> list[Bytes | None]:
    """Convert the numbers (B, S) of states to bytes of `dtype`; None for a state with a number too large for it."""
    narrow = states.to(dtype).contiguous()
    is_whole = narrow.sum(dim=1, dtype=torch.float32).isfinite().tolist()
    return [data if is_whole[i] else None for i, data in enumerate(narrow.view(torch.uint8).cpu().numpy())]
