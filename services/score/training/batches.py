"""Batches for tuning: images, their captions, and hard negatives of these, made online in the loader's workers.

A source gives images with captions: a folder with a table of captions, or webdataset shards.

Shapes: B images, K kinds of hard negatives, N hard negatives, W text tokens, S image side in pixels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor

from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.score.data.captioned_images import CaptionedImages
from services.score.negatives.hard_negatives import HardNegatives, Kind


class Movable(Protocol):
    """Tensors that can be moved to a device together."""

    def to(self, device: torch.device) -> Self: ...


@dataclass(frozen=True)
class TuningBatch:
    """`images` are (B, S, S, 3) uint8.

    `input_ids` (B + N, W) int64 are the captions, then the hard negatives that exist, all of the first kind in the
    order of the captions, then all of the second, and so on; `exists` (K, B) bool tells which exist. `rivals` (B, B)
    bool tells which captions (columns) are wrong of which images, None if all others are. `facts` are what a source
    knows of its images besides captions.
    """

    images: Tensor
    input_ids: Tensor
    exists: Tensor
    rivals: Tensor | None = None
    facts: Movable | None = None

    def to(self, device: torch.device) -> "TuningBatch":
        known: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value if value is None else value.to(device) for name, value in known.items()}
        return TuningBatch(**moved)

    def pixels(self, transform: ImageTransform) -> Tensor:
        """Return the images as (B, 3, S, S), normalised."""
        return transform.normalise(self.images)


class Drawn(NamedTuple):
    """Images (B, S, S, 3) uint8, and a caption of each.

    `negatives` are the hard negatives of each caption by name; None for a caption whose negatives are to be made.
    `rivals` and `facts` are those of `TuningBatch`.
    """

    images: Tensor
    captions: list[str]
    negatives: Sequence[Mapping[str, str] | None]
    rivals: Tensor | None = None
    facts: Movable | None = None


class Source(Protocol):
    """Images and captions by number."""

    def draw(self, seed: int, step: int, num_images: int) -> Drawn:
        """Draw images and a caption of each, as a function of only the arguments."""
        ...


@dataclass(frozen=True)
class ImageSource:
    """Images from disk, each cropped to a random part of at least `min_area` of it before the model's own transform.

    Step t of a process takes the examples after those of step t − 1, so processes that take turns at the steps of a run
    see the same examples as one process with larger steps.
    """

    images: CaptionedImages
    transform: ImageTransform
    min_area: float = 0.9

    def draw(self, seed: int, step: int, num_images: int) -> Drawn:
        pixels, captions = [], []
        negatives: list[Mapping[str, str] | None] = []
        for position in range(step * num_images, (step + 1) * num_images):
            image, caption, stored = self.images.example(seed, position)
            generator = torch.Generator().manual_seed((seed + 1) * 1_000_000_007 + position)
            share, left, top = torch.rand(3, generator=generator).tolist()
            side = (1 - share * (1 - self.min_area)) ** 0.5
            width, height = round(image.width * side), round(image.height * side)
            x, y = round(left * (image.width - width)), round(top * (image.height - height))
            pixels.append(torch.tensor(self.transform(image.crop((x, y, x + width, y + height)))))
            captions.append(caption)
            negatives.append(stored if self.images.has_negatives else None)
        return Drawn(torch.stack(pixels), captions, negatives)


@dataclass(frozen=True)
class TuningData:
    """Batches by step number, for `services.jobs.training.train`, each with hard negatives of these names.

    They are the source's own or, for captions of which it has none, made; names are then kinds.
    """

    source: Source
    tokenizer: Tokenizer
    hard_negatives: HardNegatives
    names: Sequence[str]
    seed: int
    num_images: int

    def __call__(self, step: int) -> TuningBatch:
        drawn = self.source.draw(self.seed, step, self.num_images)
        first = self.seed * 1_000_000_007 + step * self.num_images
        rows = [
            self._made(caption, first + i) if known is None else known
            for i, (caption, known) in enumerate(zip(drawn.captions, drawn.negatives, strict=True))
        ]
        columns = [[row.get(name) for row in rows] for name in self.names]
        texts = [*drawn.captions, *(text for column in columns for text in column if text is not None)]
        exists = torch.tensor([[text is not None for text in column] for column in columns], dtype=torch.bool)
        return TuningBatch(
            drawn.images, self.tokenizer(texts), exists.view(len(columns), len(rows)), drawn.rivals, drawn.facts
        )

    def _made(self, caption: str, seed: int) -> Mapping[str, str | None]:
        if not self.names:
            return {}
        kinds = cast(Sequence[Kind], self.names)
        return dict(self.hard_negatives.make(caption, kinds, seed).items())
