"""Objectives of a small LLaVA before FocalLens tunes it: the image tower learns to see, then the rest to answer.

Shapes: B images, P patches, T tokens of a conversation, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from services.embed.model.mllm_engine import INSTRUCTION, MllmPrompt
from services.nn.image_transform import ImageTransform
from starters.embed.clip_objectives import AttributeHeads, Tokens
from starters.embed.drawn_pictures import draw_batch
from starters.embed.questions import Asked, triplet_batch

NOT_LEARNT = -100  # the label of a token that is not part of an answer


@dataclass(frozen=True)
class LabelledPictures:
    """Pictures, and labels of what they and their patches show."""

    images: Tensor  # (B, height, width, 3) uint8
    image_labels: Tensor  # (B, number of IMAGE_ATTRIBUTES)
    patch_labels: Tensor  # (B, P, number of PATCH_ATTRIBUTES)

    def to(self, device: torch.device) -> "LabelledPictures":
        return LabelledPictures(self.images.to(device), self.image_labels.to(device), self.patch_labels.to(device))


@dataclass(frozen=True)
class PictureData:
    """Drawn pictures of one thing, for an image tower of `grid_side` patches a side."""

    side: int
    grid_side: int
    seed: int
    num_images: int
    picture_share: float

    def __call__(self, step: int) -> LabelledPictures:
        drawn = draw_batch(self.seed, step, self.num_images, self.side, picture_share=self.picture_share)
        return LabelledPictures(drawn.pixels, drawn.image_labels(), drawn.patch_labels(self.grid_side))


class SeeingLoss(nn.Module):
    """Attributes of pictures and of their patches, told by linear heads from the layer that LLaVA reads.

    The mean of the patches tells of the picture: LLaVA does not read the class token.
    """

    def __init__(self, llava: Any, transform: ImageTransform) -> None:
        super().__init__()
        self.tower = llava.model.vision_tower
        self.layer = int(llava.config.vision_feature_layer)
        self.transform = transform
        self.heads = AttributeHeads(int(llava.config.vision_config.hidden_size))

    def forward(self, batch: LabelledPictures) -> Tensor:
        pixels = self.transform.normalise(batch.images)
        hidden = self.tower(pixels, output_hidden_states=True).hidden_states
        middle, read = hidden[len(hidden) // 2][:, 1:], hidden[self.layer][:, 1:]
        told = read.mean(dim=1)
        loss: Tensor = self.heads(Tokens(told, middle, read, told), batch)
        return loss


@dataclass(frozen=True)
class Conversations:
    """Images, and conversations about them without the opening and the image: `labels` (B, T) are those of answers."""

    images: Tensor  # (B, height, width, 3) uint8
    input_ids: Tensor  # (B, T)
    labels: Tensor  # (B, T)

    def to(self, device: torch.device) -> "Conversations":
        return Conversations(self.images.to(device), self.input_ids.to(device), self.labels.to(device))


@dataclass(frozen=True)
class ConversationData:
    """Drawn pictures with questions and answers as turns of LLaVA's prompt, each ended by </s>."""

    tokenizer: Any
    prompt: MllmPrompt
    side: int
    seed: int
    num_images: int
    asked: Asked

    def __call__(self, step: int) -> Conversations:
        drawn, triplets = triplet_batch(self.seed, step, self.num_images, self.side, self.asked)
        turns: list[list[tuple[str, str]]] = [[] for _ in range(self.num_images)]
        for image, question, answer in zip(
            triplets.image_index.tolist(), triplets.instructions, triplets.answers, strict=True
        ):
            turns[image].append((question or self.prompt.no_instruction, answer))
        rows = [self._row(some) for some in turns]
        input_ids = pad_sequence([ids for ids, _ in rows], True, self.tokenizer.pad_token_id)
        return Conversations(drawn.pixels, input_ids, pad_sequence([labels for _, labels in rows], True, NOT_LEARNT))

    def _row(self, turns: Sequence[tuple[str, str]]) -> tuple[Tensor, Tensor]:
        opening, after_image = self.prompt.prompt.split("<image>")
        input_ids: list[int] = []
        labels: list[int] = []
        for number, (question, answer) in enumerate(turns):
            asked = self._encode(("" if number == 0 else opening) + after_image.replace(INSTRUCTION, question))
            said = [*self._encode(answer), self.tokenizer.eos_token_id]
            input_ids += asked + said
            labels += [NOT_LEARNT] * len(asked) + said
        return torch.tensor(input_ids), torch.tensor(labels)

    def _encode(self, text: str) -> list[int]:
        encoded: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return encoded


class AnswerLoss(nn.Module):
    """LLaVA's second stage: the answers' tokens, each told from what stands before it; the image tower stays."""

    opening: Tensor

    def __init__(self, llava: Any, opening: Sequence[int], transform: ImageTransform) -> None:
        super().__init__()
        self.llava = llava
        self.transform = transform
        self.register_buffer("opening", torch.tensor(opening), persistent=False)

    def forward(self, batch: Conversations) -> Tensor:
        hidden, is_answer = self._hidden(batch)
        logits = self.llava.lm_head(hidden[is_answer])
        return F.cross_entropy(logits.float(), batch.labels[batch.labels != NOT_LEARNT])

    def _hidden(self, batch: Conversations) -> tuple[Tensor, Tensor]:
        """Return hidden states in front of the conversations' tokens (B, T, D), and which are in front of answers."""
        llava = self.llava.model
        found = llava.get_image_features(self.transform.normalise(batch.images), return_dict=True).pooler_output
        embed = llava.get_input_embeddings()
        opening = embed(self.opening).expand(len(batch.images), -1, -1)
        x = torch.cat([opening, torch.stack(list(found)).to(opening.dtype), embed(batch.input_ids)], dim=1)
        hidden: Tensor = llava.language_model(inputs_embeds=x, use_cache=False).last_hidden_state
        # padding stands behind everything that is read
        return hidden[:, -batch.input_ids.shape[1] - 1 : -1], batch.labels != NOT_LEARNT
