"""A served model under evaluation: the engine of its kind, asked for images under instructions, and for texts."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from services.embed.evaluation.embedders import Array32, NoTextSide, batches
from services.embed.model.image_engine import ImageEngine
from services.nn.devices import DeviceOptions

# Images of a batch; an engine slices what is too much for one pass.
BATCH_SIZE = 16


class EngineEmbedder:
    """A checkpoint run by its engine; instructions longer than its context are cut."""

    def __init__(self, engine: ImageEngine[Any], *, name: str, batch_size: int = BATCH_SIZE) -> None:
        self.name = name
        self.image_size = max(engine.image_size)
        self._engine = engine
        self._batch_size = batch_size

    @classmethod
    def load(cls, kind: type[ImageEngine[Any]], directory: Path, *, name: str, device: str) -> "EngineEmbedder":
        """Load a folder in single precision. Raises what the engine's `read` raises."""
        chosen: Any = device.partition(":")[0]
        return cls(kind.load(directory, DeviceOptions(chosen, "float32")), name=name)

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        engine = self._engine
        asked = [None if one is None else engine.prepare_condition(one, truncate=True) for one in instructions]
        parts = []
        for number, batch in enumerate(batches(images, self._batch_size)):
            items = [
                item
                for place, image in enumerate(batch)
                for item in engine.prepare_image(image, f"{number}-{place}", asked)
            ]
            rows = np.concatenate([reading.rows for reading in engine.run_batch(items)])
            parts.append(rows.reshape(len(batch), len(asked), -1).swapaxes(0, 1))
        if not parts:
            raise ValueError("there are no inputs to embed")
        return np.concatenate(parts, axis=1)

    def embed_texts(self, texts: Sequence[str]) -> Array32:
        engine = self._engine
        if engine.image_only is not None:
            raise NoTextSide(f"{self.name} is {engine.image_only}, which embeds images, not texts by themselves")
        parts = [
            engine.run_batch([engine.prepare_text(text, truncate=True) for text in batch])
            for batch in batches(texts, self._batch_size)
        ]
        return np.concatenate([reading.rows for part in parts for reading in part])
