"""Captions say what they are said to say, and those that are meant to be false are."""

import itertools

import pytest
import torch

from starters.score.data.scene_captions import (
    ATTRIBUTES,
    NEGATIVE_KINDS,
    NUM_STYLES,
    Attribute,
    Facts,
    Group,
    NegativeKind,
    class_facts,
    detail,
    falsify,
    forget,
    is_true,
    only,
    scene_vocabulary,
    sentence,
)
from starters.score.data.scenes import generator_of, sample_scenes, scene_facts

RED = Group(2, "small", "red", "circle")
BLUE = Group(1, "large", "blue", "cross")
PAIR = Facts((RED, BLUE), "left of", None, "striped", "gray")
LONE = Facts((BLUE,), None, "top left", "plain", "white")


def many(pair_fraction: float) -> list[Facts]:
    return scene_facts(sample_scenes(200, generator_of(3, 0), pair_fraction=pair_fraction))


def draws(count: int) -> list[list[float]]:
    rows: list[list[float]] = torch.rand(count, 12, generator=generator_of(4, 0)).tolist()
    return rows


def test_a_caption_reads_as_plain_english() -> None:
    assert sentence(PAIR) == "two small red circles left of a large blue cross on a striped gray background"
    assert sentence(LONE) == "a large blue cross at the top left on a plain white background"
    assert sentence(LONE, 2) == "large blue cross, top left, plain white background"
    assert sentence(Facts((Group(1, None, "orange", None), Group(3, None, None, "cross")))) == (
        "an orange object and three crosses"
    )
    assert sentence(Facts((), texture="dotted")) == "a dotted background"


def test_two_groups_are_named_in_every_wording() -> None:
    assert all("two small red circles left of a large blue cross" in sentence(PAIR, s) for s in range(NUM_STYLES))


def test_a_scene_is_described_truly_by_whatever_a_caption_leaves_out() -> None:
    for facts, dice in zip(many(0.5), draws(200), strict=True):
        assert is_true(detail(facts, dice), facts)
        assert is_true(forget(facts, dice), facts)


def test_a_relation_read_from_the_other_side_is_the_opposite_one() -> None:
    assert is_true(Facts((BLUE, RED), "right of"), PAIR)
    assert not is_true(Facts((BLUE, RED), "left of"), PAIR)
    assert is_true(Facts((BLUE, RED)), PAIR)  # "and" has no side
    assert not is_true(Facts((RED, BLUE), "above"), PAIR)


@pytest.mark.parametrize("kind", NEGATIVE_KINDS)
def test_a_hard_negative_is_false_of_its_scene_and_differs_in_its_kind_alone(kind: NegativeKind) -> None:
    for facts, dice in zip(many(1.0), draws(200), strict=True):
        said = detail(facts, dice)
        wrong = falsify(said, kind, dice[4:8])
        assert wrong is not None
        assert not is_true(wrong, facts)
        words, changed = sentence(said).split(), sentence(wrong).split()
        if kind == "swap_obj":
            assert sorted(words) == sorted(changed)
        elif kind == "swap_att":
            colors_and_sizes = {word for group in said.groups for word in (group.color, group.size)}
            assert {a for a, b in zip(words, changed, strict=True) if a != b} <= colors_and_sizes | {"a", "an"}
        elif kind == "replace_rel":
            assert wrong.groups == said.groups
        elif kind == "replace_count":
            assert [group.count for group in wrong.groups] != [group.count for group in said.groups]


def test_what_a_caption_does_not_say_is_not_falsified() -> None:
    unsaid = Facts((Group(1, None, None, "star"),))
    assert [falsify(unsaid, kind, [0.5] * 4) for kind in ("swap_att", "swap_obj", "replace_rel", "replace_att")] == (
        [None] * 4
    )
    assert falsify(Facts((), texture="plain"), "replace_obj", [0.5] * 4) is None
    assert falsify(Facts((RED, BLUE)), "swap_obj", [0.5] * 4) is None  # true both ways round


def test_a_replacement_may_be_any_other_word_of_the_attribute() -> None:
    dice = [i / 20 for i in range(20)]
    found = {falsify(Facts((BLUE,)), "replace_obj", [0, d, 0, 0]) for d in dice}
    assert len(found) == 7
    assert Facts((BLUE,)) not in found


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_the_classes_of_an_attribute_differ_and_hold_every_scenes(attribute: Attribute) -> None:
    classes = class_facts(attribute)
    assert len({sentence(facts) for facts in classes}) == len(classes)
    lone = scene_facts(sample_scenes(300, generator_of(5, 0), pair_fraction=0.0, max_count=1))
    if attribute != "count":
        assert {only(facts, attribute) for facts in lone} == set(classes)
    for facts in lone:
        assert sum(is_true(said, facts) for said in classes) == 1


def test_the_small_clips_captions_tell_no_relation_and_leave_many_attributes_out() -> None:
    said = [forget(facts, dice) for facts, dice in zip(many(1.0), draws(200), strict=True)]
    assert all(facts.relation is None for facts in said)
    for name in ("size", "color", "shape"):
        unsaid = [getattr(group, name) is None for facts in said for group in facts.groups]
        assert 0.1 < sum(unsaid) / len(unsaid) < 0.8


def test_the_vocabulary_holds_every_word_of_every_caption() -> None:
    known = {word for text in scene_vocabulary() for word in text.split()}
    said = [detail(facts, dice) for facts, dice in zip(many(0.5), draws(200), strict=True)]
    captions = [sentence(facts, style).replace(",", "") for facts, style in itertools.product(said, range(NUM_STYLES))]
    assert {word for caption in captions for word in caption.split()} <= known
