"""Facts of pictures as vectors, and an encoder that puts them where the image tower will put the pictures themselves.

Captions learn from facts in place of pixels: a step without rendering and without an image tower takes a tenth of the
time, and the text tower learns which words make a claim true before the image tower sees them. The image tower then
has a fixed target, and learns to see these facts from the first step on.

Shapes: B pictures, T places for things, N numbers of a picture's facts, E embedding width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from starters.score.data.claimed_pictures import PictureBatch
from starters.score.data.claims import ATTRIBUTES, MAX_THINGS, VALUES

SIZE, COLOR, FINISH, SHAPE = range(4)
NUM_VALUES = tuple(len(VALUES[name]) for name in ATTRIBUTES)
# Pairs of attributes whose presence in one thing is asked.
BOUND = ((COLOR, SHAPE), (FINISH, SHAPE), (FINISH, COLOR), (SIZE, SHAPE), (SIZE, COLOR))
MIDDLE = 0.5


def values_of_things(batch: PictureBatch) -> list[Tensor]:
    """Return of each attribute which things have which value: (B, T, values) float of 0 and 1; an empty place, and a
    thing that is neither small nor big, have none."""
    codes = batch.attributes.unbind(2)
    return [
        F.one_hot(code.clamp(min=0), number).float() * (code >= 0)[..., None]
        for code, number in zip(codes, NUM_VALUES, strict=True)
    ]


def fact_vector(batch: PictureBatch) -> Tensor:
    """Collect the numbers in which every claim is a weighted sum, at least where its words mean one thing: (B, N).

    They are how many things have each two values of different attributes at once, whether any, one, two and so on have
    each value, where those are (the sums of their positions and radii), how many things there are, and the background.
    """
    onehot = values_of_things(batch)
    places = (batch.places - MIDDLE * batch.places.new_tensor([1.0, 1.0, 0.0])).nan_to_num(0.0)
    parts = [(onehot[a].mT @ onehot[b]).flatten(1) for a, b in BOUND]
    parts += [number.clamp(max=1) for number in parts]
    parts += [F.one_hot(one.sum(dim=1).long(), MAX_THINGS + 1).float().flatten(1) for one in onehot]
    parts += [(one.mT @ places).flatten(1) for one in onehot]
    parts.append(F.one_hot((batch.attributes[..., COLOR] >= 0).sum(dim=1), MAX_THINGS + 1).float())
    parts.append(F.one_hot(batch.background, NUM_VALUES[COLOR]).float())
    return torch.cat(parts, dim=1)


def num_facts() -> int:
    """Count the numbers N of `fact_vector`."""
    bound = sum(NUM_VALUES[a] * NUM_VALUES[b] for a, b in BOUND)
    return 2 * bound + sum(NUM_VALUES) * (MAX_THINGS + 1 + 3) + MAX_THINGS + 1 + NUM_VALUES[COLOR]


NUM_MODES = MAX_THINGS + 2  # of a noun: none, one to five exactly, and one or more
# Of each relation, the axis (right, down, outwards) and the sign by which the first differs from the second.
DIRECTIONS = ((0, -1), (0, 1), (1, -1), (1, 1), (2, 1), (2, -1))


def claim_vector(said: Tensor) -> Tensor:
    """Collect what claims say as weights of facts: the codes of `ClaimBatch.said` (A, 12) → (A, M).

    A noun counts for each two of its values at once, negatively where it is denied, and for each value in its number;
    a relation for the place of each value, with opposite signs of its nouns.
    """
    relation, numbers, background = said[:, 8], said[:, 9:11], said[:, 11]
    directions = torch.tensor([(0, 0), *DIRECTIONS], device=said.device)[relation]
    side = F.one_hot(directions[:, 0], 3).float() * directions[:, 1:]  # (A, 3)
    bound, modes, places, bare = [], [], [], []
    for k, sign in enumerate((1.0, -1.0)):
        codes = said[:, 4 * k : 4 * k + 4]
        mode = F.one_hot(numbers[:, k], NUM_MODES).float()
        values = [
            F.one_hot(code.clamp(min=0), number).float() * (code >= 0)[:, None]
            for code, number in zip(codes.unbind(1), NUM_VALUES, strict=True)
        ]
        denied = 1 - 2 * (numbers[:, k] == 0).float()[:, None]
        bound.append(torch.cat([_outer(values[a], values[b]) * denied for a, b in BOUND], dim=1))
        every = torch.cat(values, dim=1)
        modes.append(_outer(every, mode))
        places.append(sign * _outer(every, side))
        bare.append(mode * (every.sum(dim=1) == 0)[:, None])
    of_relation = F.one_hot(relation, 1 + len(DIRECTIONS)).float()
    behind = F.one_hot(background.clamp(min=0), NUM_VALUES[COLOR]).float() * (background >= 0)[:, None]
    parts = [sum(bound), sum(modes), sum(places), *bare, of_relation, behind]
    return torch.cat([part for part in parts if isinstance(part, Tensor)], dim=1)


def num_weights() -> int:
    """Count the numbers M of `claim_vector`."""
    bound = sum(NUM_VALUES[a] * NUM_VALUES[b] for a, b in BOUND)
    return bound + sum(NUM_VALUES) * (NUM_MODES + 3) + 2 * NUM_MODES + 1 + len(DIRECTIONS) + NUM_VALUES[COLOR]


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, :, None] * b[:, None]).flatten(1)


class FactSpace(nn.Module):
    """Linear maps of facts and of claims to the shared space of images and texts, of length 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(num_facts(), affine=False)
        self.facts, self.claims = nn.Linear(num_facts(), width), nn.Linear(num_weights(), width)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def train(self, mode: bool = True) -> "FactSpace":
        return super().train(mode and self.log_scale.requires_grad)

    def fixed(self) -> "FactSpace":
        """Stop learning, for good, so that towers learn the places in this space."""
        return self.requires_grad_(False).train(False)

    def of_pictures(self, batch: PictureBatch) -> Tensor:
        """Map the facts of pictures: (B, E) float32."""
        with torch.autocast(batch.places.device.type, enabled=False):
            return F.normalize(self.facts(self.norm(fact_vector(batch)).clamp(-4, 4)), dim=-1)

    def of_claims(self, said: Tensor) -> Tensor:
        """Map the codes of claims: (A, E) float32."""
        with torch.autocast(said.device.type, enabled=False):
            return F.normalize(self.claims(claim_vector(said)), dim=-1)
