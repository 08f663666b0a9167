"""The two visibilities of a condition token: how images pass through a ViT under conditions, and what can be kept.

Activations that do not depend on the condition may be kept as an image's state: S numbers, computed from its tokens
before block n, where the condition joins them.

        Full      the activations of class token and patches, (1 + P, D); nothing for n = 0, where pixels are equivalent
        Readout   the patches' keys and values in block n and all later ones, (L − n, 2, H, P, D/H), and for n > 0 the
                  class token, (D,)

Shapes: B images, R readouts (an image under a condition, or under none), W places for the readouts of an image,
C conditions, P patches, T tokens of a readout, D width, L blocks, H heads, E embedding width. Features are float of the
tower's dtype.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.device_copies import to_device
from services.nn.vision_transformer import (
    advance,
    attend,
    by_head,
    class_token,
    embed,
    num_pooled,
    pool,
    project,
    run_block,
)

Index = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Readouts:
    """Pairs of images and conditions to read, in host memory so that nobody has to wait for the device.

    `image_index` (R,) int64 points into the batch of images, or is None if readout i is of image i; `condition_index`
    (R,) int64 points into the batch of conditions, −1 for the unconditional embedding.
    """

    image_index: Tensor | None
    condition_index: Tensor


@dataclass(frozen=True)
class Grid:
    """The readouts of each image, in W places: those of an image with fewer readouts are left empty.

    `tokens` (B, W, D) are the condition tokens, None without any condition; `has_token` (B, W) bool is true in the
    places that have one, None if all or none of them do. `places` (R,) int64 are those of the readouts among all of the
    batch, or None if readout i is at place i. With `images` (B,) int64, the grid's images are those at these places of
    the batch.
    """

    tokens: Tensor | None = None
    has_token: Tensor | None = None
    places: Tensor | None = None
    images: Tensor | None = None

    @classmethod
    def of(cls, conditions: Tensor | None, readouts: Readouts | None, num_images: int, device: torch.device) -> "Grid":
        """Ask for `readouts` under `conditions` (C, D); without readouts, for each image under its own condition."""
        if readouts is None:
            return cls(None if conditions is None else conditions[:, None])
        asked = readouts.condition_index.cpu().numpy()
        images = np.arange(len(asked)) if readouts.image_index is None else readouts.image_index.cpu().numpy()
        if conditions is None or (asked < 0).all():
            return cls(places=None if _is_all(images, num_images) else to_device(torch.from_numpy(images), device))
        ranks = ranks_within(images)
        grid = np.full((num_images, int(ranks.max()) + 1), -1)
        grid[images, ranks] = asked
        places = images * grid.shape[1] + ranks
        index = to_device(torch.from_numpy(np.concatenate([grid.ravel(), places])), device)
        chosen = index[: grid.size].view(grid.shape)
        return cls(
            conditions[chosen.clamp(min=0)],
            None if (grid >= 0).all() else chosen >= 0,
            None if _is_all(places, grid.size) else index[grid.size :],
        )

    @property
    def num_places(self) -> int:
        """W."""
        return 1 if self.tokens is None else self.tokens.shape[1]

    def readers(self, cls_tokens: Tensor) -> Tensor:
        """Give each place the class token of its image, (B, 1, D), and its condition: (B, T · W, D), the class tokens
        of all places first."""
        classes = cls_tokens.expand(-1, self.num_places, -1)
        return classes if self.tokens is None else torch.cat([classes, self.tokens.to(classes.dtype)], dim=1)

    def mask(self, num_patches: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Make what is added to the logits of attention from `readers` to patches and `readers`, (B or 1, 1, T · W,
        P + T · W): −∞ for those of other places and for empty conditions. None to mask nothing."""
        if self.num_places == 1 and self.has_token is None:
            return None
        num_kinds = 1 if self.tokens is None else 2
        seen = torch.eye(self.num_places, dtype=torch.bool, device=device).repeat(num_kinds, num_kinds)[None]
        if self.has_token is not None:
            seen = seen & F.pad(self.has_token, (self.num_places, 0), value=True)[:, None]
        num_keys = num_patches + seen.shape[-1]
        # CUDA's kernel copies a mask in each block unless its rows begin at multiples of 16 numbers
        seen = F.pad(seen, (num_patches, -num_keys % 16), value=True)
        return torch.zeros_like(seen, dtype=dtype).masked_fill_(~seen, -torch.inf)[:, None, :, :num_keys]

    def chosen(self, rows: Tensor) -> Tensor:
        """Select the readouts among all places: (B · W, E) → (R, E)."""
        return rows if self.places is None else rows[self.places]


def ranks_within(images: Index) -> Index:
    """Number the readouts of each image: (R,) → (R,), 0 for the first one of an image."""
    order = images.argsort(kind="stable")
    counts = np.bincount(images)
    ranks = np.empty_like(images)
    ranks[order] = np.arange(len(images)) - np.repeat(counts.cumsum() - counts, counts)
    return ranks


def _is_all(places: Index, number: int) -> bool:
    """Whether `places` are all from 0 to number − 1, in order."""
    return np.array_equal(places, np.arange(number))


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

    def grid(self, conditions: Tensor | None, readouts: Readouts | None, num_images: int, device: torch.device) -> Grid:
        """Give each readout an image of its own."""
        if readouts is None:
            return Grid.of(conditions, None, num_images, device)
        images, asked = readouts.image_index, readouts.condition_index
        grid = Grid.of(conditions, Readouts(None, asked), len(asked), device)
        if images is None or _is_all(images.cpu().numpy(), num_images):
            return grid
        return replace(grid, images=to_device(images, device))

    def encode(self, pixels: Tensor, asked: Grid, states: Tensor | None = None) -> Tensor:
        """Encode (B, 3, height, width) → (R, E), and fill `states` (B, S), of any float dtype, if given."""
        x = embed(self._visual, pixels)
        for block in self._below:
            x = run_block(block, x)
        if states is not None:
            states.copy_(x.flatten(1))
        return self._condition(x, asked)

    def read(self, states: Tensor, asked: Grid) -> Tensor:
        """Encode from the images' states with the same result as `encode`: (B, S) → (R, E)."""
        visual = self._visual
        return self._condition(states.view(-1, *visual.positional_embedding.shape).to(visual.proj.dtype), asked)

    def _condition(self, x: Tensor, asked: Grid) -> Tensor:
        """Run block n and all later ones: activations before block n (B, 1 + P, D) → (R, E)."""
        x = x if asked.images is None else x[asked.images]
        num_read, mask = num_pooled(self._visual), asked.mask(x.shape[1] - 1, x.dtype, x.device)
        mask = None if mask is None else mask[:, :, :1]  # what the class token sees, all tokens do
        x = x if asked.tokens is None else torch.cat([x, asked.tokens.to(x.dtype)], dim=1)
        *blocks, last = self._blocks
        for block in blocks:
            x = run_block(block, x, mask)
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

    def grid(self, conditions: Tensor | None, readouts: Readouts | None, num_images: int, device: torch.device) -> Grid:
        """Give the readouts of an image places beside each other."""
        return Grid.of(conditions, readouts, num_images, device)

    def encode(self, pixels: Tensor, asked: Grid, states: Tensor | None = None) -> Tensor:
        """Encode (B, 3, height, width) → (B · W, E), and fill `states` (B, S), of any float dtype, if given.

        The patches and the tokens that read them stand in one sequence, so that each weight is read once for both.
        """
        keys_and_values, kept_cls = self._take_apart(states) if states is not None else (None, None)
        cls, patches = torch.split(embed(self._visual, pixels), [1, self._num_patches], dim=1)
        x = torch.cat([patches, cls], dim=1)
        num_patches, mask = self._num_patches, None
        for depth, block in enumerate(self._blocks):
            if depth == self._condition_layer:
                if kept_cls is not None:
                    kept_cls.copy_(x[:, -1])
                mask = asked.mask(num_patches, x.dtype, x.device)
                x = torch.cat([x[:, :num_patches], asked.readers(x[:, num_patches:])], dim=1)
            query, key, value = by_head(block, project(block, x))
            if keys_and_values is not None and depth >= self._condition_layer:
                for place, part in enumerate((key, value)):
                    keys_and_values[:, depth - self._condition_layer, place] = part[:, :, :num_patches]
            if depth + 1 < len(self._blocks):
                of_patches = attend(*(part[:, :, :num_patches] for part in (query, key, value)))
                x = advance(
                    block, x, torch.cat([of_patches, attend(query[:, :, num_patches:], key, value, mask)], dim=1)
                )
        return self._finish(x[:, num_patches:], query[:, :, num_patches:], key, value, mask, asked)

    def read(self, states: Tensor, asked: Grid) -> Tensor:
        """Encode from the images' states with the same result as `encode`: (B, S) → (B · W, E)."""
        dtype = self._visual.proj.dtype
        keys_and_values, cls = self._take_apart(states)
        if cls is None:
            cls = class_token(self._visual).expand(states.shape[0], -1)
        mask = asked.mask(self._num_patches, dtype, states.device)
        x = asked.readers(cls.to(dtype)[:, None])
        for depth, block in enumerate(self._blocks[self._condition_layer :]):
            query, key, value = by_head(block, project(block, x))
            keys, values = keys_and_values[:, depth].unbind(1)
            key, value = torch.cat([keys, key], dim=2), torch.cat([values, value], dim=2)
            if depth + 1 < keys_and_values.shape[1]:
                x = advance(block, x, attend(query, key, value, mask))
        return self._finish(x, query, key, value, mask, asked)

    def _finish(self, x: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, asked: Grid) -> Tensor:
        """Run the last block for the class token of each place alone: readers (B, T · W, D) → (B · W, E)."""
        first = slice(asked.num_places)
        attended = attend(query[:, :, first], key, value, None if mask is None else mask[:, :, first])
        return pool(self._visual, advance(self._blocks[-1], x[:, first], attended).flatten(0, 1)[:, None])

    def _take_apart(self, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """View states (B, S) as keys and values (B, L − n, 2, H, P, D/H), and class token (B, D) for n > 0."""
        num_heads = self._blocks[0].attn.num_heads
        shape = (len(states), -1, 2, num_heads, self._num_patches, self._width // num_heads)
        if not self._condition_layer:
            return states.view(shape), None
        return states[:, : -self._width].view(shape), states[:, -self._width :]
