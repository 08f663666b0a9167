"""Generated scenes of one or two groups of equal objects, with the light and the clutter of a photograph.

Scenes are sampled as tensors from a generator, so that any batch can be sampled again on any machine, and rendered by
ColorShape (`services/jobs/colorshape.py`).

Shapes: B scenes, G = 2 groups, N object slots, S image side in pixels.
"""

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from services.jobs.colorshape import BACKGROUNDS, COLORS, RELATIONS, SHAPES, SIZES, TEXTURES, Scenes, render
from starters.score.data.scene_captions import MAX_COUNT, PLACES, Facts, Group

MAX_COUNT_BESIDE = 2  # in a group next to another
NUM_SLOTS = max(MAX_COUNT, 2 * MAX_COUNT_BESIDE)
# Radii as fractions of the image side, small and large: of a lone object, of one or two in a group, and of three.
LONE_RADII = ((0.11, 0.14), (0.20, 0.26))
GROUP_RADII = ((0.105, 0.13), (0.165, 0.19))
CROWD_RADII = ((0.095, 0.115), (0.145, 0.16))
# Distances between the members of a group: some touch, few hide each other.
SPACING = {2: 0.40, 3: 0.30}
# Light: overall brightness, and how much brighter one side of the image is than the other; weak enough that a gray
# background stays darker than a white one.
BRIGHTNESS = (0.90, 1.04)
MAX_GRADIENT = 0.16
COLOR_JITTER = 0.07


@dataclass(frozen=True)
class GroupScenes:
    """A batch of scenes. Objects of the first group take the first slots; if there is only one group, the second's
    columns are meaningless."""

    objects: Scenes
    num_groups: Tensor  # (B,) int64, 1 or 2
    count: Tensor  # (B, G) int64, 1 to MAX_COUNT
    color: Tensor  # (B, G) int64
    shape: Tensor  # (B, G) int64
    size: Tensor  # (B, G) int64
    light: Tensor  # (B, 3) float32: brightness, and its gradient to the right and downwards across the image

    def __len__(self) -> int:
        return len(self.objects)

    def rows(self, some: Tensor) -> "GroupScenes":
        """The scenes of an index or a mask (B,)."""
        return GroupScenes(
            _rows(self.objects, some), *(getattr(self, f.name)[some] for f in fields(self) if f.name != "objects")
        )

    def to(self, device: torch.device | str) -> "GroupScenes":
        return GroupScenes(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def sample_scenes(
    num_scenes: int, generator: torch.Generator, *, pair_fraction: float, max_count: int = MAX_COUNT
) -> GroupScenes:
    """Draw scenes: every attribute is uniform, except that the most frequent number is 1.

    `pair_fraction` of the scenes have two groups of different colour and shape, side by side or one above the other.
    """

    def draw(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=generator)

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(size, generator=generator)

    num_groups = 1 + (torch.rand(num_scenes, generator=generator) < pair_fraction).long()
    color, shape = draw(len(COLORS), num_scenes, 2), draw(len(SHAPES), num_scenes, 2)
    color[:, 1] = (color[:, 0] + 1 + draw(len(COLORS) - 1, num_scenes)) % len(COLORS)
    shape[:, 1] = (shape[:, 0] + 1 + draw(len(SHAPES) - 1, num_scenes)) % len(SHAPES)
    size = draw(len(SIZES), num_scenes, 2)
    one_or_more = torch.where(uniform(0, 1, num_scenes, 2) < 0.5, 1, 2 + draw(2, num_scenes, 2))
    count = one_or_more.clamp(max=max_count)
    count = torch.where(num_groups[:, None] == 2, count.clamp(max=MAX_COUNT_BESIDE), count)
    relation, cell = draw(len(RELATIONS), num_scenes), draw(len(PLACES), num_scenes)
    slots = torch.arange(NUM_SLOTS).expand(num_scenes, -1)
    group = (slots >= count[:, :1]).long()  # (B, N)
    radius = _radii(num_groups, count, size, uniform(0, 1, num_scenes, 2)).gather(1, group)
    center = torch.where(
        (num_groups == 2)[:, None, None],
        _pair_centers(relation, count, group, generator),
        _lone_centers(cell, count, radius, generator),
    )
    num_objects = count[:, 0] + torch.where(num_groups == 2, count[:, 1], 0)
    is_used = slots < num_objects[:, None]
    palette = torch.tensor(list(COLORS.values()), dtype=torch.float32) / 255
    # objects of a group have the same paint in different light
    tint = uniform(-COLOR_JITTER, COLOR_JITTER, num_scenes, 2, 3).gather(1, group[..., None].expand(-1, -1, 3))
    objects = Scenes(
        num_objects=num_objects,
        shape=shape.gather(1, group),
        color=color.gather(1, group),
        rgb=(palette[color.gather(1, group)] + tint + uniform(-0.02, 0.02, num_scenes, NUM_SLOTS, 1)).clamp(0, 1),
        size=size.gather(1, group),
        radius=radius * uniform(0.97, 1.03, num_scenes, NUM_SLOTS),
        # an unused object is far outside the image, where it covers no patch
        center=torch.where(is_used[..., None], center, -9.0),
        angle=uniform(-0.2, 0.2, num_scenes, NUM_SLOTS),
        cell=cell,
        relation=relation,
        background=draw(len(BACKGROUNDS), num_scenes),
        texture=draw(len(TEXTURES), num_scenes),
        noise_seed=torch.rand(num_scenes, generator=generator),
    )
    gradient = uniform(-MAX_GRADIENT, MAX_GRADIENT, num_scenes, 2) / 2
    light = torch.cat([uniform(*BRIGHTNESS, num_scenes, 1), gradient], dim=1)
    return GroupScenes(objects, num_groups, count, color, shape, size, light)


def render_scenes(scenes: GroupScenes, side: int) -> Tensor:
    """Render to (B, S, S, 3) uint8, on the device of the scenes; the same scenes give the same pixels."""
    objects = scenes.objects
    canvas = torch.empty(len(scenes), side, side, 3, dtype=torch.uint8, device=objects.rgb.device)
    for num_objects in range(1, NUM_SLOTS + 1):
        some = (objects.num_objects == num_objects).nonzero()[:, 0]
        if len(some):  # unused slots cost as much as used ones
            canvas[some] = render(_slots(_rows(objects, some), num_objects), side)
    axis = (torch.arange(side, device=canvas.device) + 0.5) / side - 0.5
    brightness, to_right, down = scenes.light[:, :, None, None].unbind(1)
    light = brightness + to_right * axis + down * axis[:, None]  # (B, S, S)
    return (canvas * light[..., None]).clamp(0, 255).round().to(torch.uint8)


def scene_facts(scenes: GroupScenes) -> list[Facts]:
    """Return the facts of each scene."""
    colors, backgrounds = list(COLORS), list(BACKGROUNDS)
    columns = (scenes.count, scenes.size, scenes.color, scenes.shape)
    groups = [column.tolist() for column in columns]
    objects = scenes.objects
    rest = (scenes.num_groups, objects.relation, objects.cell, objects.texture, objects.background)
    facts = []
    for i, (num_groups, relation, cell, texture, background) in enumerate(
        zip(*(x.tolist() for x in rest), strict=True)
    ):
        said = tuple(
            Group(count[i][g], SIZES[size[i][g]], colors[color[i][g]], SHAPES[shape[i][g]])
            for count, size, color, shape in [groups]
            for g in range(num_groups)
        )
        facts.append(
            Facts(
                groups=said,
                relation=RELATIONS[relation] if num_groups == 2 else None,
                place=PLACES[cell] if num_groups == 1 and said[0].count == 1 else None,
                texture=TEXTURES[texture],
                background=backgrounds[background],
            )
        )
    return facts


def generator_of(seed: int, step: int) -> torch.Generator:
    """The generator of one step of a seed's endless stream."""
    # a multiplier beyond any number of steps keeps the streams of two seeds apart
    return torch.Generator().manual_seed(seed * 1_000_000_007 + step)


def _radii(num_groups: Tensor, count: Tensor, size: Tensor, dice: Tensor) -> Tensor:
    """Compute radii (B, G) in the range of the size, which is narrower if more objects must fit in."""
    is_lone = (num_groups[:, None] == 1) & (count == 1)
    kind = torch.where(is_lone, 0, torch.where(count == MAX_COUNT, 2, 1))
    ranges = torch.tensor([LONE_RADII, GROUP_RADII, CROWD_RADII])[kind, size]  # (B, G, 2)
    return ranges[..., 0] + (ranges[..., 1] - ranges[..., 0]) * dice


def _row_offsets(count: Tensor, member: Tensor) -> Tensor:
    """Offset of each member of a row from the middle of the row: counts and numbers (…) → (…)."""
    spacing = torch.tensor([0.0, 0.0, SPACING[2], SPACING[3]])[count]
    return spacing * (member - (count - 1) / 2)


def _pair_centers(relation: Tensor, count: Tensor, group: Tensor, generator: torch.Generator) -> Tensor:
    """Centres (B, N, 2) of two groups on opposite sides of the middle, each in a row across the line between them."""
    num_scenes = relation.shape[0]
    is_horizontal = relation < 2  # left and right of
    sign = torch.tensor([-1.0, 1.0, -1.0, 1.0])[relation]  # y grows downwards
    distance = 0.21 + 0.055 * torch.rand(num_scenes, 2, generator=generator)
    along = sign[:, None] * torch.tensor([1.0, -1.0]) * distance  # (B, G)
    lone_jitter = torch.where(count == 1, 0.07, 0.02)
    across = lone_jitter * (2 * torch.rand(num_scenes, 2, generator=generator) - 1)
    member = torch.arange(NUM_SLOTS) - group * count[:, :1]
    across = across.gather(1, group) + _row_offsets(count.gather(1, group), member)
    jitter = 0.025 * (2 * torch.rand(num_scenes, NUM_SLOTS, 2, generator=generator) - 1)
    axes = torch.stack([along.gather(1, group), across], dim=-1)
    centers: Tensor = 0.5 + torch.where(is_horizontal[:, None, None], axes, axes.flip(-1)) + jitter
    return centers


def _lone_centers(cell: Tensor, count: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
    """Centres (B, N, 2) of one object in its cell of a 3 × 3 grid, or of several in a row or column anywhere."""
    num_scenes = cell.shape[0]
    grid = (torch.stack([cell % 3, cell // 3], dim=1) + 0.5) / 3
    jitter = 2 * torch.rand(num_scenes, 2, generator=generator) - 1
    is_row = torch.rand(num_scenes, generator=generator) < 0.5
    offsets = _row_offsets(count[:, :1], torch.arange(NUM_SLOTS))  # (B, N)
    axes = torch.stack([offsets, torch.zeros_like(offsets)], dim=-1)
    axes = torch.where(is_row[:, None, None], axes, axes.flip(-1))
    across = torch.where(is_row[:, None], torch.tensor([0.05, 0.3]), torch.tensor([0.3, 0.05]))
    several = 0.5 + (across * jitter)[:, None] + axes
    several = several + 0.03 * (2 * torch.rand(num_scenes, NUM_SLOTS, 2, generator=generator) - 1)
    lone = (grid + 0.06 * jitter)[:, None].expand(-1, NUM_SLOTS, -1)
    margin = radius[..., None]
    centers = torch.where((count[:, 0] == 1)[:, None, None], lone, several)
    return torch.minimum(torch.maximum(centers, margin), 1 - margin)


def _rows(objects: Scenes, some: Tensor) -> Scenes:
    return Scenes(**{f.name: getattr(objects, f.name)[some] for f in fields(objects)})


def _slots(objects: Scenes, num_slots: int) -> Scenes:
    """Keep only the first slots."""
    names = ("shape", "color", "rgb", "size", "radius", "center", "angle")
    return replace(objects, **{name: getattr(objects, name)[:, :num_slots] for name in names})
