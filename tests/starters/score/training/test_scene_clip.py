"""The base of the starter is supervised by what scenes hold."""

from starters.score.data.scenes import generator_of, sample_scenes, scene_facts
from starters.score.training.scene_clip import side_groups


def test_what_stands_on_a_side_is_the_group_there() -> None:
    scenes = sample_scenes(100, generator_of(9, 0), pair_fraction=0.5)
    sides = side_groups(scenes)
    names = ("left of", "right of", "above", "below")
    for facts, row in zip(scene_facts(scenes), sides.tolist(), strict=True):
        if facts.relation is None:
            assert row == [-1] * 4
        else:
            own = names.index(facts.relation)
            assert row[own] == 0
            assert row[own ^ 1] == 1
            assert sorted(row) == [-1, -1, 0, 1]
