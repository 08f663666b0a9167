"""A plain CLIP on a device, of any towers: images and texts to unit vectors, without conditions.

A batch mixes the items of different requests; each distinct image and each distinct text is encoded once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import JsonValue
from torch import Tensor

from services.core.errors import InvalidRequest
from services.embed.model.items import Embeddings, ImageItem, Item, Pixels, Reading, StateItem
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text, tokenise
from services.nn.devices import DeviceOptions
from services.nn.plain_clip import (
    PlainClip,
    PlainEncoder,
    embedding_width,
    load_plain_clip,
    num_image_tokens,
    tower_name,
    tower_width,
)
from services.nn.reference_outputs import OutputRow, check_checkpoint
from services.nn.vision_transformer import is_plain_vit

# Rounding makes two orders of summation of a dot product differ; a wrong mask or a stale buffer differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}


@dataclass(frozen=True)
class CollatedBatch:
    """A batch with its distinct images stacked (B, height, width, 3), in the order of `digests`."""

    items: Sequence[Item]
    digests: Sequence[str]
    pixels: Tensor


class PlainEngine:
    """Runs one checkpoint; methods that take tensors run on one thread at a time, `prepare_*` on any."""

    state_bytes: int | None = None

    def __init__(self, checkpoint: PlainClip, device: torch.device, dtype: torch.dtype) -> None:
        clip = checkpoint.clip
        self._tokenizer = clip.tokenizer
        self._transform = clip.transform
        self._device = device
        self._dtype = dtype
        self._directory: Path | None = None
        self._image_cost = num_image_tokens(clip)
        self._embedding_width = embedding_width(clip)
        # what the tower of a model that reads conditions is tuned from, None if this one is
        self._other_tower = None if is_plain_vit(clip.model.visual) else tower_name(clip.model.visual)
        self._encoder = PlainEncoder(clip, device, dtype)

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> "PlainEngine":
        """Read an `open-clip` folder onto the device.

        Raises what `load_plain_clip` raises, and ValueError for a device that this machine lacks.
        """
        device = options.choose_device()
        dtype = options.choose_dtype(device)
        checkpoint = load_plain_clip(directory, device=device, dtype=dtype)
        torch.set_num_threads(options.choose_num_threads(tower_width(checkpoint.clip.model.visual)))
        engine = cls(checkpoint, device, dtype)
        engine._directory = directory
        return engine

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a text, including start and end."""
        return self._tokenizer.context_length

    @property
    def embedding_width(self) -> int:
        """Number of dimensions of an embedding."""
        return self._embedding_width

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) to which every image is transformed."""
        return self._transform.size

    @property
    def dtype_name(self) -> str:
        """The dtype of the forward pass, e.g. `bfloat16`; embeddings are always float32."""
        return str(self._dtype).removeprefix("torch.")

    @property
    def computes_in(self) -> str:
        return self.dtype_name

    def prepare_text(self, text: str, *, truncate: bool = False) -> Text:
        """Tokenise a text. Raises what `tokenise` raises."""
        return tokenise(self._tokenizer, text, truncate=truncate)

    def prepare_condition(self, text: str) -> Text:
        """Raises InvalidRequest, which names the way to a model that reads conditions."""
        base = "--base and its name" if self._other_tower is None else "--base and the name of a CLIP with a plain ViT"
        tower = "" if self._other_tower is None else f" (its image tower is a {self._other_tower})"
        raise InvalidRequest(
            f"This model is a plain CLIP{tower}, which embeds images without a condition. `fovea train focallens` with "
            f"{base} trains a model that reads conditions."
        )

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
        """Make the item of a transformed image; there are no conditions, and no states to keep."""
        return [ImageItem(digest, pixels, tuple(conditions))]

    def cost(self, item: Item) -> int:
        """Count the tokens that a tower processes."""
        if not isinstance(item, Text):
            return self._image_cost
        return self.context_length if self._encoder.reads_padding else item.num_tokens

    def run_batch(self, items: Sequence[Item]) -> list[Reading]:
        """Run a batch and return a reading of each item. Raises BrokenModel if one of its numbers is not finite."""
        return self.run_collated(self.collate(items))

    def collate(self, items: Sequence[Item]) -> CollatedBatch:
        """Stack the images of a batch, in page-locked memory if the device is CUDA; runs on any thread."""
        distinct = {item.digest: item.pixels for item in items if isinstance(item, ImageItem)}
        pixels = torch.from_numpy(np.stack(list(distinct.values()))) if distinct else torch.empty(0, dtype=torch.uint8)
        if distinct and self._device.type == "cuda":
            pixels = pixels.pin_memory()
        return CollatedBatch(items, list(distinct), pixels)

    def run_collated(self, batch: CollatedBatch) -> list[Reading]:
        """Run a collated batch with the same result as `run_batch`."""
        texts = {item.digest: item.input_ids for item in batch.items if isinstance(item, Text)}
        images: dict[str, Embeddings] = {}
        embedded: dict[str, Embeddings] = {}
        with torch.inference_mode():
            if batch.digests:
                images = dict(zip(batch.digests, _rows(self._encoder.encode_images(batch.pixels)), strict=True))
            if texts:
                embedded = dict(zip(texts, _rows(self._encoder.encode_texts(list(texts.values()))), strict=True))
        return [
            Reading(embedded[item.digest][None]) if isinstance(item, Text) else _reading(item, images[item.digest])
            for item in batch.items
        ]

    def warm_up(self) -> None:
        """Run each kind of item once, alone and mixed, so that no request waits for first-call costs."""
        batch = self._sample_batch()
        for items in (batch[:1], batch[1:2], batch):
            self.run_batch(items)

    def self_check(self) -> None:
        """Raises BrokenModel unless embeddings are unit vectors that do not depend on the rest of the batch."""
        batch = self._sample_batch()
        together = np.concatenate([reading.rows for reading in self.run_batch(batch)])
        alone = np.concatenate([self.run_batch([item])[0].rows for item in batch])
        if not (difference := float(np.abs(together - alone).max())) <= SELF_CHECK_TOLERANCE[self._dtype]:
            raise BrokenModel(f"an embedding changes by {difference:.3g} with the other items of its batch")
        norms = np.linalg.norm(together, axis=1)
        if not np.abs(norms - 1).max() <= SELF_CHECK_TOLERANCE[torch.float32]:
            raise BrokenModel(f"embeddings have norms from {norms.min():.3g} to {norms.max():.3g}, not 1")
        check_checkpoint(self, self._directory)

    def reference_inputs(self) -> list[JsonValue]:
        """Return texts, and seeds of noise images; the score service reads the same."""
        return [{"image": 0}, {"image": 1}, {"text": "a red square"}, {"text": "two blue circles"}]

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Compute the embedding of each input."""
        items = [
            self.prepare_text(one["text"], truncate=True) if "text" in one else self._sample_image(one["image"])
            for one in inputs
        ]
        return [self.run_batch([item])[0].rows[0].tolist() for item in items]

    def _sample_batch(self) -> list[Item]:
        texts = ("a red square", "a blue circle left of a red square")
        return [
            self._sample_image(0),
            *(self.prepare_text(text, truncate=True) for text in texts),
            self._sample_image(1),
        ]

    def _sample_image(self, seed: int) -> ImageItem:
        pixels = np.random.default_rng(seed).integers(0, 256, (*self.image_size, 3), dtype=np.uint8)
        return ImageItem(f"sample-{seed}", pixels, (None,))


def _rows(features: Tensor) -> Embeddings:
    rows: Embeddings = features.cpu().numpy()
    if not np.isfinite(rows).all():
        raise BrokenModel("an embedding contains a number that is not finite")
    return rows


def _reading(item: ImageItem | StateItem, row: Embeddings) -> Reading:
    return Reading(np.stack([row] * len(item.conditions)))
