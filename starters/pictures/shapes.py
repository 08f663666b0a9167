"""Shapes as tables of signed distances, from which an outline of any width and smooth edges follow.

Distances are in radii: negative inside, positive outside, exact for polygons.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float32]]
Points = Sequence[tuple[float, float]]

SHAPES = (
    "circle", "square", "triangle", "star", "diamond", "cross", "ring", "heart",
    "oval", "rectangle", "pentagon", "hexagon", "crescent", "arrow",
)  # fmt: skip
# A table reaches from −REACH to REACH in both directions, with this many points per radius.
REACH = 1.5
POINTS_PER_RADIUS = 64
NUM_POINTS = int(2 * REACH * POINTS_PER_RADIUS) + 1


@functools.cache
def distance_tables() -> dict[str, Floats]:
    """Compute each shape's signed distances at NUM_POINTS × NUM_POINTS points, rows downwards."""
    axis = np.linspace(-REACH, REACH, NUM_POINTS, dtype=np.float32)
    x, y = np.meshgrid(axis, axis)
    circle = np.hypot(x, y) - 1
    tables = {name: _polygon(points, x, y) for name, points in _corners().items()}
    tables["circle"] = circle
    tables["ring"] = np.maximum(circle, 0.52 - np.hypot(x, y))
    tables["crescent"] = np.maximum(circle, 0.85 - np.hypot(x - 0.5, y))
    return {name: tables[name].astype(np.float32) for name in SHAPES}


def _corners() -> dict[str, Points]:
    """The corners of each polygon in order; y grows downwards."""
    return {
        "square": _regular(4, math.pi / 4, 1.15),
        "triangle": _regular(3, -math.pi / 2, 1.2),
        "pentagon": _regular(5, -math.pi / 2, 1.08),
        "hexagon": _regular(6, 0.0, 1.06),
        "diamond": ((0.0, -1.2), (0.9, 0.0), (0.0, 1.2), (-0.9, 0.0)),
        "rectangle": ((-1.15, -0.6), (1.15, -0.6), (1.15, 0.6), (-1.15, 0.6)),
        "star": [
            (radius * math.cos(angle), radius * math.sin(angle))
            for i in range(10)
            for radius, angle in [(1.2 if i % 2 == 0 else 0.5, -math.pi / 2 + i * math.pi / 5)]
        ],
        "cross": _cross(1.05, 0.36),
        "oval": [(1.18 * math.cos(t), 0.68 * math.sin(t)) for t in np.arange(48) * math.pi / 24],
        "heart": _heart(),
        "arrow": ((1.2, 0.0), (0.25, -0.85), (0.25, -0.35), (-1.1, -0.35), (-1.1, 0.35), (0.25, 0.35), (0.25, 0.85)),
    }


def _regular(num_corners: int, first: float, radius: float) -> Points:
    turns = [first + 2 * math.pi * i / num_corners for i in range(num_corners)]
    return [(radius * math.cos(turn), radius * math.sin(turn)) for turn in turns]


def _cross(length: float, half: float) -> Points:
    corners: list[tuple[float, float]] = []
    arm = [(-half, -half), (-half, -length), (half, -length)]
    for _ in range(4):
        corners += arm
        arm = [(-y, x) for x, y in arm]  # a right angle further
    return corners


def _heart() -> Points:
    """The usual curve 16 sin³ t, 13 cos t − 5 cos 2t − 2 cos 3t − cos 4t, scaled to a height of about two."""
    turns = np.arange(60) * math.pi / 30
    return [
        (
            1.1 * math.sin(t) ** 3,
            -1.1 * (13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)) / 16 - 0.15,
        )
        for t in turns
    ]


def _polygon(corners: Points, x: Floats, y: Floats) -> Floats:
    """Compute the signed distance to a polygon: the nearest edge, inside where an even-odd ray says so."""
    nearest = np.full(x.shape, np.inf)
    is_inside = np.zeros(x.shape, dtype=bool)
    for (x0, y0), (x1, y1) in zip(corners, (*corners[1:], corners[0]), strict=True):
        dx, dy = x1 - x0, y1 - y0
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx**2 + dy**2), 0, 1)
        nearest = np.minimum(nearest, np.hypot(x - x0 - along * dx, y - y0 - along * dy))
        crosses = (y0 > y) != (y1 > y)
        if dy != 0:
            is_inside ^= crosses & (x < x0 + (y - y0) * dx / dy)
    return np.where(is_inside, -nearest, nearest).astype(np.float32)
