"""An engine of two towers: images and texts of different requests in one batch, each distinct one encoded once.

Shapes: B images, N texts, W text tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from services.nn.broken_model import BrokenModel
from services.nn.clip_model import ClipModel
from services.nn.clip_texts import InputIds, Text
from services.nn.device_copies import stack
from services.nn.plain_clip import embedding_width, num_image_tokens

Pixels = np.ndarray[Any, np.dtype[np.uint8]]

# Two orders of summation of one dot product differ; a wrong mask or a stale buffer differs by far more.
SELF_CHECK_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}

FeaturesT = TypeVar("FeaturesT")
FeaturesT_co = TypeVar("FeaturesT_co", covariant=True)
ImageT = TypeVar("ImageT", bound="TransformedImage")


class TransformedImage(Protocol):
    """An image as bytes (height, width, 3). Items with equal `digest` are the same image."""

    @property
    def digest(self) -> str: ...
    @property
    def pixels(self) -> Pixels: ...


class TowerEncoder(Protocol[FeaturesT_co]):
    """Both towers on their device; `reads_padding` tells that a text costs as much as a whole context."""

    @property
    def reads_padding(self) -> bool: ...

    def encode_images(self, pixels: Tensor) -> Sequence[FeaturesT_co]:
        """Encode images (B, height, width, 3) uint8."""

    def encode_texts(self, texts: Sequence[InputIds]) -> Sequence[FeaturesT_co]:
        """Encode token ids (W,) each."""


@dataclass(frozen=True)
class CollatedBatch(Generic[ImageT]):
    """A batch with its distinct images stacked (B, height, width, 3), in the order of `digests`."""

    items: Sequence[ImageT | Text]
    digests: Sequence[str]
    pixels: Tensor


class TwoTowerEngine(Generic[ImageT, FeaturesT]):
    """Runs one checkpoint; methods that take tensors run on one thread at a time, others on any."""

    def __init__(
        self, clip: ClipModel, encoder: TowerEncoder[FeaturesT], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.embedding_width = embedding_width(clip)
        self._num_image_tokens = num_image_tokens(clip)
        self._tokenizer = clip.tokenizer
        self._transform = clip.transform
        self._encoder = encoder
        self._device = device
        self._dtype = dtype
        self._directory: Path | None = None

    @property
    def context_length(self) -> int:
        """Maximum number of tokens of a text, including its start and end."""
        return self._tokenizer.context_length

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) to which every image is resized."""
        return self._transform.size

    @property
    def dtype_name(self) -> str:
        """The dtype of the forward pass, e.g. `bfloat16`; features are compared in float32."""
        return str(self._dtype).removeprefix("torch.")

    @property
    def computes_in(self) -> str:
        return self.dtype_name

    def cost(self, item: ImageT | Text) -> int:
        """Count the tokens that a tower processes: a text's, or an image's patches and its class token."""
        if not isinstance(item, Text):
            return self._num_image_tokens
        return self.context_length if self._encoder.reads_padding else item.num_tokens

    def collate(self, items: Sequence[ImageT | Text]) -> CollatedBatch[ImageT]:
        """Stack the images of a batch, in page-locked memory if the device is CUDA; on any thread."""
        distinct = {item.digest: item.pixels for item in items if not isinstance(item, Text)}
        pixels = stack(list(distinct.values()), self._device) if distinct else torch.empty(0, dtype=torch.uint8)
        return CollatedBatch(items, list(distinct), pixels)

    def encode(self, batch: CollatedBatch[ImageT]) -> list[FeaturesT]:
        """Encode each item. Raises BrokenModel if a feature is not finite."""
        texts = {item.digest: item.input_ids for item in batch.items if isinstance(item, Text)}
        images: dict[str, FeaturesT] = {}
        captions: dict[str, FeaturesT] = {}
        with torch.inference_mode():
            if batch.digests:
                images = dict(zip(batch.digests, self._encoder.encode_images(batch.pixels), strict=True))
            if texts:
                captions = dict(zip(texts, self._encoder.encode_texts(list(texts.values())), strict=True))
        return [(captions if isinstance(item, Text) else images)[item.digest] for item in batch.items]

    def sample_pixels(self, seed: int) -> Pixels:
        """Draw the pixels of a noise image."""
        return np.random.default_rng(seed).integers(0, 256, (*self.image_size, 3), dtype=np.uint8)


def check_features(pooled: np.ndarray[Any, np.dtype[np.float32]], difference: float, dtype: torch.dtype) -> None:
    """Raises BrokenModel unless features (N, E) are unit vectors, and differ little from those of other batches."""
    if not difference <= SELF_CHECK_TOLERANCE[dtype]:
        raise BrokenModel(f"a feature changes by {difference:.3g} with the other items of its batch")
    norms = np.linalg.norm(pooled, axis=1)
    if not np.abs(norms - 1).max() <= SELF_CHECK_TOLERANCE[torch.float32]:
        raise BrokenModel(f"pooled features have norms from {norms.min():.3g} to {norms.max():.3g}, not 1")
