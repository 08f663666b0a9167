"""Loading of the checkpoint of a bulk job, and the run of those that have an engine.

Shapes: B images of a batch, C conditions (1 if there are none), E embedding width.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from services.core.errors import FoveaError
from services.core.images.decoding import decode_image
from services.core.images.references import ImageLimits
from services.embed.bulk.embedder import BulkEmbedder, ClipBulkEmbedder, EmbeddingError, ModelChoice, Pixels
from services.embed.bulk.folder import Array
from services.embed.model.checkpoint import FOCALLENS_CONFIG, FocalLensCheckpoint, load_focallens
from services.embed.model.conditional_engine import ConditionalEngine
from services.embed.model.engines import engine_of
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text
from services.nn.plain_clip import PlainClip, load_plain_clip


class EngineBulkEmbedder:
    """A checkpoint run by the engine that serves it, one batch after the other."""

    def __init__(self, engine: ConditionalEngine[Any], conditions: Sequence[str], device: torch.device) -> None:
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
        if (kind := engine_of(choice.directory)) is not None:
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
