"""The models that the protocols compare, with a common interface that embeds images under instructions, and texts.

Shapes: N images or texts, C instructions, B images of a batch, E embedding width. Embeddings are L2-normalised.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from services.embed.model.engines import engine_of
from services.embed.model.focallens_engine import FocalLensCheckpoint, FocalLensEngine, load_focallens
from services.embed.model.image_engine import ImageEngine
from services.embed.model.plain_engine import PlainEngine
from services.embed.visibility import Readouts
from services.jobs.checkpoints import find_checkpoint
from services.nn.clip_model import ClipModel, load_clip, open_clip, uses_quick_gelu
from services.nn.clip_tokenizer import Tokenizer
from services.nn.devices import DeviceOptions
from services.nn.image_transform import ImageTransform

Array32 = NDArray[np.float32]
T = TypeVar("T")

# Readouts of one forward pass: images times instructions.
MAX_READOUTS = 256
# Images of a batch of an engine, which slices what is too much for one pass.
BATCH_SIZE = 16


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


class FocalLensEmbedder:
    """A FocalLens checkpoint on the device on which it was loaded."""

    def __init__(self, checkpoint: FocalLensCheckpoint, *, name: str, max_readouts: int = MAX_READOUTS) -> None:
        self.name = name
        self.image_size = checkpoint.transform.size[0]
        self._checkpoint = checkpoint
        self._max_readouts = max_readouts

    @property
    def visual(self) -> Any:
        """The image tower, open_clip's."""
        return self._checkpoint.model.clip.visual

    @torch.inference_mode()
    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        model = self._checkpoint.model
        texts = [text for text in instructions if text is not None]
        conditions = model.encode_conditions(self._tokens(texts)) if texts else None
        places = iter(range(len(texts)))
        condition_index = torch.tensor([-1 if text is None else next(places) for text in instructions])
        parts = []
        for batch in batches(images, max(1, self._max_readouts // len(instructions))):
            pixels = preprocess(batch, self._checkpoint.transform, next(model.parameters()))
            readouts = Readouts(
                torch.arange(len(batch)).repeat(len(instructions)), condition_index.repeat_interleave(len(batch))
            )
            features = model.encode_images(pixels, conditions, readouts)
            parts.append(features.view(len(instructions), len(batch), -1).float().cpu().numpy())
        return _joined(parts)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Array32:
        model = self._checkpoint.model
        parts = [
            model.encode_texts(self._tokens(batch))[None].float().cpu().numpy()
            for batch in batches(texts, self._max_readouts)
        ]
        features: Array32 = _joined(parts)[0]
        return features

    def _tokens(self, texts: Sequence[str]) -> Tensor:
        return self._checkpoint.tokenizer(texts).to(next(self._checkpoint.model.parameters()).device)


class ClipEmbedder:
    """Any open_clip model; an image has one embedding, whatever the instruction."""

    def __init__(self, clip: ClipModel, *, name: str, device: str = "cpu", batch_size: int = 128) -> None:
        self.name = name
        self.image_size = clip.transform.size[0]
        self._model = clip.model.eval().requires_grad_(False).to(device)
        self._clip = clip
        self._batch_size = batch_size

    @property
    def visual(self) -> Any:
        """The image tower."""
        return self._model.visual

    @torch.inference_mode()
    def embed_images(self, images: Iterable[Image.Image], instructions: Sequence[str | None]) -> Array32:
        parts = []
        for batch in batches(images, self._batch_size):
            pixels = preprocess(batch, self._clip.transform, next(self._model.parameters()))
            parts.append(self._model.encode_image(pixels, normalize=True)[None].float().cpu().numpy())
        features = _joined(parts)
        return np.broadcast_to(features, (len(instructions), *features.shape[1:]))

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Array32:
        device = next(self._model.parameters()).device
        parts = [
            self._model.encode_text(self._clip.tokenizer(batch).to(device), normalize=True)[None].float().cpu().numpy()
            for batch in batches(texts, self._batch_size)
        ]
        features: Array32 = _joined(parts)[0]
        return features


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
        return _joined(parts)

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


def preprocess(images: Sequence[Image.Image], transform: ImageTransform, like: Tensor) -> Tensor:
    """Convert RGB images → (B, 3, height, width), on the device and in the dtype of `like`."""
    pixels = torch.from_numpy(np.stack([transform(image) for image in images]))
    return transform.normalise(pixels.to(like.device)).to(like.dtype)


def _joined(parts: list[Array32]) -> Array32:
    if not parts:
        raise ValueError("there are no inputs to embed")
    return np.concatenate(parts, axis=1)


def load_embedder(
    reference: str, *, pretrained: str | None = None, device: str = "cpu", store_url: str | None = None
) -> ImageEmbedder:
    """Load the embedder named on a command line: a folder of FocalLens's, open_clip's, MagicLens's, LLaVA's,
    InstructBLIP's or of another vision-language model, a name in the store, or, with `pretrained` (a tag, or a file
    that open_clip reads), a name that open_clip knows.

    Raises ValueError for an unknown open_clip name, StoreError if the store has no such name.
    """
    if pretrained is not None:
        return ClipEmbedder(_known_clip(reference, pretrained), name=reference, device=device)
    directory = find_checkpoint(reference, store_url).directory
    engine = engine_of(directory)
    if engine is FocalLensEngine:
        return FocalLensEmbedder(load_focallens(directory, device=device), name=reference)
    if engine is PlainEngine:
        return ClipEmbedder(load_clip(str(directory)), name=reference, device=device)
    return EngineEmbedder.load(engine, directory, name=reference, device=device)


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
