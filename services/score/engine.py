"""A checkpoint on a device, FSC-CLIP's or any CLIP: from images and captions to features, and the ranking of pairs.

A batch mixes images and captions of different requests; each distinct one is encoded once for all of them. The
similarity of a pair is computed only from its features, by `pairing`.

Shapes: B images, P patches, E embedding width.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pydantic import JsonValue

from services.core.errors import InvalidRequest
from services.nn.broken_model import BrokenModel
from services.nn.clip_texts import Text, tokenise
from services.nn.devices import DeviceOptions
from services.nn.plain_clip import PlainClip, load_plain_clip, tower_width
from services.nn.reference_outputs import OutputRow, check_checkpoint
from services.nn.two_towers import SELF_CHECK_TOLERANCE, CollatedBatch, Pixels, TwoTowerEngine, check_features
from services.score.model.checkpoint import FscClipCheckpoint, load_fsc_clip
from services.score.model.dense_features import end_of_text, missing_for_tokens
from services.score.model.encoder import Encoder, GlobalEncoder
from services.score.model.features import Features, readable_pieces
from services.score.model.pairing import PairEngine, PairItem, Similarities

Cosines = np.ndarray[Any, np.dtype[np.float32]]

# Captions recur from image to image, and tokenising a hundred takes as long as encoding an image. Captions with more
# characters are tokenised each time, so that the cache stays small.
MAX_REMEMBERED_CAPTIONS = 8192
MAX_REMEMBERED_CHARACTERS = 512


@dataclass(frozen=True, eq=False)
class ImageItem:
    """An image, transformed but still as bytes (height, width, 3). Items with equal `digest` are the same image."""

    digest: str
    pixels: Pixels


Item = ImageItem | Text


class ScoreEngine(TwoTowerEngine[ImageItem, Features]):
    """Runs one checkpoint; tensor computation on one thread at a time, `prepare_*` on any thread."""

    def __init__(self, checkpoint: FscClipCheckpoint | PlainClip, device: torch.device, dtype: torch.dtype) -> None:
        clip = checkpoint.clip
        self._missing_for_tokens = missing_for_tokens(clip.model)
        encoder = (GlobalEncoder if self._missing_for_tokens else Encoder)(clip, device, dtype)
        super().__init__(clip, encoder, device, dtype)
        self._is_plain = isinstance(checkpoint, PlainClip)
        self.local_weight = checkpoint.local_weight if isinstance(checkpoint, FscClipCheckpoint) else 0.0
        self.logit_scale = checkpoint.logit_scale
        self.logit_bias = checkpoint.logit_bias if isinstance(checkpoint, PlainClip) else None
        self.pairing = PairEngine(device)
        self._grid: tuple[int, int] | None = None if self._missing_for_tokens else tuple(clip.model.visual.grid_size)
        self._end_of_text = functools.partial(end_of_text, clip.model)
        self._tokenise = functools.partial(tokenise, clip.tokenizer)
        self._remembered = functools.lru_cache(MAX_REMEMBERED_CAPTIONS)(self._tokenise)

    @classmethod
    def load(cls, directory: Path, options: DeviceOptions) -> "ScoreEngine":
        """Read an FSC-CLIP directory onto the device.

        Raises what `load_fsc_clip` raises, and ValueError for a device that this machine lacks.
        """
        device = options.choose_device()
        return cls._serving(
            load_fsc_clip(directory, device=device, dtype=options.choose_dtype(device)), directory, options
        )

    @classmethod
    def load_plain(cls, directory: Path, options: DeviceOptions) -> "ScoreEngine":
        """Read an `open-clip` folder onto the device.

        Raises what `load_plain_clip` raises, and ValueError for a device that this machine lacks.
        """
        device = options.choose_device()
        return cls._serving(
            load_plain_clip(directory, device=device, dtype=options.choose_dtype(device)), directory, options
        )

    @classmethod
    def _serving(
        cls, checkpoint: FscClipCheckpoint | PlainClip, directory: Path, options: DeviceOptions
    ) -> "ScoreEngine":
        torch.set_num_threads(options.choose_num_threads(tower_width(checkpoint.clip.model.visual)))
        device = options.choose_device()
        engine = cls(checkpoint, device, options.choose_dtype(device))
        engine._directory = directory
        return engine

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of a heatmap; None for a model that has none."""
        return self._grid

    @property
    def resize_mode(self) -> str:
        """Way in which other shapes come to this size: see `ImageTransform`."""
        return self._transform.resize_mode

    @property
    def image_side(self) -> int:
        """Pixels to which `prepare_image` resizes the shorter side of an image."""
        return max(self._transform.size)

    @property
    def num_patches(self) -> int:
        """The numbers of a heatmap; 0 for a model that has none."""
        return 0 if self._grid is None else math.prod(self._grid)

    def check_explains(self) -> None:
        """Raises InvalidRequest for a model that has no heatmaps."""
        if self._missing_for_tokens is not None:
            raise InvalidRequest(
                f"explain: This model has no heatmaps: they need {self._missing_for_tokens}.", param="explain"
            )

    def prepare_caption(self, caption: str, *, truncate: bool = False) -> Text:
        """Tokenise a caption. Raises what `tokenise` raises."""
        tokenise = self._remembered if len(caption) <= MAX_REMEMBERED_CHARACTERS else self._tokenise
        return tokenise(caption, truncate=truncate)

    def prepare_image(self, image: Image.Image, digest: str) -> ImageItem:
        """Transform an RGB image for the model."""
        return ImageItem(digest, self._transform(image))

    def pieces(self, text: Text) -> list[str]:
        """The tokens of a caption that are compared with an image, as `readable_pieces` shows them: from the first
        word to the end of text, which comes before the last token if the caption itself spells the end of text."""
        end = int(self._end_of_text(torch.from_numpy(text.input_ids)[None]))
        return readable_pieces(self._tokenizer, text.input_ids[1 : end + 1].tolist())

    def mix(self, similarities: Similarities) -> Cosines:
        """Mix the cosines for ranking: (1 − local_weight) · global + local_weight · local, (N,)."""
        global_cosines, local_cosines = similarities.global_cosines, similarities.local_cosines
        if not self.local_weight:
            return global_cosines
        return (1 - self.local_weight) * global_cosines + self.local_weight * local_cosines

    def run_batch(self, items: Sequence[Item]) -> list[Features]:
        """Encode each item. Raises BrokenModel if a feature is not finite."""
        return self.run_collated(self.collate(items))

    def run_collated(self, batch: CollatedBatch[ImageItem]) -> list[Features]:
        """Run a collated batch, with the results of `run_batch`."""
        return self.encode(batch)

    def warm_up(self) -> None:
        """Run every kind of item once, alone and mixed, so that no request pays for first calls."""
        batch = self._sample_batch()
        for items in (batch[:1], batch[1:2], batch):
            features = self.run_batch(items)
        self.pairing.run_batch([PairItem(features[0], features[1:], explains=self._missing_for_tokens is None)])

    def self_check(self) -> None:
        """Raises BrokenModel unless features are unit vectors that do not depend on the rest of their batch, and
        similarities are those of vectors."""
        check_checkpoint(self, self._directory)
        batch = self._sample_batch()
        together = self.run_batch(batch)
        alone = [self.run_batch([item])[0] for item in batch]
        check_features(np.stack([one.pooled for one in together]), _difference(together, alone), self._dtype)
        (similarities,) = self.pairing.run_batch([PairItem(together[0], together[1:])])
        scores = self.mix(similarities)
        if not np.abs(scores).max() <= 1 + SELF_CHECK_TOLERANCE[torch.float32]:
            raise BrokenModel(f"scores go from {scores.min():.3g} to {scores.max():.3g}, outside the range of cosines")

    def reference_inputs(self) -> list[JsonValue]:
        """A caption, or the seed of an image of noise; a text for a kind that the embed service checks too."""
        text = "text" if self._is_plain else "caption"
        return [{"image": 0}, {"image": 1}, {text: "a red square"}, {text: "two blue circles"}]

    def reference_outputs(self, inputs: Sequence[Any]) -> list[OutputRow]:
        """Return each input's pooled features and, of an FSC-CLIP, the mean of its tokens' features."""
        found = [self.run_batch([self._reference_item(one)])[0] for one in inputs]
        if self._is_plain:
            return [one.pooled.tolist() for one in found]
        return [[*one.pooled.tolist(), *one.tokens.astype(np.float32).mean(axis=0).tolist()] for one in found]

    def _reference_item(self, one: Any) -> Item:
        if (text := one.get("text", one.get("caption"))) is not None:
            return self.prepare_caption(text, truncate=True)
        return self._sample_image(one["image"])

    def _sample_batch(self) -> list[Item]:
        captions = ("a red square", "a blue circle left of a red square", "a red circle left of a blue square")
        return [self._sample_image(0), *(self.prepare_caption(caption, truncate=True) for caption in captions)]

    def _sample_image(self, seed: int) -> ImageItem:
        return ImageItem(f"sample-{seed}", self.sample_pixels(seed))


def _difference(some: Sequence[Features], others: Sequence[Features]) -> float:
    """The largest difference between the same features."""
    return max(
        float(np.abs(one - other).max())
        for a, b in zip(some, others, strict=True)
        for one, other in ((a.pooled, b.pooled), (a.tokens.astype(np.float32), b.tokens.astype(np.float32)))
        if one.size
    )


@dataclass(frozen=True)
class ModelFacts:
    """Properties of a model's engine that clients are told, also while it is not in memory."""

    context_length: int
    image_size: tuple[int, int]
    resize_mode: str
    grid: tuple[int, int] | None
    local_weight: float
    logit_scale: float
    logit_bias: float | None

    @classmethod
    def of(cls, engine: ScoreEngine) -> "ModelFacts":
        return cls(**{fact.name: getattr(engine, fact.name) for fact in fields(cls)})
