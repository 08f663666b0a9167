"""Patches of a picture know the objects that they show."""

import torch

from services.jobs.colorshape import sample_classes
from starters.pictures.patches import covering_objects


def test_patches_know_the_object_that_covers_them() -> None:
    scenes = sample_classes([(0, 0)], 1, torch.Generator().manual_seed(0))
    scenes.center.fill_(0.5)
    scenes.radius.fill_(0.2)
    assert covering_objects(scenes, 4).view(4, 4).tolist() == [
        [-1, -1, -1, -1],
        [-1, 0, 0, -1],
        [-1, 0, 0, -1],
        [-1, -1, -1, -1],
    ]
