"""Batches for tuning: images, their captions, and hard negatives of these, made online in the loader's workers.

Three sources share one interface: generated scenes, a folder with a table of captions, and webdataset shards.

Shapes: B images, K kinds of hard negatives, N hard negatives, W text tokens, S image side in pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from services.jobs.colorshape import BACKGROUNDS, COLORS, SHAPES, SIZES, TEXTURES
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.score.data.captioned_images import CaptionedImages
from services.score.data.claimed_pictures import ClaimedPictures, PictureBatch
from services.score.data.scene_captions import MAX_COUNT, NUM_STYLES, NUMBERS, forget, paraphrase, sentence, sketch
from services.score.data.scenes import GroupScenes, generator_of, render_scenes, sample_scenes, scene_facts
from services.score.negatives.hard_negatives import HardNegatives
from services.score.negatives.kinds import Kind
from services.score.negatives.lexicon import Candidates

# Share of generated scenes with two groups; those with one group preserve what the base model knows.
PAIR_FRACTION = 0.65


@dataclass(frozen=True)
class TuningBatch:
    """`images` are scenes, rendered on the training device, or (B, S, S, 3) uint8.

    `input_ids` (B + N, W) int64 are the captions, then the hard negatives that exist, all of the first kind in the
    order of the captions, then all of the second, and so on; `exists` (K, B) bool tells which exist. `rivals` (B, B)
    bool tells which captions (columns) are wrong of which images, None if all others are. `pictures` are the last of
    the images, if these are pictures with known facts. `others` are other captions of the images, if they are needed.
    """

    images: GroupScenes | Tensor
    input_ids: Tensor
    exists: Tensor
    rivals: Tensor | None = None
    pictures: PictureBatch | None = None
    others: "OtherCaptions | None" = None

    def to(self, device: torch.device) -> "TuningBatch":
        known: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {name: value if value is None else value.to(device) for name, value in known.items()}
        return TuningBatch(**moved)

    def pixels(self, transform: ImageTransform) -> Tensor:
        """Return the images as (B, 3, S, S), normalised."""
        images = self.images if isinstance(self.images, Tensor) else render_scenes(self.images, transform.size[0])
        return transform.normalise(images)


@dataclass(frozen=True)
class OtherCaptions:
    """Another caption of each image of a batch: `input_ids` (B, W) for the text tower, and `labels` (B, T), tokens of a
    decoder that end with its end of text, then IGNORED."""

    input_ids: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "OtherCaptions":
        return OtherCaptions(self.input_ids.to(device), self.labels.to(device))


class Drawn(NamedTuple):
    """Images, a caption of each, the stored hard negatives of each caption by name, None if there are none, and another
    caption of each image."""

    images: GroupScenes | Tensor
    captions: list[str]
    negatives: Sequence[Mapping[str, str]] | None
    others: list[str]


class Source(Protocol):
    """Images and captions by number."""

    def draw(self, seed: int, step: int, num_images: int) -> Drawn:
        """Draw images and a caption of each, as a function of only the arguments."""
        ...


@dataclass(frozen=True)
class SceneSource:
    """Generated scenes; every caption of two groups states their relation, so that any swap makes it false."""

    pair_fraction: float = PAIR_FRACTION

    def draw(self, seed: int, step: int, num_images: int) -> Drawn:
        generator = generator_of(seed, step)
        scenes = sample_scenes(num_images, generator, pair_fraction=self.pair_fraction)
        dice = torch.rand(num_images, 13, generator=generator).tolist()
        more_dice = torch.rand(num_images, 2, generator=generator).tolist()
        captions, others = [], []
        for facts, draws, more in zip(scene_facts(scenes), dice, more_dice, strict=True):
            said = sketch(facts, draws) if facts.relation else forget(facts, draws)
            style = int(draws[12] * NUM_STYLES)
            captions.append(sentence(said, style))
            others.append(paraphrase(said, style, more))
        return Drawn(scenes, captions, None, others)


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
        pixels, captions, negatives, others = [], [], [], []
        for position in range(step * num_images, (step + 1) * num_images):
            image, caption, stored, other = self.images.example(seed, position)
            share, left, top = torch.rand(3, generator=generator_of(seed + 1, position)).tolist()
            side = (1 - share * (1 - self.min_area)) ** 0.5
            width, height = round(image.width * side), round(image.height * side)
            x, y = round(left * (image.width - width)), round(top * (image.height - height))
            pixels.append(torch.tensor(self.transform(image.crop((x, y, x + width, y + height)))))
            captions.append(caption)
            negatives.append(stored)
            others.append(other)
        return Drawn(torch.stack(pixels), captions, negatives, others)


@dataclass(frozen=True)
class TuningData:
    """Batches by step number, for `services.jobs.training.train`. Without kinds there are no hard negatives.

    `stored` names hard negatives that the source has for some captions; they follow those that are made.
    With `claims`, the last of the images are pictures with claims, whose hard negatives are the false claims of a
    group. If `excludes_true`, claims are rivals only of the pictures that they are false of, and captions of scenes,
    whose truth is known of their own scene only, only of other scenes. With `reads`, which makes a decoder's labels,
    batches have other captions; that of a claim is the claim.
    """

    source: Source
    tokenizer: Tokenizer
    hard_negatives: HardNegatives
    kinds: Sequence[Kind]
    seed: int
    num_images: int
    claims: ClaimedPictures | None = None
    excludes_true: bool = False
    stored: Sequence[str] = ()
    reads: Callable[[Sequence[str]], Tensor] | None = None

    def __call__(self, step: int) -> TuningBatch:
        num_claimed = 0 if self.claims is None else self.claims.num_groups
        images, captions, stored, other_texts = self.source.draw(self.seed, step, self.num_images - num_claimed)
        first = step * self.num_images
        columns: list[list[str | None]] = [[] for _ in self.kinds]
        for i, caption in enumerate(captions if self.kinds else ()):
            made = self.hard_negatives.make(caption, self.kinds, self.seed * 1_000_000_007 + first + i)
            for kind, column in zip(self.kinds, columns, strict=True):
                column.append(made[kind])
        columns += [[known.get(name) for known in stored or ()] for name in self.stored]
        rivals = pictures = None
        if self.claims is not None:
            claimed = self.claims.captioned(step)
            pictures = claimed.pictures
            scenes = images if isinstance(images, Tensor) else render_scenes(images, self.claims.pictures.side)
            images = torch.cat([scenes, pictures.pixels])
            if self.excludes_true:
                others = torch.ones(len(scenes), len(scenes), dtype=torch.bool)
                rivals = torch.block_diag(others, ~claimed.is_true)  # type: ignore[no-untyped-call]
            rights = [right for right, _ in claimed.groups]
            captions, other_texts = [*captions, *rights], [*other_texts, *rights]
            for number, column in enumerate(columns):
                column += [wrong[number] if number < len(wrong) else None for _, wrong in claimed.groups]
        texts = [*captions, *(text for column in columns for text in column if text is not None)]
        exists = torch.tensor([[text is not None for text in column] for column in columns], dtype=torch.bool)
        exists = exists.view(len(columns), len(captions))
        batch = TuningBatch(images, self.tokenizer(texts), exists, rivals, pictures)
        if self.reads is None:
            return batch
        return replace(batch, others=OtherCaptions(self.tokenizer(other_texts), self.reads(other_texts)))


class SceneLexicon:
    """Replacements by other words of generated captions, so that no unfamiliar word reveals a negative."""

    GROUPS = (tuple(COLORS), SHAPES, SIZES, TEXTURES, tuple(BACKGROUNDS), NUMBERS[2 : MAX_COUNT + 1])

    def candidates(self, word: str, tag: str) -> Candidates:
        """List replacements of a lower-case word of a Penn tag, in the same form."""
        plural = "es" if word == "crosses" else "s"
        singular = word.removesuffix(plural) if tag == "NNS" else word
        found = [other for group in self.GROUPS if singular in group for other in group if other != singular]
        if tag == "NNS":
            found = [other + ("es" if other == "cross" else "s") for other in found]
        return [(other, 1.0) for other in found]
