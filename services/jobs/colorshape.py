"""ColorShape: rendered scenes whose attributes are all known, and their captions and questions.

The dissertation's toy data set (section 5.4.1: 4 colors × 4 shapes), extended by backgrounds, textures, sizes,
positions, two objects and continuous colors. Scenes are drawn as tensors, so a batch can be rendered on any device.

Shapes: B scenes, N = 2 object slots, S image side in pixels.
"""

import math
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 39, 40),
    "green": (44, 140, 44),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 30),
    "orange": (255, 127, 14),
    "purple": (128, 50, 160),
    "pink": (245, 120, 190),
    "brown": (125, 75, 40),
    "black": (25, 25, 25),
    "cyan": (30, 200, 210),
    "lime": (150, 235, 50),
    "navy": (15, 20, 95),
}
SHAPES = ("circle", "square", "triangle", "star", "diamond", "cross", "ring", "heart")
SIZES = ("small", "large")
BACKGROUNDS: dict[str, tuple[int, int, int]] = {
    "white": (248, 248, 248),
    "gray": (185, 185, 185),
    "beige": (236, 218, 185),
    "lavender": (205, 200, 240),
}
TEXTURES = ("plain", "striped", "checkered", "dotted")
ROWS = ("top", "middle", "bottom")
COLUMNS = ("left", "center", "right")
RELATIONS = ("left of", "right of", "above", "below")

# Radii as fractions of the image side; the ranges of the two sizes do not overlap.
SIZE_RADII = ((0.10, 0.14), (0.20, 0.26))
TEXTURE_AMPLITUDE = 0.12
PIXEL_NOISE = 0.02

# Each color is never drawn with one of the last four shapes in training: only the combination is held out, and every
# color and every shape is seen.
NUM_SHAPES_KEPT_WHOLE = 4


@dataclass(frozen=True)
class Scenes:
    """A batch of scenes. Slot 1 is unused if `num_objects` is 1; `color` is −1 for a color without a name."""

    num_objects: Tensor  # (B,) int64, 1 or 2
    shape: Tensor  # (B, N) int64
    color: Tensor  # (B, N) int64
    rgb: Tensor  # (B, N, 3) float32 in 0..1
    size: Tensor  # (B, N) int64
    radius: Tensor  # (B, N) float32, fraction of the side
    center: Tensor  # (B, N, 2) float32 (x, y), fraction of the side
    angle: Tensor  # (B, N) float32, radians
    cell: Tensor  # (B,) int64: row × 3 + column of the first object
    relation: Tensor  # of the first object relative to the second
    background: Tensor  # (B,) int64
    texture: Tensor  # (B,) int64
    noise_seed: Tensor  # (B,) float32 in 0..1

    def __len__(self) -> int:
        return self.num_objects.shape[0]

    def __getitem__(self, some: slice) -> "Scenes":
        return Scenes(**{f.name: getattr(self, f.name)[some] for f in fields(self)})

    def on_plain_white(self) -> "Scenes":
        """The same objects before plain white, as in the dissertation's figure."""
        return replace(self, background=torch.zeros_like(self.background), texture=torch.zeros_like(self.texture))

    def to(self, device: torch.device | str) -> "Scenes":
        return Scenes(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def is_held_out(color: Tensor, shape: Tensor) -> Tensor:
    """Tell which colors and shapes are never drawn together in training: any shape (…) int64 → (…) bool."""
    return shape == NUM_SHAPES_KEPT_WHOLE + color % (len(SHAPES) - NUM_SHAPES_KEPT_WHOLE)


def sample_scenes(num_scenes: int, generator: torch.Generator, *, pair_fraction: float = 0.0) -> Scenes:
    """Draw scenes for training with uniform attributes, without held-out combinations.

    `pair_fraction` of the scenes have two objects of different shape and nearly always different color, side by side or
    one above the other.
    """

    def draw(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=generator)

    color, shape = draw(len(COLORS), num_scenes, 2), draw(len(SHAPES), num_scenes, 2)
    # the second object has another color and shape, so that "a red circle and a blue square" distinguishes them
    color[:, 1] = (color[:, 0] + 1 + draw(len(COLORS) - 1, num_scenes)) % len(COLORS)
    shape[:, 1] = (shape[:, 0] + 1 + draw(len(SHAPES) - 1, num_scenes)) % len(SHAPES)
    held_out = is_held_out(color, shape)
    # colors 4 or 8 apart have the same held-out shape, the next color has another one
    color = torch.where(held_out, (color + 1) % len(COLORS), color)
    is_pair = torch.rand(num_scenes, generator=generator) < pair_fraction
    return compose_scenes(color, shape, generator, is_pair=is_pair)


def sample_classes(pairs: list[tuple[int, int]], num_per_class: int, generator: torch.Generator) -> Scenes:
    """Draw `num_per_class` single-object scenes for each (color, shape) pair, in class order; all else is uniform."""
    color = torch.tensor([pair[0] for pair in pairs]).repeat_interleave(num_per_class)
    shape = torch.tensor([pair[1] for pair in pairs]).repeat_interleave(num_per_class)
    return compose_scenes(color[:, None].repeat(1, 2), shape[:, None].repeat(1, 2), generator)


def sample_continuous(num_scenes: int, generator: torch.Generator, num_shapes: int = len(SHAPES)) -> Scenes:
    """Draw single-object scenes of the first shapes, whose colors are uniform in RGB and have no name."""
    shape = torch.randint(num_shapes, (num_scenes, 2), generator=generator)
    scenes = compose_scenes(torch.zeros_like(shape), shape, generator)
    scenes.color.fill_(-1)
    scenes.rgb.copy_(torch.rand(num_scenes, 2, 3, generator=generator))
    return scenes


def compose_scenes(
    color: Tensor, shape: Tensor, generator: torch.Generator, *, is_pair: Tensor | None = None
) -> Scenes:
    """Compose scenes of given colors and shapes, (B, N) int64 each; the rest is uniform. `is_pair` (B,), default no."""
    num_scenes = color.shape[0]

    def draw(high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=generator)

    def uniform(low: float, high: float, *size: int) -> Tensor:
        return low + (high - low) * torch.rand(size, generator=generator)

    if is_pair is None:
        is_pair = torch.zeros(num_scenes, dtype=torch.bool)
    palette = torch.tensor(list(COLORS.values()), dtype=torch.float32) / 255
    size = draw(len(SIZES), num_scenes, 2)
    radii = torch.tensor(SIZE_RADII)[size]  # (B, N, 2)
    radius = radii[..., 0] + (radii[..., 1] - radii[..., 0]) * torch.rand(num_scenes, 2, generator=generator)
    # two large objects would not fit side by side without touching
    radius = torch.where(is_pair[:, None], radius.clamp(max=0.19), radius)
    cell, relation = draw(9, num_scenes), draw(len(RELATIONS), num_scenes)
    return Scenes(
        num_objects=1 + is_pair.long(),
        shape=shape,
        color=color,
        rgb=(palette[color] + uniform(-0.06, 0.06, num_scenes, 2, 3)).clamp(0, 1),
        size=size,
        radius=radius,
        center=torch.where(
            is_pair[:, None, None], _pair_centers(relation, generator), _cell_centers(cell, radius, generator)
        ),
        angle=uniform(-0.2, 0.2, num_scenes, 2),
        cell=cell,
        relation=relation,
        background=draw(len(BACKGROUNDS), num_scenes),
        texture=draw(len(TEXTURES), num_scenes),
        noise_seed=torch.rand(num_scenes, generator=generator),
    )


def render(scenes: Scenes, side: int = 64) -> Tensor:
    """Render scenes → (B, S, S, 3) uint8, on the device of the scenes; equal scenes have equal pixels."""
    device = scenes.rgb.device
    axis = (torch.arange(side, device=device) + 0.5) / side
    y, x = torch.meshgrid(axis, axis, indexing="ij")  # (S, S)
    canvas = _background(scenes, x, y)  # (B, S, S, 3)
    for slot in range(scenes.shape.shape[1]):
        coverage = _coverage(scenes, slot, x, y, side)  # (B, S, S)
        coverage = coverage * (slot < scenes.num_objects)[:, None, None]
        canvas = canvas + coverage[..., None] * (scenes.rgb[:, slot, None, None, :] - canvas)
    noise = _noise(scenes.noise_seed[:, None, None], x, y)[..., None]
    return ((canvas + PIXEL_NOISE * noise).clamp(0, 1) * 255).round().to(torch.uint8)


def _pair_centers(relation: Tensor, generator: torch.Generator) -> Tensor:
    """Draw centres (B, 2, 2) of two objects such that the first is `relation` the second."""
    num_scenes = relation.shape[0]
    jitter = 0.05 * (2 * torch.rand(num_scenes, 2, 2, generator=generator) - 1)
    offset = torch.tensor([[-0.25, 0.0], [0.25, 0.0], [0.0, -0.25], [0.0, 0.25]])[relation]  # y grows downwards
    return 0.5 + torch.stack([offset, -offset], dim=1) + jitter


def _cell_centers(cell: Tensor, radius: Tensor, generator: torch.Generator) -> Tensor:
    """Draw centres (B, 2, 2) inside a cell of a 3 × 3 grid, moved inwards if the object would leave the image."""
    jitter = 0.07 * (2 * torch.rand(cell.shape[0], 2, generator=generator) - 1)
    grid = torch.stack([cell % 3, cell // 3], dim=1)  # (column, row)
    center = (grid + 0.5) / 3 + jitter
    margin = radius[:, :1].clamp(max=0.5)
    center = torch.minimum(torch.maximum(center, margin), 1 - margin)
    return center[:, None].repeat(1, 2, 1)


def _background(scenes: Scenes, x: Tensor, y: Tensor) -> Tensor:
    palette = torch.tensor(list(BACKGROUNDS.values()), dtype=torch.float32, device=x.device) / 255
    stripes = torch.sign(torch.sin(12 * math.pi * (x + y)))
    checks = torch.sign(torch.sin(8 * math.pi * x) * torch.sin(8 * math.pi * y))
    dots = 2.0 * (((8 * x % 1 - 0.5) ** 2 + (8 * y % 1 - 0.5) ** 2) < 0.07) - 1
    patterns = torch.stack([torch.zeros_like(x), stripes, checks, dots])  # (texture, S, S), each in −1..1
    shade = 1 - TEXTURE_AMPLITUDE * (patterns[scenes.texture] > 0).float()
    return palette[scenes.background][:, None, None, :] * shade[..., None]


def _coverage(scenes: Scenes, slot: int, x: Tensor, y: Tensor, side: int) -> Tensor:
    """Compute each pixel's share covered by the object, (B, S, S) in 0..1, from its outline in polar coordinates."""
    dx = x - scenes.center[:, slot, 0, None, None]
    dy = y - scenes.center[:, slot, 1, None, None]
    radius = scenes.radius[:, slot, None, None]
    distance = torch.sqrt(dx**2 + dy**2)
    theta = torch.remainder(torch.atan2(dy, dx) - scenes.angle[:, slot, None, None], 2 * math.pi)
    outlines = _outlines(x.device)
    num_angles = outlines.shape[1]
    step = (theta / (2 * math.pi) * num_angles).long().clamp(max=num_angles - 1)
    outline = outlines[scenes.shape[:, slot, None, None], step]
    coverage = ((radius * outline - distance) * side + 0.5).clamp(0, 1)
    hole = ((distance - 0.55 * radius) * side + 0.5).clamp(0, 1)
    is_ring = (scenes.shape[:, slot] == SHAPES.index("ring"))[:, None, None]
    return torch.where(is_ring, coverage * hole, coverage)


def _outlines(device: torch.device, num_angles: int = 720) -> Tensor:
    """Compute each shape's outline by angle, (shape, angle): its distance from the centre, in radii of the circle."""
    theta = torch.arange(num_angles, device=device) / num_angles * 2 * math.pi  # 0 is right, π/2 is down
    circle = torch.ones_like(theta)

    def polygon(num_sides: int, first_corner: float, circumradius: float) -> Tensor:
        sector = 2 * math.pi / num_sides
        local = torch.remainder(theta - first_corner, sector) - sector / 2
        return circumradius * math.cos(sector / 2) / torch.cos(local)

    square = polygon(4, math.pi / 4, 1.2)
    triangle = polygon(3, -math.pi / 2, 1.3)
    diamond = polygon(4, 0.0, 1.2) * (0.72 + 0.28 * torch.sin(theta).abs())
    # a straight edge from a tip at 1.3 to a notch at 0.55, a tenth of a turn away
    tenth = math.pi / 5
    turn = (torch.remainder(theta + math.pi / 2 + tenth, 2 * tenth) - tenth).abs()
    star = 1.3 * 0.55 * math.sin(tenth) / (1.3 * torch.sin(turn) + 0.55 * torch.sin(tenth - turn))
    # an arm reaches 1.15; the notch between two arms is where their half-widths meet
    arm = 0.38
    quarter = torch.remainder(theta + math.pi / 4, math.pi / 2) - math.pi / 4
    cross = torch.minimum(1.15 / torch.cos(quarter), arm / torch.sin(quarter.abs()).clamp(min=arm / 2))
    cross = torch.maximum(cross, torch.full_like(cross, arm))
    # two lobes, and a corner below them that points down
    across, down = torch.cos(theta).abs(), torch.sin(theta)
    toward = 0.42 * across - 0.25 * down
    lobes = toward + torch.sqrt((toward**2 - 0.42**2 - 0.25**2 + 0.5**2).clamp(min=0))
    corner = 1 / (across / 0.88 + down.clamp(min=0) / 1.15)
    heart = 1.1 * torch.where(down > 0, torch.maximum(lobes, corner), lobes)
    return torch.stack([circle, square, triangle, star, diamond, cross, circle, heart])


def _noise(seed: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute pixel noise in −1..1 only from the position and the scene, so that scenes carry no random state."""
    value = torch.sin(x * 1279.8 + y * 3183.1 + seed * 977.7) * 4375.85
    return 2 * (value - value.floor()) - 1
