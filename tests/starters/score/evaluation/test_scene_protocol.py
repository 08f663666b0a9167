"""Held-out scenes have captions that are true, false and unique as the protocol needs them."""

from starters.score.data.scene_captions import NEGATIVE_KINDS, is_true, sentence
from starters.score.data.scenes import scene_facts
from starters.score.evaluation.scene_protocol import SceneProtocol


def test_held_out_captions_are_true_and_their_negatives_false() -> None:
    protocol = SceneProtocol("valid", 60)
    facts = scene_facts(protocol.scenes(0))
    said, wrong = protocol.captions()
    assert all(map(is_true, said, facts))
    for kind in NEGATIVE_KINDS:
        assert len(wrong[kind]) == 60
        assert not any(map(is_true, wrong[kind], facts))


def test_a_caption_to_retrieve_is_true_of_one_scene_alone() -> None:
    scenes, said = SceneProtocol("valid", 80).retrieved()
    facts = scene_facts(scenes)
    assert len({sentence(caption) for caption in said}) == 80
    for i, caption in enumerate(said):
        assert [k for k, known in enumerate(facts) if is_true(caption, known)] == [i]


def test_validation_and_test_scenes_differ() -> None:
    valid, test = (scene_facts(SceneProtocol(split, 50).scenes(0)) for split in ("valid", "test"))
    assert not set(valid) & set(test)
