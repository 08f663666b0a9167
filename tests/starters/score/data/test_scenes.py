"""Scenes are what their facts say, to the pixel, and the same wherever they are drawn."""

import torch

from services.jobs.colorshape import COLORS, SHAPES
from starters.pictures.patches import covering_objects
from starters.score.data.scene_captions import MAX_COUNT, PLACES
from starters.score.data.scenes import NUM_SLOTS, generator_of, render_scenes, sample_scenes, scene_facts

SIDE = 64


def test_a_step_of_a_seed_is_always_the_same_scenes_and_pixels() -> None:
    first, second = (sample_scenes(6, generator_of(1, 7), pair_fraction=0.5) for _ in range(2))
    assert scene_facts(first) == scene_facts(second)
    assert torch.equal(render_scenes(first, 32), render_scenes(second, 32))
    assert scene_facts(sample_scenes(6, generator_of(1, 8), pair_fraction=0.5)) != scene_facts(first)


def test_rendering_a_scene_does_not_depend_on_its_neighbours() -> None:
    scenes = sample_scenes(12, generator_of(2, 0), pair_fraction=0.5)
    together = render_scenes(scenes, 32)
    for i in (0, 5, 11):
        assert torch.equal(render_scenes(scenes.rows(torch.tensor([i])), 32)[0], together[i])


def test_there_are_as_many_objects_as_the_numbers_say() -> None:
    scenes = sample_scenes(200, generator_of(3, 0), pair_fraction=0.5)
    for facts, num_objects in zip(scene_facts(scenes), scenes.objects.num_objects.tolist(), strict=True):
        assert sum(group.count for group in facts.groups) == num_objects
    assert set(scenes.count.flatten().tolist()) == set(range(1, MAX_COUNT + 1))


def test_groups_stand_where_their_relation_says() -> None:
    scenes = sample_scenes(300, generator_of(4, 0), pair_fraction=1.0)
    slots = torch.arange(NUM_SLOTS)
    is_first = slots < scenes.count[:, :1]
    is_second = ~is_first & (slots < scenes.objects.num_objects[:, None])
    # along which axis, and whether the first group's coordinates are the smaller ones
    ways = {"left of": (0, 1), "right of": (0, -1), "above": (1, 1), "below": (1, -1)}
    for i, facts in enumerate(scene_facts(scenes)):
        assert facts.relation is not None
        axis, sign = ways[facts.relation]
        along = sign * scenes.objects.center[i, :, axis]
        assert along[is_second[i]].min() - along[is_first[i]].max() > 0.3


def test_every_object_shows_its_colour_and_covers_patches() -> None:
    scenes = sample_scenes(100, generator_of(5, 0), pair_fraction=0.5)
    objects = scenes.objects
    pixels = render_scenes(scenes, SIDE).float() / 255
    palette = torch.tensor(list(COLORS.values())) / 255
    slot = covering_objects(objects, 16)
    for i in range(100):
        seen = range(int(objects.num_objects[i]))
        assert set(slot[i][slot[i] >= 0].tolist()) == set(seen)
        for k in seen:
            if SHAPES[int(objects.shape[i, k])] != "ring":
                x, y = (objects.center[i, k] * SIDE).long().clamp(0, SIDE - 1).tolist()
                assert (pixels[i, y, x] - palette[objects.color[i, k]]).abs().max() < 0.25


def test_one_object_lies_in_its_place() -> None:
    scenes = sample_scenes(200, generator_of(6, 0), pair_fraction=0.0, max_count=1)
    for facts, (x, y) in zip(scene_facts(scenes), scenes.objects.center[:, 0].tolist(), strict=True):
        assert facts.place is not None
        column, row = PLACES.index(facts.place) % 3, PLACES.index(facts.place) // 3
        assert abs(x - (column + 0.5) / 3) < 0.11
        assert abs(y - (row + 0.5) / 3) < 0.11


def test_a_group_has_no_place() -> None:
    facts = scene_facts(sample_scenes(100, generator_of(7, 0), pair_fraction=0.3))
    assert all((f.place is None) == (len(f.groups) == 2 or f.groups[0].count > 1) for f in facts)


def test_light_changes_an_image_and_no_fact() -> None:
    scenes = sample_scenes(20, generator_of(8, 0), pair_fraction=0.5)
    lit = render_scenes(scenes, SIDE)
    scenes.light[:, 0] *= 0.9
    assert (render_scenes(scenes, SIDE).float() < lit).float().mean() > 0.8
