"""Objectives of the small CLIP that FocalLens starts from, and the batches that they are computed on.

Shapes: B images, W text tokens, P patches, D width, E embedding width.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.embed.focallens import unique_answer_loss
from services.embed.training.objectives import distinct
from services.jobs.training import gather
from services.nn.clip_tokenizer import Tokenizer
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale, encode_text
from services.nn.vision_transformer import advance, attend, by_head, embed_patches, pool, project
from starters.embed.drawn_pictures import IMAGE_ATTRIBUTES, PATCH_ATTRIBUTES, UNKNOWN
from starters.embed.facts import WORDS
from starters.embed.questions import caption_batch

# Shapes are harder to tell than everything else.
LABEL_WEIGHTS = {"shape": 2.0}


@dataclass(frozen=True)
class CaptionRows:
    """Pictures, their captions, and labels of what they and their patches show."""

    images: Tensor  # (B, height, width, 3) uint8
    caption_ids: Tensor  # (B, W)
    image_labels: Tensor  # (B, number of IMAGE_ATTRIBUTES)
    patch_labels: Tensor  # (B, P, number of PATCH_ATTRIBUTES)

    def to(self, device: torch.device) -> Self:
        return type(self)(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


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

    def forward(self, batch: CaptionRows) -> Tensor:
        loss: Tensor = self.heads(encode_tokens(self.visual, self.transform.normalise(batch.images)), batch)
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

    def forward(self, batch: CaptionRows) -> Tensor:
        tokens = encode_tokens(self.clip.visual, self.transform.normalise(batch.images))
        image_features = gather(tokens.pooled)
        text_features = gather(F.normalize(encode_text(self.clip, batch.caption_ids), dim=-1))
        representative, answer_index = distinct(gather(batch.caption_ids))
        scale = clamped_scale(self.clip.logit_scale)
        loss = unique_answer_loss(image_features, text_features[representative], answer_index, scale, symmetric=True)
        return loss if self.heads is None else loss + self.attribute_weight * self.heads(tokens, batch)


@dataclass(frozen=True)
class CaptionData:
    """Batches for CLIP: drawn pictures of the model's size with captions, and labels for patches of its grid."""

    tokenizer: Tokenizer
    transform: ImageTransform
    grid_side: int
    seed: int
    num_images: int

    def __call__(self, step: int) -> CaptionRows:
        batch = caption_batch(self.seed, step, self.num_images, self.transform.size[0])
        drawn = batch.drawn
        return CaptionRows(
            images=drawn.pixels,
            caption_ids=self.tokenizer(batch.captions),
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
