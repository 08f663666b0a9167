"""The common part of this service's engines: how they prepare inputs, and check a checkpoint on a device.

A batch mixes the items of different requests: images under conditions, and texts, to unit vectors.

Shapes: R rows, E embedding width.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
import torch
from PIL import Image
from pydantic import JsonValue
from torch import Tensor

from services.core.errors import InvalidRequest
from services.embed.model.items import Embeddings, ImageItem, Item, Pixels, Reading, StateItem
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text, TextTokenizer, tokenise
from services.nn.devices import DeviceOptions
from services.nn.image_fit import ImageFit
from services.nn.image_transform import ImageTransform
from services.nn.reference_outputs import OutputRow, check_checkpoint

# Rounding makes two orders of summation of a dot product differ; a wrong mask or a stale buffer differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


# A Checkpoint, or what else has its `tokenizer` and `transform`.
CheckpointT = TypeVar("CheckpointT", bound=Any)
ModelT = TypeVar("ModelT")
TokenizerT = TypeVar("TokenizerT", bound=TextTokenizer)
TransformT = TypeVar("TransformT", ImageTransform, ImageFit)


@dataclass(frozen=True)
class Checkpoint(Generic[ModelT, TokenizerT, TransformT]):
    """A model ready to embed, and what prepares its inputs."""

    model: ModelT
    tokenizer: TokenizerT
    transform: TransformT


class ImageEngine(ABC, Generic[CheckpointT]):
    """Runs one checkpoint; methods that take tensors run on one thread at a time, `prepare_*` on any.

    `image_only` names a model, with its article, in whose space texts by themselves have no embeddings; None if they
    have. `visual` is the image tower, if it is open_clip's. Of an embedding, the first `reference_numbers` are kept as
    a reference output, all if None. A checkpoint is checked under `sample_condition`, without a condition if None.
    """

    image_only: str | None = None
    visual: Any = None
    sample_condition: ClassVar[str | None] = "what color is it?"
    reference_numbers: ClassVar[int | None] = None

    def __init__(self, checkpoint: CheckpointT, device: torch.device, dtype: torch.dtype) -> None:
        self._tokenizer: TextTokenizer = checkpoint.tokenizer
        self._transform: ImageTransform | ImageFit = checkpoint.transform
        self._device = device
        self._dtype = dtype
        self._directory: Path | None = None

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> Self:
        """Read a checkpoint directory onto the device.

        Raises what `read` raises, and ValueError for a device that this machine lacks.
        """
        device = options.choose_device()
        dtype = options.choose_dtype(device)
        checkpoint = cls.read(directory, device, dtype)
        torch.set_num_threads(options.choose_num_threads(cls.tower_width(checkpoint)))
        engine = cls(checkpoint, device, dtype)
        engine._directory = directory
        return engine

    @classmethod
    @abstractmethod
    def read(cls, directory: Path, device: torch.device, dtype: torch.dtype) -> CheckpointT:
        """Read a directory. Raises OSError, ValueError, TypeError or RuntimeError if it is not a checkpoint."""

    @classmethod
    @abstractmethod
    def tower_width(cls, checkpoint: CheckpointT) -> int:
        """Numbers per token in the largest part of the model, which choose its threads."""

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a text, including start and end."""
        return self._tokenizer.context_length

    @property
    @abstractmethod
    def embedding_width(self) -> int:
        """Number of dimensions of an embedding."""

    @property
    def visibility(self) -> str:
        """`readout` if an image is encoded once for all conditions, `full` if for each anew."""
        return "readout"

    @property
    def state_bytes(self) -> int | None:
        """Bytes of an image's state; None if no state is cheaper to read than the image."""
        return None

    @property
    def state_dtype(self) -> torch.dtype:
        """The dtype of the numbers in a state."""
        return torch.float32

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) to which every image is transformed."""
        return self._transform.size

    @property
    def image_side(self) -> int | None:
        """Pixels to which `transform` resizes the shorter side of an image; None if they depend on the image."""
        return max(self._transform.size) if isinstance(self._transform, ImageTransform) else None

    @property
    def dtype_name(self) -> str:
        """The dtype of the forward pass, e.g. `bfloat16`; embeddings are always float32."""
        return str(self._dtype).removeprefix("torch.")

    @property
    def computes_in(self) -> str:
        return self.dtype_name

    def prepare_text(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a text. Raises what `tokenise` raises, and InvalidRequest if texts have no embeddings."""
        if self.image_only is not None:
            raise InvalidRequest(
                f"This model is {self.image_only}, which embeds images, alone or under a condition, its instruction; "
                "a text by itself has no embedding."
            )
        return tokenise(self._tokenizer, text, truncate=truncate)

    def prepare_condition(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a condition. Raises what `tokenise` raises."""
        return tokenise(self._tokenizer, text, truncate=truncate)

    def prepare_beside(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a text beside an image, in the place of its condition. Raises what `prepare_condition` raises."""
        return self.prepare_condition(text, truncate=truncate)

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

    @abstractmethod
    def cost(self, item: Item) -> int:
        """Count the tokens that the model processes for an item, or their equivalents."""

    def run_batch(self, items: Sequence[Item]) -> list[Reading]:
        """Run a batch and return a reading of each item. Raises BrokenModel if one of its numbers is not finite."""
        return self.run_collated(self.collate(items))

    @abstractmethod
    def collate(self, items: Sequence[Item]) -> Any:
        """Prepare a batch for `run_collated`, in host memory; runs on any thread."""

    @abstractmethod
    def run_collated(self, batch: Any) -> list[Reading]:
        """Run a collated batch with the same result as `run_batch`."""

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
        check_checkpoint(self, self._directory)
        batch = self._sample_batch()
        together = self.run_batch(batch)
        # without a state, which takes other ways through some engines
        alone = [self.run_batch([_without_state(item)])[0] for item in batch]
        if (difference := _difference(together, alone)) > SELF_CHECK_TOLERANCE[self._dtype]:
            raise BrokenModel(f"an embedding changes by {difference:.3g} with the other items of its batch")
        norms = np.concatenate([np.linalg.norm(reading.rows, axis=1) for reading in together])
        if np.abs(norms - 1).max() > SELF_CHECK_TOLERANCE[torch.float32]:
            raise BrokenModel(f"embeddings have norms from {norms.min():.3g} to {norms.max():.3g}, not 1")
        kept = self._from_states(batch, together)
        again = self.run_batch(list(kept.values()))
        difference = _difference(again, [together[place] for place in kept])
        if difference > SELF_CHECK_TOLERANCE[self.state_dtype]:
            raise BrokenModel(f"an embedding changes by {difference:.3g} when it is computed from its image's state")

    def reference_inputs(self) -> list[JsonValue]:
        """Return texts, and seeds of noise images with or without a condition."""
        second: dict[str, JsonValue] = {} if self.sample_condition is None else {"condition": self.sample_condition}
        images: list[JsonValue] = [{"image": 0}, {"image": 1, **second}]
        return [*images, {"text": "a red square"}, {"text": "two blue circles"}] if self.image_only is None else images

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Compute the embedding of each input."""
        rows = [self.run_batch([self._reference_item(one)])[0].rows[0] for one in inputs]
        return [row[: self.reference_numbers].tolist() for row in rows]

    def _reference_item(self, one: Any) -> Item:
        if "text" in one:
            return self.prepare_text(one["text"], truncate=True)
        condition = one.get("condition")
        prepared = None if condition is None else self.prepare_condition(condition, truncate=True)
        return _without_state(self._sample_image(one["image"], prepared))

    def _sample_batch(self) -> list[Item]:
        condition = None if self.sample_condition is None else self.prepare_condition(self.sample_condition)
        return [
            self._sample_image(0),
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


def _without_state(item: Item) -> Item:
    return replace(item, keeps_state=False) if isinstance(item, ImageItem) else item


def _difference(some: Sequence[Reading], others: Sequence[Reading]) -> float:
    """Return the largest difference between numbers of the same rows."""
    return max((float(np.abs(a.rows - b.rows).max()) for a, b in zip(some, others, strict=True)), default=0.0)


def to_rows(features: Tensor) -> Embeddings:
    """Convert (R, E) of any dtype to float32 unit vectors on the host; a half-precision norm is not exactly 1."""
    return finite(torch.nn.functional.normalize(features.float(), dim=-1))


def finite(rows: Tensor) -> Embeddings:
    """Move embeddings to the host. Raises BrokenModel if one of their numbers is not finite."""
    found: Embeddings = rows.cpu().numpy()
    if not np.isfinite(found).all():
        raise BrokenModel("an embedding contains a number that is not finite")
    return found
