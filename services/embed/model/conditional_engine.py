"""A model that reads images under conditions, on a device: from images, conditions and texts to unit vectors.

A batch mixes the items of different requests. Each distinct image, each distinct condition and each distinct (image,
condition) pair is encoded once for all requests that contain it.

Shapes: B images, E embedding width, W text tokens.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from pydantic import JsonValue
from torch import Tensor

from services.core.errors import InvalidRequest
from services.embed.model.items import Bytes, Embeddings, ImageItem, Item, Pixels, Reading, StateItem
from services.embed.model.readout_plan import Pair, ReadoutPlan
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import InputIds, Text, TextTokenizer, tokenise
from services.nn.image_transform import ImageTransform
from services.nn.reference_outputs import OutputRow, check_checkpoint

# Rounding makes two orders of summation of a dot product differ; a wrong mask or a stale buffer differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


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
    """A model on its device: from pixels, states and token ids in host memory to unit vectors and states.

    `conditions` are token ids (W,) by their digest; `pairs` point into images and conditions, in order. `visibility` is
    `readout` if an image is encoded once for all conditions, and `full` if for each anew. An image's state is the part
    of its computation that no condition affects: `state_bytes` of numbers of `state_dtype`, None if there is none.
    """

    @property
    def embedding_width(self) -> int: ...
    @property
    def visibility(self) -> str: ...
    @property
    def state_dtype(self) -> torch.dtype: ...
    @property
    def state_bytes(self) -> int | None: ...

    def encode(self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings: ...

    def encode_with_states(
        self, pixels: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]
    ) -> tuple[Embeddings, list[Bytes | None]]: ...

    def read(self, states: Tensor, conditions: Mapping[str, InputIds], pairs: Sequence[Pair]) -> Embeddings: ...

    def embed_texts(self, texts: Sequence[InputIds]) -> Embeddings: ...


@dataclass(frozen=True)
class Costs:
    """Tokens that a tower processes for an image, and their equivalents for reading an image from its state: the share
    of its blocks that run again, and the state itself."""

    num_patches: int
    share_of_blocks: float
    state: int


class ConditionalEngine:
    """Runs one checkpoint; methods that take tensors run on one thread at a time, `prepare_*` on any.

    `image_only` names a model in whose space texts by themselves have no embeddings; None if they have.
    """

    image_only: str | None = None

    def __init__(
        self, encoder: ConditionalEncoder, tokenizer: TextTokenizer, transform: ImageTransform, device: torch.device,
        dtype: torch.dtype, costs: Costs,
    ) -> None:  # fmt: skip
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._transform = transform
        self._device = device
        self._dtype = dtype
        self._costs = costs
        self._directory: Path | None = None

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a text, including start and end."""
        return self._tokenizer.context_length

    @property
    def embedding_width(self) -> int:
        """Number of dimensions of an embedding."""
        return self._encoder.embedding_width

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) to which every image is transformed."""
        return self._transform.size

    @property
    def visibility(self) -> str:
        """`full` or `readout`: which tokens attend to a condition."""
        return self._encoder.visibility

    @property
    def dtype_name(self) -> str:
        """The dtype of the forward pass, e.g. `bfloat16`; embeddings are always float32."""
        return str(self._dtype).removeprefix("torch.")

    @property
    def computes_in(self) -> str:
        return self.dtype_name

    @property
    def state_bytes(self) -> int | None:
        """Bytes of an image's state; None if no state is cheaper to read than the image."""
        return self._encoder.state_bytes

    def prepare_text(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a text. Raises what `tokenise` raises, and InvalidRequest if texts have no embeddings."""
        if self.image_only is not None:
            raise InvalidRequest(
                f"This model is a {self.image_only}, which embeds images, alone or under a condition, its instruction; "
                "a text by itself has no embedding."
            )
        return tokenise(self._tokenizer, text, truncate=truncate)

    def prepare_condition(self, text: str) -> Text:
        """Tokenise a condition. Raises what `tokenise` raises."""
        return tokenise(self._tokenizer, text)

    def prepare_image(
        self, image: Image.Image, digest: str, conditions: Sequence[Text | None], *, keeps_state: bool = False
    ) -> list[ImageItem]:
        """Transform an RGB image and call `prepare_pixels`."""
        return self.prepare_pixels(self.transform(image), digest, conditions, keeps_state=keeps_state)

    def transform(self, image: Image.Image) -> Pixels:
        """Transform an RGB image to the model's input size, still as bytes: (height, width, 3)."""
        return self._transform(image)

    def prepare_pixels(
        self, pixels: Pixels, digest: str, conditions: Sequence[Text | None], *, keeps_state: bool = False
    ) -> list[ImageItem]:
        """Make the items that together read a transformed image under every condition, in order.

        One item if a single pass serves all conditions (`readout`), one per condition if each needs its own pass; the
        first returns the state.
        """
        if self.visibility == "readout":
            return [ImageItem(digest, pixels, tuple(conditions), keeps_state)]
        return [
            ImageItem(digest, pixels, (condition,), keeps_state and place == 0)
            for place, condition in enumerate(conditions)
        ]

    def cost(self, item: Item) -> int:
        """Count the tokens that a tower processes: a text's, or an image's patches and what each condition adds; for a
        state, what the condition adds and an equivalent of reading the state."""
        if isinstance(item, Text):
            return item.num_tokens
        num_conditions = len(item.conditions)
        is_readout = self.visibility == "readout"
        if isinstance(item, ImageItem):
            return self._costs.num_patches * (1 if is_readout else num_conditions) + 2 * num_conditions
        num_tokens = num_conditions * (2 if is_readout else self._costs.num_patches + 2)
        return math.ceil(num_tokens * self._costs.share_of_blocks) + self._costs.state

    def run_batch(self, items: Sequence[Item]) -> list[Reading]:
        """Run a batch and return a reading of each item. Raises BrokenModel if one of its numbers is not finite."""
        return self.run_collated(self.collate(items))

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

    def warm_up(self) -> None:
        """Run each kind of item once, alone and mixed, so that no request waits for first-call costs."""
        batch = self._sample_batch()
        kept = self._from_states(batch, self.run_batch(batch)).values()
        for items in (self._sample_texts(), [self._sample_image(0)], list(kept), [*batch, *kept]):
            if items:
                self.run_batch(items)

    def self_check(self) -> None:
        """Raises BrokenModel unless embeddings are unit vectors that do not depend on the rest of the batch, and hardly
        on whether they are read from pixels or from a state."""
        batch = self._sample_batch()
        together = self.run_batch(batch)
        alone = [self.run_batch([item])[0] for item in batch]
        if (difference := _difference(together, alone)) > SELF_CHECK_TOLERANCE[self._dtype]:
            raise BrokenModel(f"an embedding changes by {difference:.3g} with the other items of its batch")
        norms = np.concatenate([np.linalg.norm(reading.rows, axis=1) for reading in together])
        if np.abs(norms - 1).max() > SELF_CHECK_TOLERANCE[torch.float32]:
            raise BrokenModel(f"embeddings have norms from {norms.min():.3g} to {norms.max():.3g}, not 1")
        kept = self._from_states(batch, together)
        again = self.run_batch(list(kept.values()))
        difference = _difference(again, [together[place] for place in kept])
        if difference > SELF_CHECK_TOLERANCE[self._encoder.state_dtype]:
            raise BrokenModel(f"an embedding changes by {difference:.3g} when it is computed from its image's state")
        check_checkpoint(self, self._directory)

    def reference_inputs(self) -> list[JsonValue]:
        """Return texts, and seeds of noise images with or without a condition."""
        images: list[JsonValue] = [{"image": 0}, {"image": 1, "condition": "what color is it?"}]
        return [*images, {"text": "a red square"}, {"text": "two blue circles"}] if self.image_only is None else images

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Compute the embedding of each input."""
        return [self.run_batch([self._reference_item(one)])[0].rows[0].tolist() for one in inputs]

    def _reference_item(self, one: Any) -> Item:
        if "text" in one:
            return self.prepare_text(one["text"], truncate=True)
        condition = one.get("condition")
        return self._sample_image(
            one["image"], None if condition is None else tokenise(self._tokenizer, condition, truncate=True)
        )

    def _stack(self, distinct: dict[str, Bytes]) -> Stack:
        data = torch.from_numpy(np.stack(list(distinct.values()))) if distinct else torch.empty(0, dtype=torch.uint8)
        if distinct and self._device.type == "cuda":
            data = data.pin_memory()
        return Stack({digest: place for place, digest in enumerate(distinct)}, data)

    def _encode(self, items: Sequence[ImageItem], stack: Stack) -> list[Reading]:
        plan, conditions = _plan(items, stack)
        if self.state_bytes is None or not any(item.keeps_state for item in items):
            rows = self._encoder.encode(stack.data, conditions, plan.pairs)
            return [Reading(own) for own in plan.scatter(rows)]
        rows, states = self._encoder.encode_with_states(stack.data, conditions, plan.pairs)
        return [
            Reading(own, states[stack.place_of[item.digest]] if item.keeps_state else None)
            for item, own in zip(items, plan.scatter(rows), strict=True)
        ]

    def _read(self, items: Sequence[StateItem], stack: Stack) -> list[Reading]:
        plan, conditions = _plan(items, stack)
        rows = self._encoder.read(stack.data, conditions, plan.pairs)
        return [Reading(own) for own in plan.scatter(rows)]

    def _embed_texts(self, texts: Sequence[Text]) -> list[Reading]:
        unique = {text.digest: text.input_ids for text in texts}
        row_of = {digest: row for row, digest in enumerate(unique)}
        rows = self._encoder.embed_texts(list(unique.values()))
        return [Reading(rows[row_of[text.digest]][None]) for text in texts]

    def _sample_batch(self) -> list[Item]:
        condition = self.prepare_condition("what color is it?")
        return [
            self._sample_image(0, None),
            *self._sample_texts(),
            self._sample_image(1, condition),
            self._sample_image(0, condition),
        ]

    def _sample_texts(self) -> list[Item]:
        return [self.prepare_text("a red square")] if self.image_only is None else []

    def _sample_image(self, seed: int, condition: Text | None = None) -> ImageItem:
        pixels = np.random.default_rng(seed).integers(0, 256, (*self.image_size, 3), dtype=np.uint8)
        return ImageItem(f"sample-{seed}", pixels, (condition,), keeps_state=True)

    def _from_states(self, items: Sequence[Item], readings: Sequence[Reading]) -> dict[int, StateItem]:
        """Make items that read the images of a batch again from the states it returned, by their place in the batch."""
        return {
            place: StateItem(item.digest, reading.state, item.conditions)
            for place, (item, reading) in enumerate(zip(items, readings, strict=True))
            if isinstance(item, ImageItem) and reading.state is not None
        }


def _difference(some: Sequence[Reading], others: Sequence[Reading]) -> float:
    """Return the largest difference between numbers of the same rows."""
    return max((float(np.abs(a.rows - b.rows).max()) for a, b in zip(some, others, strict=True)), default=0.0)


def _plan(items: Sequence[ImageItem | StateItem], stack: Stack) -> tuple[ReadoutPlan, dict[str, InputIds]]:
    """Plan the items' readouts together, and collect their distinct conditions."""
    conditions = {c.digest: c.input_ids for item in items for c in item.conditions if c is not None}
    wanted = [
        (stack.place_of[item.digest], [None if c is None else c.digest for c in item.conditions]) for item in items
    ]
    return ReadoutPlan.of(wanted, {digest: place for place, digest in enumerate(conditions)}), conditions
