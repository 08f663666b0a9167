"""The two visibilities of a condition token: how images pass through a ViT under conditions, and what can be kept.

Activations that do not depend on the condition may be kept as an image's state: S numbers, computed from its tokens
before block n, where the condition joins them.

        Full      the activations of class token and patches, (1 + P, D); nothing for n = 0, where pixels are equivalent
        Readout   the patches' keys and values in block n and all later ones, (L − n, 2, H, P, D/H), and for n > 0 the
                  class token, (D,)

Shapes: B images, R readouts (an image under a condition, or under none), P patches, T tokens of a readout, D width,
L blocks, H heads, E embedding width. Features are float of the tower's dtype.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.vision_transformer import (
    QueriesKeysValues,
    advance,
    attend,
    by_head,
    class_token,
    embed,
    num_pooled,
    pool,
    project,
)


@dataclass(frozen=True)
class Questions:
    """R readouts of a batch of B images.

    `image_index` (R,) int64 holds the image of each, or is None if readout i is of image i; `tokens` (R, D) are the
    condition tokens, None without any condition; `has_token` (R,) bool is true for the readouts that have one, None if
    all or none of them do.
    """

    image_index: Tensor | None = None
    tokens: Tensor | None = None
    has_token: Tensor | None = None

    def of_images(self, x: Tensor) -> Tensor:
        """Select each readout's image: (B, …) → (R, …)."""
        return x if self.image_index is None else x[self.image_index]

    def join(self, x: Tensor) -> Tensor:
        """Append the condition to each readout's tokens: (R, T, D) → (R, T + 1, D), or unchanged without conditions."""
        return x if self.tokens is None else torch.cat([x, self.tokens[:, None].to(x.dtype)], dim=1)

    def mask(self, num_others: int) -> Tensor | None:
        """(R, 1, 1, others + 1), false for readouts without a condition in the last place; None to mask nothing."""
        if self.has_token is None:
            return None
        return F.pad(self.has_token[:, None], (num_others, 0), value=True)[:, None, None, :]


class Full:
    """Every token attends to the condition, so images pass through block n and all later ones once per condition."""

    def __init__(self, visual: Any, condition_layer: int) -> None:
        self._visual = visual
        self._below = visual.transformer.resblocks[:condition_layer]
        self._blocks = visual.transformer.resblocks[condition_layer:]

    @property
    def state_size(self) -> int | None:
        """S, or None if there is nothing to keep."""
        num_tokens, width = self._visual.positional_embedding.shape
        return int(num_tokens * width) if len(self._below) else None

    def encode(self, pixels: Tensor, questions: Questions, states: Tensor | None = None) -> Tensor:
        """Encode (B, 3, height, width) → (R, E), and fill `states` (B, S), of any float dtype, if given."""
        x = embed(self._visual, pixels)
        for block in self._below:
            x = advance(block, x, attend(*by_head(block, project(block, x))))
        if states is not None:
            states.copy_(x.flatten(1))
        return self._condition(x, questions)

    def read(self, states: Tensor, questions: Questions) -> Tensor:
        """Encode from the images' states with the same result as `encode`: (B, S) → (R, E)."""
        visual = self._visual
        return self._condition(states.view(-1, *visual.positional_embedding.shape).to(visual.proj.dtype), questions)

    def _condition(self, x: Tensor, questions: Questions) -> Tensor:
        """Run block n and all later ones: activations before block n (B, 1 + P, D) → (R, E)."""
        num_read, mask = num_pooled(self._visual), questions.mask(x.shape[1])
        x = questions.join(questions.of_images(x))
        *blocks, last = self._blocks
        for block in blocks:
            x = advance(block, x, attend(*by_head(block, project(block, x)), mask))
        query, key, value = by_head(last, project(last, x))
        attended = attend(query[:, :, :num_read], key, value, mask)
        return pool(self._visual, advance(last, x[:, :num_read], attended))


class Readout:
    """Class token and condition attend to everything, patches only to patches: one pass over the patches serves any
    number of conditions, each of which costs two tokens."""

    def __init__(self, visual: Any, condition_layer: int) -> None:
        self._visual = visual
        self._condition_layer = condition_layer
        self._blocks = visual.transformer.resblocks
        self._width: int = visual.positional_embedding.shape[1]
        self._num_patches: int = visual.positional_embedding.shape[0] - 1

    @property
    def state_size(self) -> int:
        """S."""
        num_layers = len(self._blocks) - self._condition_layer
        return 2 * num_layers * self._num_patches * self._width + (self._width if self._condition_layer else 0)

    def encode(self, pixels: Tensor, questions: Questions, states: Tensor | None = None) -> Tensor:
        """Encode (B, 3, height, width) → (R, E), and fill `states` (B, S), of any float dtype, if given.

        The patches and the tokens that read them are multiplied by each weight together, which halves the memory reads
        of a small batch.
        """
        keys_and_values, kept_cls = self._take_apart(states) if states is not None else (None, None)
        x, patches = torch.split(embed(self._visual, pixels), [1, self._num_patches], dim=1)
        asked = Questions()  # before block n the class token of each image
        for depth, block in enumerate(self._blocks):
            if depth == self._condition_layer:
                if kept_cls is not None:
                    kept_cls.copy_(x[:, 0])
                asked, x = questions, questions.join(questions.of_images(x))
            seen, own = _project_together(block, patches, x)
            if keys_and_values is not None and depth >= self._condition_layer:
                for place, part in enumerate((seen.key, seen.value)):
                    keys_and_values[:, depth - self._condition_layer, place] = part
            if depth + 1 < len(self._blocks):
                attended = attend(*seen), _look(own, seen.key, seen.value, asked)
                patches, x = _advance_together(block, (patches, x), attended)
            else:
                x = advance(block, x[:, :1], _look(own.of_first(), seen.key, seen.value, asked))
        return pool(self._visual, x)

    def read(self, states: Tensor, questions: Questions) -> Tensor:
        """Encode from the images' states with the same result as `encode`: (B, S) → (R, E)."""
        dtype = self._visual.proj.dtype
        keys_and_values, cls = self._take_apart(states)
        if cls is None:
            cls = class_token(self._visual).expand(states.shape[0], -1)
        x = questions.join(questions.of_images(cls.to(dtype)[:, None]))
        for depth, block in enumerate(self._blocks[self._condition_layer :]):
            own = by_head(block, project(block, x))
            if depth + 1 == keys_and_values.shape[1]:
                x, own = x[:, :1], own.of_first()
            keys, values = keys_and_values[:, depth].unbind(1)
            x = advance(block, x, _look(own, keys, values, questions))
        return pool(self._visual, x)

    def _take_apart(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """View states (B, S) as keys and values (B, L − n, 2, H, P, D/H), and class token (B, D) for n > 0."""
        num_heads = self._blocks[0].attn.num_heads
        shape = (len(states), -1, 2, num_heads, self._num_patches, self._width // num_heads)
        if not self._condition_layer:
            return states.view(shape), None
        return states[:, : -self._width].view(shape), states[:, -self._width :]


def _look(own: QueriesKeysValues, patch_keys: Tensor, patch_values: Tensor, questions: Questions) -> Tensor:
    """Attend from each readout's own tokens to the patches of its image and to each other: (R, H, T, D/H) and (B, H, P,
    D/H), possibly of a narrower dtype → (R, T, D)."""
    keys = torch.cat([questions.of_images(patch_keys), own.key], dim=2)
    values = torch.cat([questions.of_images(patch_values), own.value], dim=2)
    return attend(own.query, keys, values, questions.mask(keys.shape[2] - 1))


def _project_together(block: Any, patches: Tensor, x: Tensor) -> tuple[QueriesKeysValues, QueriesKeysValues]:
    """Project (B, P, D) and (R, T, D) in one matrix product."""
    num_rows = patches.shape[0] * patches.shape[1]
    projected = project(block, torch.cat([patches.flatten(0, 1), x.flatten(0, 1)]))
    return (
        by_head(block, projected[:num_rows].view(*patches.shape[:2], -1)),
        by_head(block, projected[num_rows:].view(*x.shape[:2], -1)),
    )


def _advance_together(
    block: Any, tokens: tuple[Tensor, Tensor], attended: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Run both kinds of tokens through the rest of a block."""
    advanced = advance(
        block, torch.cat([x.flatten(0, 1) for x in tokens]), torch.cat([x.flatten(0, 1) for x in attended])
    )
    first, second = torch.split(advanced, [x.shape[0] * x.shape[1] for x in tokens])
    return first.view_as(tokens[0]), second.view_as(tokens[1])
