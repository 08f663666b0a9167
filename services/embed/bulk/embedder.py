"""Checkpoints that embed batches of images under fixed conditions.

Shapes: B images of a batch, C conditions (1 if there are none), E embedding width.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.core.errors import FoveaError
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.embed.bulk.folder import Array, EmbeddingError
from services.embed.focallens import Readouts
from services.embed.model.checkpoint import FOCALLENS_CONFIG, FocalLensCheckpoint, load_focallens
from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.plain_engine import PlainEngine
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text
from services.nn.packed_linear import can_pack
from services.nn.plain_clip import PlainClip, PlainEncoder, embedding_width, load_plain_clip
from services.nn.vision_transformer import pack_tower

Pixels = NDArray[np.uint8]
Precision = Literal["float32", "bfloat16", "float16"]

# Each readout takes memory of its own, so images under many conditions are processed in smaller batches.
MAX_READOUTS_AT_ONCE = 256


@dataclass(frozen=True)
class ModelChoice:
    """A checkpoint folder, the conditions to embed under, and the dtype of the forward pass."""

    directory: Path
    conditions: Sequence[str]
    precision: Precision


class BulkEmbedder(Protocol):
    """A checkpoint on a device, exclusively owned, and the conditions, C or 1 if there are none.

    Safe to call from several threads.
    """

    device: torch.device

    @property
    def width(self) -> int: ...
    @property
    def num_conditions(self) -> int: ...

    def prepare(self, data: bytes) -> Pixels:
        """Decode a file → (height, width, 3) uint8. Raises FoveaError if it is not an image within the limits."""

    def embed(self, pixels: Sequence[Pixels]) -> Array:
        """Embed B images → (B, C, E) float32, L2-normalised. Raises EmbeddingError if a number is not finite."""


class ClipBulkEmbedder:
    """A FocalLens-CLIP, with its conditions encoded once, or a plain CLIP, which has none."""

    def __init__(
        self,
        checkpoint: FocalLensCheckpoint | PlainClip,
        conditions: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.device = device
        self._dtype = dtype
        self._conditions: Tensor | None = None
        if isinstance(checkpoint, PlainClip):
            self._transform = checkpoint.clip.transform
            self._width = embedding_width(checkpoint.clip)
            self._plain: PlainEncoder | None = PlainEncoder(checkpoint.clip, device, dtype)
            return
        self._plain = None
        self._transform = checkpoint.transform
        self._model = checkpoint.model
        self._width = int(checkpoint.model.clip.visual.proj.shape[1])
        if can_pack(device, dtype):
            pack_tower(checkpoint.model.clip.visual)
        if conditions:
            with torch.inference_mode():
                input_ids = checkpoint.tokenizer(conditions).to(device)
                self._conditions = checkpoint.model.encode_conditions(input_ids)

    @property
    def width(self) -> int:
        """Number of dimensions of an embedding."""
        return self._width

    @property
    def num_conditions(self) -> int:
        """C, 1 if there are none."""
        return 1 if self._conditions is None else len(self._conditions)

    def prepare(self, data: bytes) -> Pixels:
        """Decode a file → (height, width, 3) uint8. Raises FoveaError if it is not an image within the limits."""
        return self._transform(decode_image(data, ImageLimits()))

    def embed(self, pixels: Sequence[Pixels]) -> Array:
        """Embed B images → (B, C, E) float32, L2-normalised. Raises EmbeddingError if a number is not finite."""
        if not pixels:
            return np.zeros((0, self.num_conditions, self.width), dtype=np.float32)
        try:
            with torch.inference_mode():
                batch = torch.from_numpy(np.stack(pixels)).to(self.device)
                features = self._encode(batch).float()
                embeddings: Array = torch.nn.functional.normalize(features, dim=-1).cpu().numpy()
        except torch.OutOfMemoryError:
            raise EmbeddingError(f"{len(pixels)} images do not fit into memory: try a smaller --batch-size") from None
        if not np.isfinite(embeddings).all():
            raise EmbeddingError("the model's outputs are not finite: try --precision float32")
        return embeddings

    def _encode(self, images: Tensor) -> Tensor:
        """Encode (B, height, width, 3) uint8 → (B, C, E): one pass over each image for all conditions, in batches
        limited by the number of readouts."""
        if self._plain is not None:
            return self._plain.encode_images(images)[:, None]
        pixels = self._transform.normalise(images).to(self._dtype)
        if self._conditions is None:
            return self._model.encode_images(pixels)[:, None]
        step = max(1, MAX_READOUTS_AT_ONCE // self.num_conditions)
        return torch.cat([self._read_out(part, self._conditions) for part in torch.split(pixels, step)])

    def _read_out(self, pixels: Tensor, conditions: Tensor) -> Tensor:
        num_images, num_conditions = len(pixels), len(conditions)
        image_index = torch.arange(num_images, device=self.device).repeat_interleave(num_conditions)
        condition_index = torch.arange(num_conditions, device=self.device).repeat(num_images)
        features = self._model.encode_images(pixels, conditions, Readouts(image_index, condition_index))
        return features.view(num_images, num_conditions, -1)


def devices() -> list[str]:
    """Return the default devices: every GPU, or else the CPU."""
    if torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["mps" if torch.backends.mps.is_available() else "cpu"]


class EngineBulkEmbedder:
    """A checkpoint run by the engine that serves it, one batch after the other."""

    def __init__(self, engine: ImageEngine[Any], conditions: Sequence[str], device: torch.device) -> None:
        self.device = device
        self._engine = engine
        self._conditions: Sequence[Text | None] = [engine.prepare_condition(text) for text in conditions] or [None]
        self._one_at_a_time = threading.Lock()

    @property
    def width(self) -> int:
        return self._engine.embedding_width

    @property
    def num_conditions(self) -> int:
        return len(self._conditions)

    def prepare(self, data: bytes) -> Pixels:
        return self._engine.transform(decode_image(data, ImageLimits()))

    def embed(self, pixels: Sequence[Pixels]) -> Array:
        engine = self._engine
        if not pixels:
            return np.zeros((0, self.num_conditions, self.width), dtype=np.float32)
        try:
            items = [
                item
                for place, image in enumerate(pixels)
                for item in engine.prepare_pixels(image, str(place), self._conditions)
            ]
            batch = engine.collate(items)
            with self._one_at_a_time:
                rows = np.concatenate([reading.rows for reading in engine.run_collated(batch)])
        except torch.OutOfMemoryError:
            raise EmbeddingError(f"{len(pixels)} images do not fit into memory: try a smaller --batch-size") from None
        except BrokenModel as error:
            raise EmbeddingError(f"{error}: try --precision float32") from None
        except FoveaError as error:
            raise EmbeddingError(error.message) from None
        return rows.reshape(len(pixels), self.num_conditions, self.width)


def load_bulk_embedder(choice: ModelChoice, device: str) -> BulkEmbedder:
    """Load a checkpoint. Raises EmbeddingError for a folder that is not a checkpoint, a device that this machine lacks,
    and conditions that the checkpoint can't follow."""
    try:
        dtype: torch.dtype = getattr(torch, choice.precision)
        place = torch.device(device)
        if (kind := engine_of(choice.directory)) not in (FocalLensEngine, PlainEngine):
            engine = kind(kind.read(choice.directory, place, dtype), place, dtype)
            return EngineBulkEmbedder(engine, choice.conditions, place)
        return ClipBulkEmbedder(_load_clip(choice, device, dtype), choice.conditions, place, dtype)
    except FoveaError as error:
        raise EmbeddingError(f"{choice.directory}: {error.message}") from error
    except (OSError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise EmbeddingError(f"{choice.directory}: {error}") from error


def _load_clip(choice: ModelChoice, device: str, dtype: torch.dtype) -> FocalLensCheckpoint | PlainClip:
    """Load a FocalLens folder, or an open_clip folder, which supports only unconditional embeddings."""
    if (choice.directory / FOCALLENS_CONFIG).is_file():
        checkpoint = load_focallens(choice.directory, device=device, dtype=dtype)
        _check_conditions(checkpoint, choice.conditions)
        return checkpoint
    if choice.conditions:
        raise ValueError("this checkpoint does not support conditions: it is a plain CLIP")
    return load_plain_clip(choice.directory, device=device, dtype=dtype)


def _check_conditions(checkpoint: FocalLensCheckpoint, conditions: Sequence[str]) -> None:
    tokenizer = checkpoint.tokenizer
    for condition in conditions:
        if (num_tokens := tokenizer.num_tokens(condition)) > tokenizer.context_length:
            raise ValueError(
                f"the condition {condition[:50]!r} has {num_tokens} tokens: this model accepts at most"
                f" {tokenizer.context_length}"
            )
