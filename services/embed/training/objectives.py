"""Losses of the training jobs, and the batches that they are computed on.

Shapes: B images, R rows (an image under a condition, and its answer), C distinct conditions, A answers, W text tokens,
P patches, E embedding width.
"""

import copy
import random
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from services.embed.data.drawn_pictures import IMAGE_ATTRIBUTES, PATCH_ATTRIBUTES, UNKNOWN, Drawn
from services.embed.data.facts import WORDS
from services.embed.data.llava import LlavaData
from services.embed.data.triplets import FAMILIES, Asked, TripletBatch, all_answers, caption_batch, triplet_batch
from services.embed.focallens import FocalLens, Readouts, unique_answer_loss
from services.jobs.training import gather, gather_rows
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale, encode_text
from services.nn.vision_transformer import advance, attend, by_head, embed_patches, pool, project

# Shapes are harder to tell than everything else.
LABEL_WEIGHTS = {"shape": 2.0}
# Share of the conditions in which one word is spelled, so that words never seen are read from their letters.
SPELLED_SHARE = 0.3
UNTUNED_WEIGHT = 60.0
FAMILY_WEIGHT = 0.3


@dataclass(frozen=True)
class Rows:
    """A batch of (image, condition, answer) rows, tokenized."""

    images: Tensor  # (B, height, width, 3) uint8
    answer_ids: Tensor  # (R, W)
    answer_index: Tensor  # (R,) into the answer bank, −1 where there is none
    image_index: Tensor  # (R,)
    condition_ids: Tensor  # (C, W), the distinct conditions
    condition_index: Tensor  # (R,), −1 for none
    families: Tensor  # (C, number of FAMILIES), 1 for those that a condition is about, NaN where that is not known
    is_unrelated: Tensor  # (R,) bool, of conditions about nothing in the picture
    image_labels: Tensor  # (B, number of IMAGE_ATTRIBUTES), empty where facts are not known
    patch_labels: Tensor  # (B, P, number of PATCH_ATTRIBUTES), likewise

    def to(self, device: torch.device) -> "Rows":
        return Rows(**{name: getattr(self, name).to(device) for name in Rows.__dataclass_fields__})

    def pixels(self, transform: ImageTransform) -> Tensor:
        """(B, 3, height, width), normalised."""
        return transform.normalise(self.images)


class Tokens(NamedTuple):
    """Embeddings (B, E) of images, unit vectors; patches before the blocks and after them (B, P, D), normalised by
    ln_post, and class tokens (B, D) likewise."""

    pooled: Tensor
    stem: Tensor
    patches: Tensor
    cls: Tensor


class Labelled(Protocol):
    """A batch of pictures whose facts are known."""

    @property
    def image_labels(self) -> Tensor: ...  # (B, number of IMAGE_ATTRIBUTES)

    @property
    def patch_labels(self) -> Tensor: ...  # (B, P, number of PATCH_ATTRIBUTES)


class AttributeHeads(nn.Module):
    """Linear heads by which each patch, before and after the blocks, and the class token must tell of a picture; thrown
    away after training.

    Contrastive learning alone leaves shapes at chance for thousands of steps; patches that know their thing's shape,
    color and texture get it going, soonest where the convolutions must tell by themselves.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem_heads, self.patch_heads = (
            nn.ModuleList([nn.Linear(width, len(WORDS[name])) for name in PATCH_ATTRIBUTES]) for _ in range(2)
        )
        self.image_heads = nn.ModuleList([nn.Linear(width, len(WORDS[name])) for name in IMAGE_ATTRIBUTES])

    def forward(self, tokens: Tokens, batch: Labelled) -> Tensor:
        """Sum the cross-entropies → scalar."""
        loss = torch.zeros((), device=tokens.cls.device)
        for heads, patches in ((self.stem_heads, tokens.stem), (self.patch_heads, tokens.patches)):
            for place, (name, head) in enumerate(zip(PATCH_ATTRIBUTES, heads, strict=True)):
                value = F.cross_entropy(head(patches).flatten(0, 1), batch.patch_labels[..., place].flatten())
                loss = loss + LABEL_WEIGHTS.get(name, 1.0) * value
        for place, (name, head) in enumerate(zip(IMAGE_ATTRIBUTES, self.image_heads, strict=True)):
            labels = batch.image_labels[:, place]
            if bool((labels != UNKNOWN).any()):
                loss = loss + LABEL_WEIGHTS.get(name, 1.0) * F.cross_entropy(head(tokens.cls), labels)
        return loss


class AttributeLoss(nn.Module):
    """Supervised warm-up of a small ViT by attribute heads."""

    def __init__(self, visual: Any, transform: ImageTransform, heads: AttributeHeads) -> None:
        super().__init__()
        self.visual = visual
        self.transform = transform
        self.heads = heads

    def forward(self, batch: Rows) -> Tensor:
        loss: Tensor = self.heads(encode_tokens(self.visual, batch.pixels(self.transform)), batch)
        return loss


class CaptionLoss(nn.Module):
    """CLIP's symmetric loss, where rows with the same caption are no negatives of one another.

    With `heads` their loss is added with `attribute_weight`.
    """

    def __init__(
        self, clip: Any, transform: ImageTransform, heads: AttributeHeads | None = None, attribute_weight: float = 0.4
    ) -> None:
        super().__init__()
        self.clip = clip
        self.transform = transform
        self.heads = heads
        self.attribute_weight = attribute_weight

    def forward(self, batch: Rows) -> Tensor:
        tokens = encode_tokens(self.clip.visual, batch.pixels(self.transform))
        image_features = gather(tokens.pooled)
        text_features = gather(F.normalize(encode_text(self.clip, batch.answer_ids), dim=-1))
        representative, answer_index = distinct(gather(batch.answer_ids))
        scale = clamped_scale(self.clip.logit_scale)
        loss = unique_answer_loss(image_features, text_features[representative], answer_index, scale, symmetric=True)
        return loss if self.heads is None else loss + self.attribute_weight * self.heads(tokens, batch)


class TripletLoss(nn.Module):
    """Eq. 5.1 over (image, instruction, answer) rows.

    The negatives are the other answers of `bank` (A, E), or of the batch where there is none. `scale` None is
    CLIP's own temperature, trained further. Rows without a condition, and rows whose condition is about nothing in the
    picture, are pulled to the embedding of their image by the image tower as it was before tuning, with weight
    `plain_weight`: what no condition asks for stays as it was. The condition tokens must also tell by a linear head,
    which is thrown away, what they are about.
    """

    bank: Tensor | None

    def __init__(
        self, tuned: tuple[FocalLens, ImageTransform], bank: Tensor | None, scale: float | None, plain_weight: float
    ) -> None:
        super().__init__()
        self.model, self.transform = tuned
        self.scale = scale
        self.plain_weight = plain_weight
        self.untuned = copy.deepcopy(self.model.clip.visual).requires_grad_(False) if plain_weight > 0 else None
        self.family_head = nn.Linear(self.model.condition_projection.out_features, len(FAMILIES))
        self.register_buffer("bank", bank, persistent=False)

    def forward(self, batch: Rows) -> Tensor:
        conditions = self.model.encode_conditions(batch.condition_ids)
        readouts = Readouts(batch.image_index, batch.condition_index)
        features = self.model.encode_images(batch.pixels(self.transform), conditions, readouts)
        is_kept = (batch.condition_index < 0) | batch.is_unrelated
        scale = clamped_scale(self.model.clip.logit_scale) if self.scale is None else self.scale
        loss = self._loss(features, batch, ~is_kept, scale)
        if self.untuned is not None and bool(is_kept.any()):
            moved = self._moved(self.untuned, features[is_kept], batch, batch.image_index[is_kept])
            loss = loss + self.plain_weight * UNTUNED_WEIGHT * moved
        known = ~batch.families.isnan().any(dim=1)
        if bool(known.any()):
            told = self.family_head(conditions[known]).float()
            loss = loss + FAMILY_WEIGHT * F.binary_cross_entropy_with_logits(told, batch.families[known])
        return loss

    def _moved(self, untuned: nn.Module, kept: Tensor, batch: Rows, images: Tensor) -> Tensor:
        """Average the cosine distance of rows from the untuned tower's embeddings of their images."""
        with torch.no_grad():
            before = F.normalize(untuned.eval()(batch.pixels(self.transform)), dim=-1)[images]
        return 1 - (kept * before).sum(dim=-1).mean()

    def _loss(self, features: Tensor, batch: Rows, rows: Tensor, scale: Tensor | float) -> Tensor:
        if self.bank is not None:
            return unique_answer_loss(features[rows], self.bank, batch.answer_index[rows], scale)
        # the text tower is frozen: other processes' answers serve as negatives without any gradient
        own = batch.answer_ids[rows]
        everyone, start = gather_rows(own)
        representative, index = distinct(everyone)
        with torch.no_grad():
            answers = self.model.encode_texts(everyone[representative])
        return unique_answer_loss(features[rows], answers, index[start : start + len(own)], scale)


@dataclass(frozen=True)
class TripletData:
    """Batches for FocalLens, tokenized in the loader's workers: drawn, or LLaVA's JSON where `llava` is given."""

    tokenizer: Tokenizer
    transform: ImageTransform
    seed: int
    num_images: int
    asked: Asked
    llava: LlavaData | None = None

    def __call__(self, step: int) -> Rows:
        dice = random.Random(f"{self.seed} {step}")
        if self.llava is not None:
            files, triplets = self.llava.batch(self.seed, step, self.num_images)
            pixels = [torch.tensor(self.transform(Image.open(file).convert("RGB"))) for file in files]
            return self._tokenize(torch.stack(pixels), triplets, dice)
        drawn, triplets = triplet_batch(self.seed, step, self.num_images, self.transform.size[0], self.asked)
        return self._tokenize(drawn.pixels, triplets, dice)

    def _tokenize(self, images: Tensor, triplets: TripletBatch, dice: random.Random) -> Rows:
        bank = {answer: i for i, answer in enumerate(all_answers(self.asked.unseen))}
        about = {
            text: families
            for text, families in zip(triplets.instructions, triplets.families, strict=True)
            if text is not None
        }
        place = {text: i for i, text in enumerate(about)}
        unknown = [float("nan")] * len(FAMILIES)
        return Rows(
            images=images,
            answer_ids=self.tokenizer(triplets.answers),
            answer_index=torch.tensor([bank.get(text, -1) for text in triplets.answers]),
            image_index=triplets.image_index,
            condition_ids=self.tokenizer.spelled(list(about), dice, SPELLED_SHARE),
            condition_index=torch.tensor([-1 if t is None else place[t] for t in triplets.instructions]),
            families=torch.tensor(
                [
                    unknown if families is None else [float(name in families) for name in FAMILIES]
                    for families in about.values()
                ]
            ),
            is_unrelated=torch.tensor([families == () for families in triplets.families]),
            image_labels=torch.empty(0, dtype=torch.int64),
            patch_labels=torch.empty(0, dtype=torch.int64),
        )


@dataclass(frozen=True)
class CaptionData:
    """Batches for CLIP: drawn pictures of the model's size with captions, and labels for patches of its grid."""

    tokenizer: Tokenizer
    transform: ImageTransform
    grid_side: int
    seed: int
    num_images: int

    def __call__(self, step: int) -> Rows:
        batch = caption_batch(self.seed, step, self.num_images, self.transform.size[0])
        drawn: Drawn = batch.drawn
        nothing = torch.empty(0, dtype=torch.int64)
        return Rows(
            images=drawn.pixels,
            answer_ids=self.tokenizer(batch.captions),
            answer_index=nothing,
            image_index=torch.arange(self.num_images),
            condition_ids=nothing,
            condition_index=nothing,
            families=nothing,
            is_unrelated=nothing,
            image_labels=drawn.image_labels(),
            patch_labels=drawn.patch_labels(self.grid_side),
        )


def encode_tokens(visual: Any, pixels: Tensor) -> Tokens:
    """Encode images (B, 3, height, width) by a plain ViT, and keep what it knows on the way."""
    stem = visual.conv1(pixels).flatten(2).transpose(1, 2)
    x = embed_patches(visual, stem)
    for block in visual.transformer.resblocks:
        x = advance(block, x, attend(*by_head(block, project(block, x))))
    told = visual.ln_post(x)
    return Tokens(pool(visual, x), stem, told[:, 1:], told[:, 0])


def distinct(input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (R, W) → one row index for each distinct text (A,), and each row's text (R,) among them."""
    distinct, index = torch.unique(input_ids, dim=0, return_inverse=True)
    representative = torch.empty(len(distinct), dtype=torch.int64, device=input_ids.device)
    representative[index] = torch.arange(len(index), device=index.device)  # any row of a text will do
    return representative, index
