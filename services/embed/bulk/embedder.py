"""Checkpoints that embed batches of images under fixed conditions, run by the engines that serve them.

Shapes: B images of a batch, C conditions (1 if there are none), E embedding width.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from services.core.errors import FoveaError
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.embed.bulk.folder import Array, EmbeddingError, Precision
from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import MAX_READOUTS_AT_ONCE, FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.plain_engine import PlainEngine
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class ModelChoice:
    """A checkpoint folder, the conditions to embed under, and the dtype of the forward pass."""

    directory: Path
    conditions: Sequence[str]
    precision: Precision


class BulkEmbedder:
    """A checkpoint on a device, exclusively owned, and its conditions. Safe to call from several threads."""

    def __init__(self, engine: ImageEngine[Any], conditions: Sequence[str], device: torch.device) -> None:
        """Raises EmbeddingError for a condition that the checkpoint can't follow."""
        self.device = device
        self._engine = engine
        self._conditions = [_prepared(engine, text) for text in conditions] or [None]
        # CLIP's passes share nothing; those of transformers' models may
        self._passing = nullcontext() if isinstance(engine, FocalLensEngine | PlainEngine) else Lock()

    @property
    def width(self) -> int:
        """E."""
        return self._engine.embedding_width

    @property
    def num_conditions(self) -> int:
        """C."""
        return len(self._conditions)

    def prepare(self, data: bytes) -> Pixels:
        """Decode a file → (height, width, 3) uint8. Raises FoveaError if it is not an image within the limits."""
        return self._engine.transform(decode_image(data, ImageLimits()))

    def embed(self, pixels: Sequence[Pixels]) -> Array:
        """Embed B images → (B, C, E) float32, L2-normalised. Raises EmbeddingError if a number is not finite."""
        # each readout takes memory of its own, so images under many conditions are processed in smaller batches
        step = max(1, MAX_READOUTS_AT_ONCE // self.num_conditions)
        try:
            parts = [self._embed(pixels[start : start + step]) for start in range(0, len(pixels), step)]
        except torch.OutOfMemoryError:
            raise EmbeddingError(f"{len(pixels)} images do not fit into memory: try a smaller --batch-size") from None
        except BrokenModel as error:
            raise EmbeddingError(f"{error}: try --precision float32") from None
        except FoveaError as error:
            raise EmbeddingError(error.message) from None
        rows = np.concatenate([np.zeros((0, self.width), np.float32), *parts])
        return rows.reshape(len(pixels), self.num_conditions, self.width)

    def _embed(self, pixels: Sequence[Pixels]) -> Array:
        engine = self._engine
        prepared = [engine.prepare_pixels(one, str(place), self._conditions) for place, one in enumerate(pixels)]
        batch = engine.collate([item for items in prepared for item in items])
        with self._passing:
            return np.concatenate([reading.rows for reading in engine.run_collated(batch)])


def devices() -> list[str]:
    """Return the default devices: every GPU, or else the CPU."""
    if torch.cuda.is_available():
        return [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["mps" if torch.backends.mps.is_available() else "cpu"]


def load_bulk_embedder(choice: ModelChoice, device: str) -> BulkEmbedder:
    """Load a checkpoint. Raises EmbeddingError for a folder that is not a checkpoint, a device that this machine lacks,
    and conditions that the checkpoint can't follow."""
    try:
        dtype: torch.dtype = getattr(torch, choice.precision)
        place = torch.device(device)
        kind = engine_of(choice.directory)
        engine = kind(kind.read(choice.directory, place, dtype), place, dtype)
        return BulkEmbedder(engine, choice.conditions, place)
    except FoveaError as error:
        raise EmbeddingError(f"{choice.directory}: {error.message}") from error
    except (OSError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        raise EmbeddingError(f"{choice.directory}: {error}") from error


def _prepared(engine: ImageEngine[Any], condition: str) -> Text | None:
    try:
        return engine.prepare_condition(condition)
    except FoveaError as error:
        raise EmbeddingError(f"the condition {condition[:50]!r}: {error.message}") from None
