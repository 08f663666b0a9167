"""Losses of the training jobs, and the batches that they are computed on.

Shapes: B images, R rows (an image under a condition, and its answer), C distinct conditions, A answers, W text tokens,
P patches, E embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from services.embed.data.triplets import LlavaData, TripletBatch, all_answers, caption_batch, triplet_batch
from services.embed.focallens import FocalLens, Readouts, unique_answer_loss
from services.jobs.colorshape import (
    BACKGROUNDS,
    COLORS,
    COLUMNS,
    ROWS,
    SHAPES,
    SIZES,
    TEXTURES,
    Scenes,
    covering_objects,
    render,
)
from services.jobs.training import gather, gather_rows
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale, encode_text


@dataclass(frozen=True)
class Rows:
    """A batch of (image, condition, answer) rows, tokenized; scenes are rendered where they are trained on."""

    images: Scenes | Tensor  # scenes, or (B, height, width, 3) uint8
    answer_ids: Tensor  # (R, W)
    answer_index: Tensor  # (R,) into the answer bank, −1 where there is none
    image_index: Tensor  # (R,)
    condition_ids: Tensor  # (C, W), the distinct conditions
    condition_index: Tensor  # (R,), −1 for none

    def to(self, device: torch.device) -> "Rows":
        return Rows(**{name: getattr(self, name).to(device) for name in Rows.__dataclass_fields__})

    def pixels(self, transform: ImageTransform) -> Tensor:
        """(B, 3, height, width), normalised."""
        images = self.images if isinstance(self.images, Tensor) else render(self.images, transform.size[0])
        return transform.normalise(images)


class AttributeLoss(nn.Module):
    """Warm-up of a small ViT: what each patch token and the class token must tell of a scene.

    Contrastive learning alone leaves shapes at chance for thousands of steps; patches that know their object's
    shape and colour get it going. The heads are thrown away.
    """

    def __init__(self, visual: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.visual = visual
        self.transform = transform
        width = visual.class_embedding.shape[0]
        self.patch_heads = nn.ModuleList([nn.Linear(width, len(COLORS)), nn.Linear(width, len(SHAPES))])
        sizes = (len(BACKGROUNDS), len(TEXTURES), len(SIZES), len(ROWS) * len(COLUMNS))
        self.image_heads = nn.ModuleList([nn.Linear(width, size) for size in sizes])

    def forward(self, batch: Rows) -> Tensor:
        scenes = batch.images
        assert isinstance(scenes, Scenes)  # LLaVA's images are tuned on, never warmed up with
        tokens = self.visual.forward_intermediates(
            batch.pixels(self.transform), indices=1, normalize_intermediates=True, intermediates_only=True,
            output_fmt="NLC", output_extra_tokens=True,
        )  # fmt: skip
        patches, cls = tokens["image_intermediates"][-1], tokens["image_intermediates_prefix"][-1][:, 0]
        slot = covering_objects(scenes, self.visual.grid_size[0])
        is_single = scenes.num_objects == 1
        loss = torch.zeros((), device=cls.device)
        for head, labels in zip(self.patch_heads, (scenes.color, scenes.shape), strict=True):
            target = labels.gather(1, slot.clamp(min=0)).masked_fill(slot < 0, -100)
            loss = loss + F.cross_entropy(head(patches).flatten(0, 1), target.flatten())
        # size and position are those of a lone object
        size, cell = (x.masked_fill(~is_single, -100) for x in (scenes.size[:, 0], scenes.cell))
        for head, target in zip(self.image_heads, (scenes.background, scenes.texture, size, cell), strict=True):
            loss = loss + F.cross_entropy(head(cls), target)
        return loss


class CaptionLoss(nn.Module):
    """CLIP's symmetric loss, where rows with the same caption are no negatives of one another."""

    def __init__(self, clip: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.clip = clip
        self.transform = transform

    def forward(self, batch: Rows) -> Tensor:
        image_features = gather(self.clip.encode_image(batch.pixels(self.transform), normalize=True))
        text_features = gather(F.normalize(encode_text(self.clip, batch.answer_ids), dim=-1))
        representative, answer_index = _distinct(gather(batch.answer_ids))
        scale = clamped_scale(self.clip.logit_scale)
        return unique_answer_loss(image_features, text_features[representative], answer_index, scale, symmetric=True)


class TripletLoss(nn.Module):
    """Eq. 5.1 over (image, instruction, answer) rows.

    The negatives are the other answers of `bank` (A, E), or of the batch where there is none. `scale` None is
    CLIP's own temperature, trained further. Rows without a condition are pulled to their captions at CLIP's scale,
    with weight `plain_weight`, so that the plain embedding stays one.
    """

    bank: Tensor | None

    def __init__(
        self, tuned: tuple[FocalLens, ImageTransform], bank: Tensor | None, scale: float | None, plain_weight: float
    ) -> None:
        super().__init__()
        self.model, self.transform = tuned
        self.scale = scale
        self.plain_weight = plain_weight
        self.register_buffer("bank", bank, persistent=False)

    def forward(self, batch: Rows) -> Tensor:
        conditions = self.model.encode_conditions(batch.condition_ids)
        readouts = Readouts(batch.image_index, batch.condition_index)
        features = self.model.encode_images(batch.pixels(self.transform), conditions, readouts)
        is_conditional = batch.condition_index >= 0
        clip_scale = clamped_scale(self.model.clip.logit_scale)
        scale = clip_scale if self.scale is None else self.scale
        asked = self._loss(features, batch, is_conditional, scale, self.bank)
        if bool(is_conditional.all()):
            return asked
        plain = self._loss(features, batch, ~is_conditional, clip_scale.detach(), None)
        return asked + self.plain_weight * plain

    def _loss(self, features: Tensor, batch: Rows, rows: Tensor, scale: Tensor | float, bank: Tensor | None) -> Tensor:
        if bank is not None:
            return unique_answer_loss(features[rows], bank, batch.answer_index[rows], scale)
        # the text tower is frozen: other processes' answers serve as negatives without any gradient
        own = batch.answer_ids[rows]
        everyone, start = gather_rows(own)
        representative, index = _distinct(everyone)
        with torch.no_grad():
            answers = self.model.encode_texts(everyone[representative])
        return unique_answer_loss(features[rows], answers, index[start : start + len(own)], scale)


@dataclass(frozen=True)
class TripletData:
    """Batches for FocalLens, tokenized in the loader's workers: ColorShape, or LLaVA's JSON where `llava` is given."""

    tokenizer: Tokenizer
    transform: ImageTransform
    seed: int
    num_images: int
    num_questions: int
    has_plain: bool
    llava: LlavaData | None = None

    def __call__(self, step: int) -> Rows:
        if self.llava is not None:
            files, triplets = self.llava.batch(self.seed, step, self.num_images)
            pixels = [torch.tensor(self.transform(Image.open(file).convert("RGB"))) for file in files]
            return self._tokenize(torch.stack(pixels), triplets, {})
        scenes, triplets = triplet_batch(
            self.seed, step, self.num_images, num_questions=self.num_questions, has_unconditional=self.has_plain
        )
        return self._tokenize(scenes, triplets, {answer: i for i, answer in enumerate(all_answers())})

    def _tokenize(self, images: Scenes | Tensor, triplets: TripletBatch, bank: Mapping[str, int]) -> Rows:
        conditions = sorted({text for text in triplets.instructions if text is not None})
        place = {text: i for i, text in enumerate(conditions)}
        return Rows(
            images=images,
            answer_ids=self.tokenizer(triplets.answers),
            answer_index=torch.tensor([bank.get(text, -1) for text in triplets.answers]),
            image_index=triplets.image_index,
            condition_ids=self.tokenizer(conditions),
            condition_index=torch.tensor([-1 if t is None else place[t] for t in triplets.instructions]),
        )


@dataclass(frozen=True)
class CaptionData:
    """Batches for CLIP: ColorShape scenes and captions."""

    tokenizer: Tokenizer
    seed: int
    num_images: int

    def __call__(self, step: int) -> Rows:
        batch = caption_batch(self.seed, step, self.num_images)
        everyone = torch.arange(self.num_images)
        nothing = torch.empty(0, dtype=torch.int64)
        return Rows(batch.scenes, self.tokenizer(batch.captions), nothing, everyone, nothing, nothing)


def _distinct(input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (R, W) → one row index for each distinct text (A,), and each row's text (R,) among them."""
    distinct, index = torch.unique(input_ids, dim=0, return_inverse=True)
    representative = torch.empty(len(distinct), dtype=torch.int64, device=input_ids.device)
    representative[index] = torch.arange(len(index), device=index.device)  # any row of a text will do
    return representative, index
