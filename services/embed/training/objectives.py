"""FocalLens-CLIP's contrastive loss, and the batches that it is computed on.

Shapes: B images, R rows (an image under a condition, and its answer), C distinct conditions, A answers, W text tokens,
E embedding width.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor, nn

from services.embed.data.triplets import TripletSource
from services.embed.focallens import FocalLens, unique_answer_loss
from services.embed.visibility import Readouts
from services.jobs.training import gather, gather_rows, rank
from services.nn.clip_texts import TextTokenizer
from services.nn.image_transform import ImageTransform
from services.nn.text_transformer import clamped_scale


@dataclass(frozen=True)
class Rows:
    """A batch of (image, condition, answer) rows, tokenized."""

    images: Tensor  # (B, height, width, 3) uint8
    answer_ids: Tensor  # (R, W)
    image_index: Tensor  # (R,)
    condition_ids: Tensor  # (C, W), the distinct conditions
    condition_index: Tensor  # (R,), −1 for none

    def to(self, device: torch.device) -> Self:
        return type(self)(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class TripletData:
    """Batches of a source's triplets, tokenized in the loader's workers; conditions by `conditions` if it is given."""

    tokenizer: TextTokenizer
    source: TripletSource
    conditions: TextTokenizer | None = None

    def __call__(self, step: int) -> Rows:
        images, triplets = self.source(step)
        place = {text: i for i, text in enumerate(dict.fromkeys(t for t in triplets.instructions if t is not None))}
        return Rows(
            images=images,
            answer_ids=self.tokenizer(triplets.answers),
            image_index=triplets.image_index,
            condition_ids=(self.conditions or self.tokenizer)(list(place)),
            condition_index=torch.tensor([-1 if text is None else place[text] for text in triplets.instructions]),
        )


@dataclass(frozen=True)
class Contrast:
    """Eq. 5.1 between rows and answers; the other way as well if `symmetric`. Equal answers are one, if merged."""

    symmetric: bool = False
    merges_answers: bool = True

    def __call__(
        self, features: Tensor, answer_ids: Tensor, encode: Callable[[Tensor], Tensor], scale: Tensor | float
    ) -> Tensor:
        """Contrast rows (R, E) with the answers (R, W) of all processes, which `encode` embeds → scalar."""
        # the text tower is frozen: other processes' answers serve as negatives without any gradient
        everyone, counts = gather_rows(answer_ids)
        representative, index = distinct(everyone)
        with torch.no_grad():
            answers = encode(everyone[representative])
        if not self.merges_answers:
            answers, index = answers[index], torch.arange(len(index), device=index.device)
        if self.symmetric:  # an answer chooses among the rows of all processes
            return unique_answer_loss(gather(features, counts), answers, index, scale, symmetric=True)
        start = sum(counts[: rank()])
        return unique_answer_loss(features, answers, index[start : start + len(answer_ids)], scale)


MERGED_ROWS = Contrast()


class TripletLoss(nn.Module):
    """Eq. 5.1 over (image, instruction, answer) rows, whose negatives are the other answers of the batch.

    `scale` None is CLIP's own temperature, trained further.
    """

    def __init__(
        self, model: FocalLens, transform: ImageTransform, scale: float | None, contrast: Contrast = MERGED_ROWS
    ) -> None:
        super().__init__()
        self.model = model
        self.transform = transform
        self.scale = scale
        self._contrast = contrast

    def forward(self, batch: Rows) -> Tensor:
        conditions = self.model.encode_conditions(batch.condition_ids)
        return self.contrast(self.encode_rows(batch, conditions), batch.answer_ids)

    def encode_rows(self, batch: Rows, conditions: Tensor) -> Tensor:
        """Embed the image of each row under its condition of `conditions` (C, …) → (R, E)."""
        readouts = Readouts(batch.image_index, batch.condition_index)
        return self.model.encode_images(self.transform.normalise(batch.images), conditions, readouts)

    def contrast(self, features: Tensor, answer_ids: Tensor) -> Tensor:
        """Contrast rows (R, E) with the answers (R, W) of all processes → scalar."""
        return self._contrast(features, answer_ids, self.model.encode_texts, self.logit_scale)

    @property
    def logit_scale(self) -> Tensor | float:
        return clamped_scale(self.model.clip.logit_scale) if self.scale is None else self.scale


def distinct(input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (R, W) → one row index for each distinct text (A,), and each row's text (R,) among them."""
    distinct, index = torch.unique(input_ids, dim=0, return_inverse=True)
    representative = torch.empty(len(distinct), dtype=torch.int64, device=input_ids.device)
    representative[index] = torch.arange(len(index), device=index.device)  # any row of a text will do
    return representative, index
