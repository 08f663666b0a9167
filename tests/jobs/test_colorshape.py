"""ColorShape's scenes look as they are described, and some combinations are held out of training."""

import pytest
import torch

from services.jobs.colorshape import (
    COLORS,
    SHAPES,
    is_held_out,
    render,
    sample_classes,
    sample_scenes,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_scenes_render_to_the_same_pixels_at_any_batch_size() -> None:
    scenes = sample_classes([(0, 0), (1, 3), (2, 7)], 2, seeded())
    together = render(scenes)
    assert together.shape == (6, 64, 64, 3)
    assert torch.equal(together, render(scenes))


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=SHAPES)
def test_an_object_is_drawn_in_its_color_at_its_place(shape: int) -> None:
    scenes = sample_classes([(color, shape) for color in range(len(COLORS))], 1, seeded()).on_plain_white()
    pixels = render(scenes, 96).float() / 255
    for image, rgb, center in zip(pixels, scenes.rgb[:, 0], scenes.center[:, 0], strict=True):
        covered = (image - 0.97).abs().amax(dim=-1) > 0.15  # what is not the white background
        assert covered.any()
        assert (image[covered] - rgb).abs().median() < 0.06
        rows, columns = torch.nonzero(covered, as_tuple=True)
        middle = torch.stack([columns.float().mean(), rows.float().mean()]) / 96
        assert (middle - center).abs().max() < 0.08


def test_shapes_of_one_color_differ_in_outline() -> None:
    scenes = sample_classes([(0, shape) for shape in range(len(SHAPES))], 1, seeded()).on_plain_white()
    scenes.center.fill_(0.5)
    scenes.radius.fill_(0.3)
    scenes.angle.zero_()
    pixels = render(scenes, 96).float()
    for one in range(len(SHAPES)):
        for other in range(one):
            assert ((pixels[one] - pixels[other]).abs().amax(dim=-1) > 60).float().mean() > 0.01


def test_training_never_draws_a_held_out_combination() -> None:
    scenes = sample_scenes(4000, seeded(), pair_fraction=0.5)
    assert not is_held_out(scenes.color, scenes.shape).any()
    drawn = {(int(c), int(s)) for c, s in zip(scenes.color[:, 0], scenes.shape[:, 0], strict=True)}
    assert len(drawn) == len(COLORS) * len(SHAPES) - len(COLORS)


def test_two_objects_stand_as_their_relation_says_and_do_not_touch() -> None:
    scenes = sample_scenes(400, seeded(), pair_fraction=1.0)
    offset = scenes.center[:, 0] - scenes.center[:, 1]
    axis, sign = (scenes.relation >= 2).long(), torch.where(scenes.relation % 2 == 0, -1, 1)
    assert (offset.gather(1, axis[:, None])[:, 0] * sign > 0).all()
    assert (offset.norm(dim=1) > scenes.radius.sum(dim=1) * 0.9).all()
