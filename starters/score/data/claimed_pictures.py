"""Batches of pictures with claims about them, by step number.

Shapes: B pictures, G ≤ B groups of K = 4 claims, A = G K, W text tokens, P patches, S image side in pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from random import Random

import numpy as np
import torch
from torch import Tensor

from services.nn.clip_tokenizer import Tokenizer
from starters.pictures.rendering import render
from starters.pictures.things import Picture
from starters.pictures.variety import Variety, draw_picture
from starters.score.data.claim_wordings import Style, caption
from starters.score.data.claims import (
    COLORS,
    RELATIONS,
    Claim,
    PictureFacts,
    alternatives,
    draw_claim,
    noun_codes,
    picture_facts,
    truth,
)
from starters.score.data.close_claims import MAKERS, Maker, close_group

NUM_ALTERNATIVES = 3
# Pictures from which a training begins, whose many upright things of similar sizes teach shapes, clear ones, and all.
CROWDED = Variety(
    backgrounds=("plain",), counts=(4, 5, 5), radii=(0.12, 0.16), overlaps=0.0, compressed=0.0, max_light=0.1,
    max_noise=0.02, textured=0.15, outlines=0.0, turned=0.0,
)  # fmt: skip
CLEAR = Variety(
    backgrounds=("plain", "plain", "plain", "gradient"), counts=(1, 2, 2, 2, 3, 3, 4, 5), radii=(0.09, 0.34),
    overlaps=0.0, max_light=0.12, max_noise=0.03, outlines=0.15,
)  # fmt: skip
WIDE = Variety()
# Share of the easy steps in which crowded pictures run out.
CROWDED_UNTIL = 0.8
# Share of groups whose claims are worded independently of each other.
REWORDED = 0.2


@dataclass(frozen=True)
class PictureBatch:
    """Pictures (B, S, S, 3) uint8. `attributes` (B, 5, 4) are the codes of their things, `places` (B, 5, 3) the
    positions and radii, NaN in empty places, `background` (B,) its colour."""

    pixels: Tensor
    attributes: Tensor
    places: Tensor
    background: Tensor

    def to(self, device: torch.device) -> "PictureBatch":
        return PictureBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class ClaimBatch:
    """Pictures, and captions of claims, group by group: `input_ids` (A, W) int64.

    Group g is about picture g, whose first claim is nearly always true of it; `is_true` (A, B) tells which claims are
    true of which pictures. `said` (A, 12) int64 are the codes of each claim's words, −1 for those that are not said.
    """

    pictures: PictureBatch
    input_ids: Tensor
    is_true: Tensor
    said: Tensor

    def to(self, device: torch.device) -> "ClaimBatch":
        return ClaimBatch(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


@dataclass(frozen=True)
class CaptionedPictures:
    """Pictures, and of each a caption and false ones; `is_true` (B, B) tells which pictures (rows) have which of the
    captions that are not false of their own."""

    pictures: PictureBatch
    groups: list[tuple[str, list[str]]]
    is_true: Tensor


@dataclass(frozen=True)
class Pictures:
    """Endless batches of pictures; those of the first `num_easy` steps go from crowded ones to all."""

    seed: int
    num_pictures: int
    side: int
    num_easy: int = 0

    def draw(self, step: int) -> tuple[list[Picture], Random]:
        """Draw a step's pictures, and return them with the random state after them."""
        random = Random(self.seed * 1_000_000_007 + step)
        easy = max(0.0, 1 - step / (CROWDED_UNTIL * self.num_easy)) if self.num_easy else 0.0
        return [draw_picture(_variety(easy, random), random) for _ in range(self.num_pictures)], random

    def __call__(self, step: int) -> PictureBatch:
        pictures, _ = self.draw(step)
        return self.rendered(pictures, picture_facts(pictures))

    def rendered(self, pictures: Sequence[Picture], facts: PictureFacts) -> PictureBatch:
        """Render a batch."""
        places = np.full((len(pictures), facts.attributes.shape[1], 3), np.nan, np.float32)
        for i, picture in enumerate(pictures):
            places[i, : len(picture.things)] = [(thing.x, thing.y, thing.radius) for thing in picture.things]
        return PictureBatch(
            pixels=torch.from_numpy(np.stack([render(picture, self.side) for picture in pictures])),
            attributes=torch.from_numpy(facts.attributes),
            places=torch.from_numpy(places),
            background=torch.from_numpy(facts.background),
        )


@dataclass(frozen=True)
class ClaimedPictures:
    """Endless batches of pictures with groups of claims about the first `num_groups` of each.

    The share `close` of the groups are of pictures that one of `makers` draws for a fact that is hard to see: see
    `close_claims`.
    """

    tokenizer: Tokenizer
    pictures: Pictures
    num_groups: int
    close: float = 0.0
    makers: tuple[Maker, ...] = MAKERS

    def claims(self, step: int) -> list[list[Claim]]:
        """Return the groups of claims of a step."""
        _, claims, _ = self._draw(step)
        size = 1 + NUM_ALTERNATIVES
        return [claims[start : start + size] for start in range(0, len(claims), size)]

    def captioned(self, step: int) -> CaptionedPictures:
        """Return the pictures of a step that have claims, each with a caption and those of its group that are false."""
        pictures, claims, captions = self._draw(step)
        pictures = pictures[: self.num_groups]
        facts = picture_facts(pictures)
        is_true, size = truth(claims, facts), 1 + NUM_ALTERNATIVES
        groups = [
            (captions[i * size], [captions[k] for k in range(i * size + 1, (i + 1) * size) if not is_true[k, i]])
            for i in range(len(pictures))
        ]
        return CaptionedPictures(self.pictures.rendered(pictures, facts), groups, torch.from_numpy(is_true[::size].T))

    def _draw(self, step: int) -> tuple[list[Picture], list[Claim], list[str]]:
        """Draw the pictures of a step, its claims and their captions, group by group."""
        pictures, random = self.pictures.draw(step)
        claims: list[Claim] = []
        captions: list[str] = []
        for i in range(self.num_groups):
            if i < round(self.close * self.num_groups):
                pictures[i], group = close_group(random, self.makers)
            else:
                claim = draw_claim(pictures[i], random)
                group = [claim, *alternatives(claim, pictures[i], NUM_ALTERNATIVES, random)]
            style = Style.draw(random)
            is_alike = random.random() >= REWORDED
            claims += group
            captions += [caption(one, style if is_alike else Style.draw(random)) for one in group]
        return pictures, claims, captions

    def __call__(self, step: int) -> ClaimBatch:
        pictures, claims, captions = self._draw(step)
        facts = picture_facts(pictures)
        return ClaimBatch(
            pictures=self.pictures.rendered(pictures, facts),
            input_ids=self.tokenizer(captions),
            is_true=torch.from_numpy(truth(claims, facts)),
            said=torch.tensor([said(claim) for claim in claims]),
        )


def centered_things(places: Tensor, grid_side: int) -> Tensor:
    """Index the thing whose centre lies in each patch of a square grid: (B, 5, 3) → (B, P) int64; −1 for none."""
    is_there = ~places[..., 0].isnan()
    cell = (places[..., :2].nan_to_num(0.0) * grid_side).long().clamp(0, grid_side - 1)
    patch = cell[..., 1] * grid_side + cell[..., 0]
    found = torch.full((len(places), grid_side**2), -1, device=places.device)
    for thing in range(places.shape[1]):
        some = is_there[:, thing].nonzero()[:, 0]
        found[some, patch[some, thing]] = thing
    return found


def said(claim: Claim) -> list[int]:
    """Return the codes of a claim's words: of both nouns, of the relation (0 for none), of both numbers (0 for an
    absence, 6 for one or more), and of the background; −1 where a noun says nothing, or no background is said."""
    relation = 0 if claim.relation is None else 1 + RELATIONS.index(claim.relation)
    numbers = [6 if number is None else number for number in (claim.number, claim.second_number)]
    background = -1 if claim.background is None else COLORS.index(claim.background)
    return [*noun_codes(claim.first), *noun_codes(claim.second), relation, *numbers, background]


def _variety(easy: float, random: Random) -> Variety:
    if random.random() < easy:
        return CROWDED
    return CLEAR if random.random() < 0.5 else WIDE
