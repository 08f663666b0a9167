"""The models that the protocols compare, with a common interface that embeds images under instructions, and texts.

Shapes: N images or texts, C instructions, B images of a batch, E embedding width. Embeddings are L2-normalised.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import FocalLensEngine
from services.embed.model.image_engine import ImageEngine
from services.embed.model.plain_engine import PlainEngine
from services.jobs.checkpoints import find_checkpoint
from services.nn.clip_model import OPEN_CLIP_CONFIG, ClipModel, open_clip, uses_quick_gelu
from services.nn.clip_tokenizer import Tokenizer
from services.nn.devices import DeviceOptions
from services.nn.image_transform import ImageTransform
from services.nn.plain_clip import PlainClip

Array32 = NDArray[np.float32]
T = TypeVar("T")

# Readouts of one forward pass: images times instructions.
MAX_READOUTS = 256
# Images of a batch of an engine, which slices what is too much for one pass; those of a CLIP pass together.
BATCH_SIZE, CLIP_BATCH_SIZE = 16, 128


class NoTextSide(ValueError):
    """A protocol needs texts, but the model embeds only images; the message names the model."""


class ImageEmbedder(Protocol):
    """A model under evaluation.

    `name` is the label of its table row; `image_size` is the side in pixels of its square input.
    """

    name: str
    image_size: int

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        """Embed RGB images under each of the instructions (None: under none) → (C, N, E).

        The images are read once, a batch at a time, so they may come from a generator, and a model can encode an image
        once for all instructions. Raises ValueError without images.
        """
        ...

    def embed_texts(self, texts: Sequence[str]) -> Array32:
        """Embed texts → (N, E), in the space of the images. Raises NoTextSide if the model embeds only images."""
        ...


class EngineEmbedder:
    """A checkpoint run by its engine. Instructions longer than its context are cut; a plain CLIP ignores them."""

    def __init__(self, engine: ImageEngine[Any], *, name: str, batch_size: int | None = None) -> None:
        self.name = name
        self.image_size = max(engine.image_size)
        self.visual = engine.visual
        self._engine = engine
        self._ignores = isinstance(engine, PlainEngine)
        is_clip = isinstance(engine, PlainEngine | FocalLensEngine)
        self._batch_size = batch_size or (CLIP_BATCH_SIZE if is_clip else BATCH_SIZE)

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        engine, told = self._engine, [None] if self._ignores else instructions
        asked = [None if one is None else engine.prepare_condition(one, truncate=True) for one in told]
        parts = []
        for number, batch in enumerate(batches(images, max(1, min(self._batch_size, MAX_READOUTS // len(asked))))):
            items = [
                item
                for place, image in enumerate(batch)
                for item in engine.prepare_image(image, f"{number}-{place}", asked)
            ]
            rows = np.concatenate([reading.rows for reading in engine.run_batch(items)])
            parts.append(rows.reshape(len(batch), len(asked), -1).swapaxes(0, 1))
        if not parts:
            raise ValueError("there are no inputs to embed")
        features = np.concatenate(parts, axis=1)
        return np.broadcast_to(features, (len(instructions), *features.shape[1:]))

    def embed_texts(self, texts: Sequence[str]) -> Array32:
        engine = self._engine
        if engine.image_only is not None:
            raise NoTextSide(f"{self.name} is {engine.image_only}, which embeds images, not texts by themselves")
        parts = [
            engine.run_batch([engine.prepare_text(text, truncate=True) for text in batch])
            for batch in batches(texts, self._batch_size)
        ]
        return np.concatenate([reading.rows for part in parts for reading in part])


class Unconditioned:
    """An embedder that ignores instructions."""

    def __init__(self, embedder: ImageEmbedder) -> None:
        self.name = f"{embedder.name}, no condition"
        self.image_size = embedder.image_size
        self._embedder = embedder

    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        features = self._embedder.embed_images(images, [None])
        return np.broadcast_to(features, (len(instructions), *features.shape[1:]))

    def embed_texts(self, texts: Sequence[str]) -> Array32:
        return self._embedder.embed_texts(texts)


def batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split into runs of `size` items; the last may be shorter."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def load_embedder(
    reference: str, *, pretrained: str | None = None, device: str = "cpu", store_url: str | None = None
) -> ImageEmbedder:
    """Load the embedder named on a command line: a folder of FocalLens's, open_clip's, MagicLens's, LLaVA's,
    InstructBLIP's or of another vision-language model, a name in the store, or, with `pretrained` (a tag, or a file
    that open_clip reads), a name that open_clip knows.

    Raises ValueError for an unknown open_clip name, StoreError if the store has no such name.
    """
    engine: ImageEngine[Any]
    if pretrained is not None:
        clip = _known_clip(reference, pretrained)
        clip.model.eval().requires_grad_(False).to(device)
        engine = PlainEngine(PlainClip(clip, 1.0, None), torch.device(device), torch.float32)
    else:
        directory = find_checkpoint(reference, store_url).directory
        chosen: Any = device.partition(":")[0]
        kind = engine_of(directory)
        if kind is PlainEngine and not (directory / OPEN_CLIP_CONFIG).is_file():
            raise ValueError(f"{reference!r} is neither a directory with {OPEN_CLIP_CONFIG} nor of another known model")
        engine = kind.load(directory, DeviceOptions(chosen, "float32"))
    return EngineEmbedder(engine, name=reference)


def _known_clip(name: str, pretrained: str) -> ClipModel:
    """Load a model of any architecture that open_clip builds, with its own tokenizer and preprocessing."""
    model_config = open_clip().get_model_config(name)
    if model_config is None:
        raise ValueError(f"open_clip has no model {name!r}")
    quick_gelu = uses_quick_gelu(name, pretrained)
    model = open_clip().create_model(name, pretrained=pretrained, force_quick_gelu=quick_gelu)
    tokenizer = open_clip().get_tokenizer(name)
    config = model.visual.preprocess_cfg
    size = config["size"]
    return ClipModel(
        model=model,
        tokenizer=Tokenizer(tokenizer, tokenizer.context_length),
        transform=ImageTransform(
            size=(size, size) if isinstance(size, int) else tuple(size),
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            interpolation=config["interpolation"],
            resize_mode=config["resize_mode"],
        ),
        config={"model_cfg": {**model_config, "quick_gelu": quick_gelu}},
    )
