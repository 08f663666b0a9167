"""The search finds what helps, drops what does not, and calls nothing a gain that only moves accuracy about."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch

from services.generate.calibrate.search import (
    TEMPERATURE_FACTORS,
    Limits,
    Measured,
    Score,
    Tried,
    candidates,
    does_help,
    is_found,
    layer_ranges,
    merit,
    middle_positions,
    narrow_down,
    rank_rel_settings,
    rel_setting,
    varied,
)
from services.generate.model.profile import CalibrationProfile, paper_profile

MIDDLE = (1,)


@dataclass(frozen=True)
class Placed:
    gold: int
    number: int


def score(*shares: float, asked: int = 100) -> Score:
    return Score(
        {position: round(share * asked) for position, share in enumerate(shares)},
        dict.fromkeys(range(len(shares)), asked),
    )


def measured(gold: int, found_by: int) -> Measured:
    """Four layers of two heads over five documents; only `found_by` sees gold, under a larger bias."""
    bias = torch.rand(4, 2, 5, generator=torch.Generator().manual_seed(gold)) * 1e-2
    attention = bias.clone()
    attention[found_by, :, gold] += 1e-3
    return Measured(attention, bias, gold)


def test_relevance_is_taken_from_the_layers_that_find_gold() -> None:
    prompts = [measured(gold, found_by=2) for gold in (1, 2, 3)]
    ranking = rank_rel_settings(prompts, "newline")
    best = {setting.layers for setting in ranking if setting.recall == {1: 1.0, 3: 1.0}}
    assert best == {layers for layers in layer_ranges(4) if 2 in layers}
    assert ranking[0].vanilla_recall[1] < 1
    (alone,) = (setting for setting in ranking if setting.layers == (2,))
    # one of five documents has 1e-3, the others 0
    assert alone.spread == pytest.approx(4e-4, rel=1e-3)
    per_head = rank_rel_settings(prompts, "newline", "per_head")
    assert per_head[0].layers == (2,)
    assert per_head[0].recall[1] == 1
    with pytest.raises(ValueError, match="no prompts"):
        rank_rel_settings([], "newline")


def test_a_document_that_ties_for_the_last_place_is_not_found() -> None:
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]])
    assert is_found(scores, 0, 1).tolist() == [True, False]
    assert is_found(scores, 0, 2).tolist() == [True, True]
    assert is_found(scores, 2, 2).tolist() == [False, False]


def test_runs_of_layers_are_all_of_few_and_blocks_of_many() -> None:
    assert layer_ranges(3) == [(0,), (0, 1), (0, 1, 2), (1,), (1, 2), (2,)]
    blocks = layer_ranges(32, 4)
    assert len(blocks) == 10
    assert tuple(range(16, 32)) in blocks
    assert tuple(range(32)) in blocks


@pytest.mark.parametrize(("num_documents", "middle"), [(1, (0,)), (2, (0, 1)), (3, (1,)), (10, (4, 5)), (20, (9, 10))])
def test_the_middle_is_what_is_as_far_from_both_ends(num_documents: int, middle: tuple[int, ...]) -> None:
    assert middle_positions(num_documents) == middle


def test_candidates_have_temperatures_around_the_spread_and_the_paper_is_one_of_them() -> None:
    setting = rank_rel_settings([measured(1, found_by=2)], "text")[0]
    found = candidates([setting], 4, "tree", Limits())
    assert found[0] == paper_profile(4).model_copy(update={"bias": "tree", "source": "measured"})
    assert len(found) == 1 + 10 * len(TEMPERATURE_FACTORS)
    assert {profile.span_rule for profile in found[1:]} == {"text"}
    temperatures = {profile.temperature for profile in found[1:]}
    assert min(temperatures) < setting.spread < max(temperatures)
    per_head = rank_rel_settings([measured(1, found_by=2)], "text", "per_head")[0]
    assert all(profile.layers == (2,) for profile in candidates([per_head], 4, "tree", Limits())[1:])


def test_a_candidate_has_the_heads_of_its_setting() -> None:
    heads = ((1, 0), (2, 1))
    setting = rel_setting([measured(1, found_by=2)], "text", (1, 2), heads=heads)
    found = candidates([setting], 4, "tree", Limits())[1:]
    assert {(profile.rel_layers, profile.rel_heads) for profile in found} == {((1, 2), heads)}
    assert {profile.layers for profile in found} == set(layer_ranges(4))


def test_a_middle_that_rises_by_what_the_ends_lose_is_no_gain() -> None:
    vanilla = score(0.9, 0.5, 0.9)
    raised, moved = score(0.9, 0.6, 0.9), score(0.7, 0.8, 0.7)
    assert merit(raised, vanilla, MIDDLE) > 0 > merit(score(0.8, 0.4, 0.9), vanilla, MIDDLE)
    assert merit(raised, vanilla, MIDDLE) > merit(moved, vanilla, MIDDLE)
    assert does_help(raised, vanilla, MIDDLE)
    assert does_help(score(0.85, 0.6, 0.85), vanilla, MIDDLE)
    assert not does_help(moved, vanilla, MIDDLE)
    assert not does_help(vanilla, vanilla, MIDDLE)
    assert not does_help(score(1.0, 0.5, 1.0), vanilla, MIDDLE)


def test_accuracy_weighs_positions_alike_however_often_they_were_asked() -> None:
    counted = Score()
    for position, is_right in ((0, True), (0, True), (0, True), (2, False)):
        counted.add(position, is_right=is_right)
    assert counted.accuracy() == 0.5
    assert counted.accuracy({0}) == 1
    assert counted.num_questions == 4
    assert math.isnan(counted.accuracy({1}))


def test_refusals_weigh_as_much_as_answers_in_the_mean_and_have_no_position() -> None:
    score = Score()
    for position, is_right in [(0, True), (1, False), (None, True), (None, True), (None, True), (None, False)]:
        score.add(position, is_right=is_right)
    assert (score.num_questions, score.unanswerable, score.accuracy()) == (2, 4, 0.5)
    assert score.mean() == pytest.approx((0.5 + 0.75) / 2)
    assert Score({0: 1}, {0: 2}).mean() == 0.5


def test_a_middle_that_rises_by_what_refusals_lose_is_no_gain() -> None:
    vanilla = Score({0: 9, 1: 5, 2: 9}, dict.fromkeys(range(3), 10), refused=9, unanswerable=10)
    lost = Score({0: 9, 1: 8, 2: 9}, dict.fromkeys(range(3), 10), refused=5, unanswerable=10)
    kept = Score({0: 9, 1: 7, 2: 9}, dict.fromkeys(range(3), 10), refused=9, unanswerable=10)
    assert not does_help(lost, vanilla, (1,))
    assert does_help(kept, vanilla, (1,))
    assert merit(kept, vanilla, (1,)) > 0 > merit(lost, vanilla, (1,))


def test_profiles_that_do_badly_are_dropped_and_the_best_is_first_in_the_end() -> None:
    profiles = [
        CalibrationProfile(enabled=True, layers=(layer,), rel_layers=(0,), temperature=1e-3) for layer in range(20)
    ]
    asked = []

    def ask(some: Sequence[CalibrationProfile | None], chunk: Sequence[Placed]) -> list[list[bool]]:
        asked.append(len(some))
        # layer 13 answers everything, the others as many of ten as their number's last digit; vanilla half
        shares = [5 if one is None else 10 if one.layers == (13,) else one.layers[0] % 10 for one in some]
        return [[question.number % 10 < share for question in chunk] for share in shares]

    chunks = [[Placed(gold, number) for gold in range(3) for number in range(10)] for _ in range(3)]
    rounds = list(narrow_down(ask, profiles, chunks, MIDDLE, Limits(finalists=2)))
    # four of twenty go on and are asked with other rows as well; then five of twenty-four, then two
    assert asked == [21, 4, 6, 3]
    assert [len(one) for one in rounds] == [25, 6, 3]
    assert [one[0].score.num_questions for one in rounds] == [30, 60, 90]
    vanilla, best, second = rounds[-1]
    assert vanilla.profile is None
    assert best.profile is profiles[13]
    # that with other rows is as good, and too much like the best
    assert second.profile is profiles[9]
    assert rounds[1][2].profile == profiles[13].model_copy(update={"row_scope": "tail"})
    assert [tried.profile.layers[0] % 10 for tried in rounds[1][3:] if tried.profile is not None] == [9, 9, 9]
    assert best.score.num_questions == vanilla.score.num_questions == 90
    assert best.score.accuracy() == 1


def test_finalists_differ_in_layers_estimate_span_or_temperature_by_a_decade() -> None:
    def tried(share: float, temperature: float = 1e-3, **changes: object) -> Tried:
        fields = {"enabled": True, "layers": (2, 3), "rel_layers": (2,), "temperature": temperature, **changes}
        return Tried(CalibrationProfile.model_validate(fields), score(1, share, 1))

    vanilla = Tried(None, score(1, 0.5, 1))
    best = tried(0.9)
    near = [tried(0.9, 2e-3), tried(0.9, row_scope="tail"), tried(0.89, layers=(2,)), tried(0.89, rel_layers=(2, 3))]
    other_layers, other_t = tried(0.8, layers=(0, 1)), tried(0.7, 1e-2)
    other_rel, other_span = tried(0.6, rel_layers=(0,)), tried(0.55, span_rule="text")
    of_heads = tried(0.6, rel_heads=((2, 0),))
    useless = tried(0.4, 1e-1, layers=(0,), rel_layers=(1,))
    running = [best, *near, other_layers, other_t, other_rel, other_span, useless]

    assert varied(running, vanilla, MIDDLE, Limits()) == [best, other_layers, other_t, other_rel, other_span]
    assert varied([best, of_heads], vanilla, MIDDLE, Limits()) == [best, of_heads]
    assert varied(running, vanilla, MIDDLE, Limits(finalists=2)) == [best, other_layers]
    all_but_span = tried(0.51, 1e-1, layers=(0,), rel_layers=(1,))
    assert varied([*running, all_but_span], vanilla, MIDDLE, Limits(finalists=2)) == [best, all_but_span]
    assert varied([best, *near], vanilla, MIDDLE, Limits()) == [best]
    assert varied([useless], vanilla, MIDDLE, Limits()) == [useless]
