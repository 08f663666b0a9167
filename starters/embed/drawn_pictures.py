"""Batches of drawn pictures whose facts are known: ColorShape scenes, and wider pictures of one or two things.

Shapes: B pictures, S image side in pixels, N = 2 places for things, P patches of a square grid.
"""

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from services.jobs.colorshape import render, sample_scenes
from services.nn.image_transform import padded
from starters.embed.facts import WORDS, Facts, is_kept_apart, picture_facts, scene_facts
from starters.pictures import rendering
from starters.pictures.patches import nearest_object
from starters.pictures.things import Picture
from starters.pictures.variety import Variety, draw_picture

# What a patch can tell of the thing that covers it, and an image of its only thing.
PATCH_ATTRIBUTES = ("color", "shape", "object texture")
IMAGE_ATTRIBUTES = tuple(WORDS)
UNKNOWN = -100  # a label that no loss counts
NUM_PLACES = 2

_ANY = Variety(
    counts=(1,), radii=(0.055, 0.42), strokes=(0.1, 0.5), outlines=0.3, textured=0.3, turned=0.5, compressed=0.25
)
SQUARE = _ANY
LONG = Variety(
    counts=(1,), radii=(0.17, 0.42), strokes=(0.1, 0.5), outlines=0.25, textured=0.25, turned=0.35, compressed=0.2,
    aspects=3.0,
)  # fmt: skip
SIMPLE = Variety(
    counts=(1,), radii=(0.15, 0.4), outlines=0.15, textured=0.2, turned=0.25, backgrounds=("plain",), max_noise=0.02
)
PAIRS = Variety(counts=(2,), radii=(0.12, 0.3), outlines=0.2, textured=0.2, turned=0.3, overlaps=0.0)
SHARES = {SQUARE: 0.6, LONG: 0.25, SIMPLE: 0.15}


@dataclass(frozen=True)
class Drawn:
    """A batch of pictures: `pixels` (B, S, S, 3) uint8, their facts, and where their things are.

    `center` (B, N, 2) and `radius` (B, N) are in shares of S; places without a thing have a radius of −∞.
    """

    pixels: Tensor
    facts: list[Facts]
    center: Tensor
    radius: Tensor

    def image_labels(self) -> Tensor:
        """Index the words of IMAGE_ATTRIBUTES for pictures of one thing: (B, 7) int64, UNKNOWN where there is none."""
        return torch.tensor(
            [
                [
                    WORDS[name].index(facts.said[name]) if name in facts.said and len(facts.things) == 1 else UNKNOWN
                    for name in IMAGE_ATTRIBUTES
                ]
                for facts in self.facts
            ]
        )

    def patch_labels(self, grid_side: int) -> Tensor:
        """Index the words of PATCH_ATTRIBUTES of the thing that covers each patch: (B, P, 3), UNKNOWN for none."""
        labels = torch.full((len(self.facts), NUM_PLACES + 1, len(PATCH_ATTRIBUTES)), UNKNOWN)
        for i, facts in enumerate(self.facts):
            for slot, thing in enumerate(facts.things):
                labels[i, slot] = torch.tensor([WORDS[name].index(thing[name]) for name in PATCH_ATTRIBUTES])
        nearest = nearest_object(self.center, self.radius, grid_side)  # −1 is the last place, which has no labels
        return labels[torch.arange(len(labels))[:, None], nearest]


def draw_batch(
    seed: int, step: int, size: int, side: int, *, picture_share: float = 0.6, pair_share: float = 0.0
) -> Drawn:
    """Draw step `step` of a seed's endless pictures: `size` of them, `picture_share` of them wider than ColorShape.

    `pair_share` of them show two things.
    """
    # a multiplier larger than any number of steps keeps the random streams of two seeds separate
    number = seed * 1_000_000_007 + step
    num_pictures = round(picture_share * size)
    scenes = sample_scenes(size - num_pictures, torch.Generator().manual_seed(number), pair_fraction=pair_share)
    random = Random(number)
    pictures = [_draw_picture(random, pair_share) for _ in range(num_pictures)]
    drawn = [_render(picture, side) for picture in pictures]
    places = [_places(picture) for picture in pictures]
    is_thing = torch.arange(NUM_PLACES) < scenes.num_objects[:, None]
    return Drawn(
        torch.cat([render(scenes, side), *(torch.from_numpy(pixels)[None] for pixels in drawn)]),
        [*(scene_facts(scenes, i) for i in range(len(scenes))), *map(picture_facts, pictures)],
        torch.cat([scenes.center, *(center for center, _ in places)]),
        torch.cat([scenes.radius.masked_fill(~is_thing, -torch.inf), *(radius for _, radius in places)]),
    )


def _draw_picture(random: Random, pair_share: float) -> Picture:
    """Draw a picture without a pair of color and shape that is held out."""
    while True:
        is_pair = random.random() < pair_share
        variety = PAIRS if is_pair else random.choices(list(SHARES), list(SHARES.values()))[0]
        picture = draw_picture(variety, random)
        if not any(is_kept_apart(thing.color, thing.shape) for thing in picture.things):
            return picture


def _render(picture: Picture, side: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Render with black bars around what is longer than wide, as the image transform adds them."""
    return padded(rendering.render(picture, max(1, int(side / max(picture.aspect, 1 / picture.aspect)))), side)


def _places(picture: Picture) -> tuple[Tensor, Tensor]:
    """Give centres (1, N, 2) and radii (1, N) of the things in the padded square."""
    width, height = min(1.0, picture.aspect), min(1.0, 1 / picture.aspect)
    center, radius = torch.zeros(1, NUM_PLACES, 2), torch.full((1, NUM_PLACES), -torch.inf)
    for slot, thing in enumerate(picture.things):
        center[0, slot] = torch.tensor([0.5 + (thing.x - 0.5) * width, 0.5 + (thing.y - 0.5) * height])
        radius[0, slot] = thing.radius * min(width, height)
    return center, radius
