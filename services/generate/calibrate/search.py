"""A bounded search for the settings of the calibration that help one checkpoint (`fovea calibrate`).

It has three steps, each with its own questions, none of which are used in evaluation:

1. All layers and heads of some prompts are measured at once. Which layers' relevance finds a gold document in the
   middle is then arithmetic (Recall@1 and @3), and its spread over the documents gives the scale of t.
2. Every combination of the best of these with intervened layers, t and calibrated rows answers a chunk of questions;
   the best combinations answer the next chunk, until a few are left.
3. These finalists, which differ from each other, answer the held-out questions, best first. The first one that raises
   accuracy with gold in the middle, and does not lower the mean over all positions, is the profile; if none does,
   calibration is off.

A data set may have unanswerable questions too. They have no place, so they count in the average alone, where refusals
weigh as much as answers: a profile whose answers are better because it never refuses is no gain.

Shapes: L layers, H heads, K documents.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from services.generate.calibration import relevance
from services.generate.model.profile import BiasKind, CalibrationProfile, RelScope, RowScope, SpanRule, paper_profile
from services.generate.retrieval_heads import (
    Head,
    HeadScore,
    best_heads,
    contrastive_scores,
    query_focused_scores,
)


def _mean(recalls: Sequence[Mapping[int, float]], shares: Sequence[float]) -> dict[int, float]:
    return {depth: sum(share * one[depth] for share, one in zip(shares, recalls, strict=True)) for depth in recalls[0]}


RECALL_DEPTHS = (1, 3)
# factors of the spread of rel over a prompt's documents: from nearly one-hot to nearly uniform
TEMPERATURE_FACTORS = tuple(2.0**power for power in range(-4, 4))
MAX_SINGLE_LAYERS = 8
KEPT_EACH_ROUND = 0.2
# layers, estimate, span and temperature, in which finalists should differ
NUM_ASPECTS = 4
# a lower average counts more than a better middle: merely moving accuracy from the ends to the middle is no gain
LOSS_WEIGHT = 5.0


@dataclass
class Score:
    """Numbers of right answers and of questions by gold position, counted from 0.

    `unanswerable` questions have no gold document; `refused` of them were answered by the refusal.
    """

    right: dict[int, int] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    refused: int = 0
    unanswerable: int = 0

    def add(self, position: int | None, *, is_right: bool) -> None:
        """Count a question; an unanswerable one has no position."""
        if position is None:
            self.refused += is_right
            self.unanswerable += 1
            return
        self.right[position] = self.right.get(position, 0) + is_right
        self.asked[position] = self.asked.get(position, 0) + 1

    def accuracy(self, positions: Collection[int] | None = None) -> float:
        """Return the unweighted mean over positions, in 0 … 1; None means all positions asked. NaN without any."""
        chosen = [one for one in sorted(self.asked) if positions is None or one in positions]
        return statistics.fmean(self.right[one] / self.asked[one] for one in chosen) if chosen else math.nan

    def mean(self) -> float:
        """Return the mean of the accuracy over positions and the share of refusals; the accuracy without any asked."""
        return (self.accuracy() + self.refused / self.unanswerable) / 2 if self.unanswerable else self.accuracy()

    @property
    def num_questions(self) -> int:
        """The number of questions with a gold document."""
        return sum(self.asked.values())


@dataclass(frozen=True, eq=False)
class Measured:
    """One prompt: Attn(k) of the last row with its documents and with dummies, (L, H, K) each, and the gold document.

    The prompt has `prompt_tokens`; `bias_tokens` were run in addition for the dummies.
    """

    attention: Tensor
    bias: Tensor
    gold: int
    prompt_tokens: int = 0
    bias_tokens: int = 0


@dataclass(frozen=True)
class RelSetting:
    """The layers that define rel, or only some `heads` in them, and its recall of gold documents.

    `recall` by depth in 0 … 1, `vanilla_recall` that of the same attention without subtracting the bias;
    `spread` is the median over prompts of rel's standard deviation over the documents, in the unit of Attn.
    """

    span_rule: SpanRule
    layers: tuple[int, ...]
    scope: RelScope
    recall: Mapping[int, float]
    vanilla_recall: Mapping[int, float]
    spread: float
    heads: tuple[Head, ...] = ()

    @property
    def merit(self) -> float:
        return sum(self.recall.values())


@dataclass(frozen=True, eq=False)
class Tried:
    """A profile, None for vanilla, and its score."""

    profile: CalibrationProfile | None
    score: Score


class Question(Protocol):
    """A question for the search: the position of its gold document, counted from 0; None if it is unanswerable."""

    @property
    def gold(self) -> int | None: ...


QuestionT = TypeVar("QuestionT", bound=Question)

# Returns for each profile, None for vanilla, which questions are answered right.
Ask = Callable[[Sequence[CalibrationProfile | None], Sequence[QuestionT]], list[list[bool]]]


def score_of(questions: Sequence[Question], answers: Sequence[bool]) -> Score:
    """The score of questions, given which were answered right."""
    score = Score()
    for question, is_right in zip(questions, answers, strict=True):
        score.add(question.gold, is_right=is_right)
    return score


def middle_positions(num_documents: int) -> tuple[int, ...]:
    """The middle position of an odd number of documents, the middle two of an even number; all of fewer than 3."""
    if num_documents < 3:
        return tuple(range(num_documents))
    return tuple(sorted({(num_documents - 1) // 2, num_documents // 2}))


def layer_ranges(num_layers: int, max_single: int = MAX_SINGLE_LAYERS) -> list[tuple[int, ...]]:
    """All runs of consecutive layers; with more than `max_single` layers, runs of as many blocks of layers."""
    num_blocks = min(num_layers, max_single)
    ends = [round(num_layers * block / num_blocks) for block in range(num_blocks + 1)]
    return [tuple(range(start, end)) for start, end in itertools.combinations(ends, 2)]


def rank_rel_settings(measured: Sequence[Measured], span_rule: SpanRule, scope: RelScope = "mean") -> list[RelSetting]:
    """Rank the runs of layers as sources of rel, best first. `measured` should have gold in the middle.

    With `per_head`, recall is the mean over layers and heads of their own recalls. Raises ValueError if nothing was
    measured.
    """
    if not measured:
        raise ValueError("no prompts were measured")
    runs = layer_ranges(measured[0].attention.shape[0])
    settings = [rel_setting(measured, span_rule, layers, scope) for layers in runs]
    # layers that attend to no document only change rel by a factor: of equals, fewer layers come first
    return sorted(settings, key=lambda setting: (-setting.merit, len(setting.layers)))


def rel_setting(
    measured: Sequence[Measured],
    span_rule: SpanRule,
    layers: tuple[int, ...],
    scope: RelScope = "mean",
    heads: tuple[Head, ...] = (),
) -> RelSetting:
    """Measure the recall and the spread of rel of these layers, or of these heads in them."""
    rels, vanilla = [], []
    for one in measured:
        rel = relevance(one.attention, one.bias, layers=layers, heads=heads, scope=scope)
        attention = relevance(one.attention, one.attention.new_zeros(()), layers=layers, heads=heads, scope=scope)
        rels.append(rel.reshape(-1, rel.shape[-1]))
        vanilla.append(attention.reshape(-1, rel.shape[-1]))
    golds = [one.gold for one in measured]
    spread = statistics.median(float(rel.std(dim=-1, correction=0).mean()) for rel in rels)
    return RelSetting(span_rule, layers, scope, _recalls(rels, golds), _recalls(vanilla, golds), spread, heads)


def _recalls(scores: Sequence[Tensor], golds: Sequence[int]) -> dict[int, float]:
    """Compute recall by depth from each prompt's (…, K) scores, as the mean over all dimensions except K."""
    recalls = {}
    for depth in RECALL_DEPTHS:
        found = [is_found(score, gold, depth) for score, gold in zip(scores, golds, strict=True)]
        recalls[depth] = statistics.fmean(float(one.float().mean()) for one in found)
    return recalls


def is_found(scores: Tensor, gold: int, depth: int) -> Tensor:
    """Whether document `gold` is among the `depth` best: (…, K) → (…) bool. A tie for the last place does not count."""
    return (scores >= scores[..., gold, None]).sum(dim=-1) <= depth


@dataclass(frozen=True)
class Limits:
    """Limits of the search: settings of rel for each span rule and scope, runs of layers, finalists.

    `head_scores` are those by which heads are chosen as sources of rel beside runs of layers.
    """

    rel_settings: int = 3
    row_scopes: tuple[RowScope, ...] = ("last", "tail")
    head_scores: tuple[HeadScore, ...] = ()
    rel_scopes: tuple[RelScope, ...] = ("mean", "per_head")
    max_layer_blocks: int = 6
    finalists: int = 5


def candidates(
    settings: Sequence[RelSetting], num_layers: int, bias: BiasKind, limits: Limits
) -> list[CalibrationProfile]:
    """The paper's settings, then every combination of settings of rel, runs of layers and t; all with `bias`.

    `settings` are the best few of each span rule and scope. Those per head apply only to their own layers. All
    calibrate the last prompt row; `narrow_down` tries other rows for those that do well.
    """
    found = [paper_profile(num_layers).model_copy(update={"bias": bias, "source": "measured"})]
    for setting in settings:
        runs = layer_ranges(num_layers, limits.max_layer_blocks) if setting.scope == "mean" else [setting.layers]
        for layers, factor in itertools.product(runs, TEMPERATURE_FACTORS):
            if setting.spread > 0:
                found.append(_candidate(setting, layers, factor, bias))
    return found


def _candidate(setting: RelSetting, layers: tuple[int, ...], factor: float, bias: BiasKind) -> CalibrationProfile:
    return CalibrationProfile(
        enabled=True,
        bias=bias,
        # a spread measured on some prompts is not more precise than two digits
        temperature=float(f"{setting.spread * factor:.1e}"),
        layers=layers,
        rel_layers=setting.layers,
        rel_heads=setting.heads,
        rel_scope=setting.scope,
        span_rule=setting.span_rule,
    )


def merit(score: Score, vanilla: Score, middle: Collection[int]) -> float:
    """Rate a profile by its gains in the middle and on average; a lower average weighs LOSS_WEIGHT more.

    Refusals of unanswerable questions count in the average (`Score.mean`).
    """
    average = score.mean() - vanilla.mean()
    return score.accuracy(middle) - vanilla.accuracy(middle) + average + LOSS_WEIGHT * min(0.0, average)


def narrow_down(
    ask: Ask[QuestionT],
    profiles: Sequence[CalibrationProfile],
    chunks: Sequence[Sequence[QuestionT]],
    middle: Collection[int],
    limits: Limits,
) -> Iterator[list[Tried]]:
    """Yield after each chunk vanilla and then every remaining profile, best first.

    A fifth of the profiles that answered a chunk, but at least `finalists`, answer the next one: the varied ones and
    then the best. Scores are over all chunks answered. Those that pass the first chunk answer it again with each other
    scope of rows.
    """
    vanilla = Tried(None, Score())
    running = [Tried(profile, Score()) for profile in profiles]
    for number, chunk in enumerate(chunks):
        _answer(ask, [vanilla, *running], chunk)
        running.sort(key=lambda tried: -merit(tried.score, vanilla.score, middle))
        if number == 0:
            siblings = _other_row_scopes(_kept(running, vanilla, middle, limits), limits.row_scopes)
            _answer(ask, siblings, chunk)
            running += siblings
            running.sort(key=lambda tried: -merit(tried.score, vanilla.score, middle))
        yield [Tried(one.profile, deepcopy(one.score)) for one in (vanilla, *running)]
        running = _kept(running, vanilla, middle, limits)


def _answer(ask: Ask[QuestionT], everyone: Sequence[Tried], chunk: Sequence[QuestionT]) -> None:
    for tried, answers in zip(everyone, ask([tried.profile for tried in everyone], chunk), strict=True):
        for question, is_right in zip(chunk, answers, strict=True):
            tried.score.add(question.gold, is_right=is_right)


def _other_row_scopes(tried: Sequence[Tried], row_scopes: Sequence[RowScope]) -> list[Tried]:
    return [
        Tried(one.profile.model_copy(update={"row_scope": row_scope}), Score())
        for one in tried
        if one.profile is not None
        for row_scope in row_scopes
        if row_scope != one.profile.row_scope
    ]


def varied(running: Sequence[Tried], vanilla: Tried, middle: Collection[int], limits: Limits) -> list[Tried]:
    """Choose the best profile and those least similar to it, at most `finalists`, best first, as in `running`.

    Neighbours of the best succeed on the same questions by the same chance, so that one trial on other questions
    decides for all of them. Each choice minimises how many of layers, estimate, span and temperature it shares with its
    most similar finalist; ties go to the best. Only profiles that rate above vanilla are chosen, and none that shares
    all four.
    """
    chosen = list(running[:1])
    others = [tried for tried in running[1:] if merit(tried.score, vanilla.score, middle) > 0]
    while others and len(chosen) < limits.finalists:
        shared = [max(_num_shared(tried, one) for one in chosen) for tried in others]
        if min(shared) == NUM_ASPECTS:
            break
        chosen.append(others.pop(shared.index(min(shared))))
    return [tried for tried in running if tried in chosen]


def _num_shared(one: Tried, other: Tried) -> int:
    """Count in how many of NUM_ASPECTS two profiles are similar: layers by their overlap, temperatures by decades."""
    a, b = one.profile, other.profile
    if a is None or b is None:
        return 0
    return sum(
        (
            _overlap(a.layers, b.layers),
            (a.bias, a.rel_scope, bool(a.rel_heads)) == (b.bias, b.rel_scope, bool(b.rel_heads))
            and _overlap(a.rel_heads or a.rel_layers, b.rel_heads or b.rel_layers),
            a.span_rule == b.span_rule,
            abs(math.log10(a.temperature / b.temperature)) < 1,
        )
    )


def _overlap(some: Collection[object], others: Collection[object]) -> bool:
    """Whether two sets have at least half of their union in common."""
    return 2 * len(set(some) & set(others)) >= len(set(some) | set(others))


def num_kept(num_running: int, limits: Limits) -> int:
    """Count the profiles that answer the next chunk, of those that answered this one."""
    return min(num_running, max(limits.finalists, math.ceil(num_running * KEPT_EACH_ROUND)))


def num_tries(num_profiles: int, limits: Limits) -> int:
    """Count the answers to the first chunk: by vanilla, by every profile, and by those kept with other rows."""
    return 1 + num_profiles + num_kept(num_profiles, limits) * sum(scope != "last" for scope in limits.row_scopes)


def _kept(running: Sequence[Tried], vanilla: Tried, middle: Collection[int], limits: Limits) -> list[Tried]:
    kept = varied(running, vanilla, middle, limits)
    kept += [tried for tried in running if tried not in kept][: num_kept(len(running), limits) - len(kept)]
    return [tried for tried in running if tried in kept]


def does_help(score: Score, vanilla: Score, middle: Collection[int]) -> bool:
    """Whether accuracy rises in the middle, and its mean over positions does not fall, with and without refusals."""
    is_kept = score.accuracy() >= vanilla.accuracy() and score.mean() >= vanilla.mean()
    return is_kept and score.accuracy(middle) > vanilla.accuracy(middle)


def rank_heads(measured: Sequence[Measured], span_rule: SpanRule, scores: Sequence[HeadScore]) -> list[RelSetting]:
    """Rank sets of heads as sources of rel, best first; none of fewer than two prompts. `measured` as for layers.

    For each score there is one setting, with the number of heads that finds most gold documents: a power of two, at
    most half of all heads. Its recall is of heads that were chosen on the other half of the prompts; the heads
    themselves, and their spread, are of all prompts.
    """
    if len(measured) < 2:
        return []
    found = [max(_settings(measured, span_rule, score), key=lambda setting: setting.merit) for score in scores]
    return sorted(found, key=lambda setting: -setting.merit)


def scores_of_heads(measured: Sequence[Measured], score: HeadScore) -> Tensor:
    """Score the heads by their rel of gold documents: (L, H).

    The temperature of `core` is rel's standard deviation over the documents, a mean over heads and prompts, because
    attention has another scale in every model.
    """
    rel = torch.stack([one.attention - one.bias for one in measured])
    gold = torch.tensor([one.gold for one in measured])
    if score == "qr":
        return query_focused_scores(rel, gold)
    spread = float(rel.std(dim=-1, correction=0).mean())
    return contrastive_scores(rel, gold, max(spread, torch.finfo(rel.dtype).tiny))


def _settings(measured: Sequence[Measured], span_rule: SpanRule, score: HeadScore) -> Iterator[RelSetting]:
    middle = len(measured) // 2
    halves = measured[:middle], measured[middle:]
    of_halves, of_all = [scores_of_heads(half, score) for half in halves], scores_of_heads(measured, score)
    number = 1
    while number <= max(1, of_all.numel() // 2):
        others = [
            _setting(other, span_rule, best_heads(own, number))
            for own, other in zip(of_halves, reversed(halves), strict=True)
        ]
        shares = [len(half) / len(measured) for half in reversed(halves)]
        yield replace(
            _setting(measured, span_rule, best_heads(of_all, number)),
            recall=_mean([one.recall for one in others], shares),
            vanilla_recall=_mean([one.vanilla_recall for one in others], shares),
        )
        number *= 2


def _setting(measured: Sequence[Measured], span_rule: SpanRule, heads: tuple[Head, ...]) -> RelSetting:
    layers = tuple(sorted({layer for layer, _ in heads}))
    return rel_setting(measured, span_rule, layers, heads=heads)
