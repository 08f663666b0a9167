"""The objects that the patches of a picture show, by which towers of images are taught.

Shapes: B pictures, N objects of each, P patches.
"""

import torch
from torch import Tensor

from services.jobs.colorshape import Scenes


def covering_objects(scenes: Scenes, grid_side: int) -> Tensor:
    """Index the object that each patch of a square grid shows, as `nearest_object` does: (B, P) int64."""
    is_drawn = torch.arange(scenes.shape.shape[1], device=scenes.rgb.device) < scenes.num_objects[:, None]
    return nearest_object(scenes.center, scenes.radius.masked_fill(~is_drawn, -torch.inf), grid_side)


def nearest_object(center: Tensor, radius: Tensor, grid_side: int) -> Tensor:
    """Index the object that each patch of a square grid shows: (B, P) int64, row by row; −1 if it shows none.

    `center` (B, N, 2) and `radius` (B, N) are fractions of the side, −∞ for slots without an object. An object counts
    if the patch's centre is within its radius plus a third of a patch.
    """
    axis = (torch.arange(grid_side, device=center.device) + 0.5) / grid_side
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    patches = torch.stack([x, y], dim=-1).view(1, 1, -1, 2)
    distance = (center[:, :, None] - patches).norm(dim=-1) - radius[..., None]  # (B, N, P)
    nearest, slot = distance.min(dim=1)
    return torch.where(nearest < 1 / (3 * grid_side), slot, -1)
