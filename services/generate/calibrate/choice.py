"""The steps of `fovea calibrate` from questions to a profile: measure, search, compare estimates, decide, tabulate."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from services.generate.calibrate.bench import AnyBench
from services.generate.calibrate.search import (
    Limits,
    RelSetting,
    Score,
    Tried,
    candidates,
    does_help,
    merit,
    middle_positions,
    narrow_down,
    num_kept,
    num_tries,
    rank_heads,
    rank_rel_settings,
    score_of,
    varied,
)
from services.generate.data.questions import Example, Unanswerable, at_positions
from services.generate.generation.bias import DummyOptions, estimated
from services.generate.model.profile import (
    OFF,
    TREE_SAVINGS,
    BiasKind,
    BiasTable,
    CalibrationProfile,
    DummyForm,
    RelScope,
    SpanRule,
    length_bucket,
)
from services.generate.retrieval_heads import mean_over_heads

SEARCH_SHARES = (0.2, 0.3, 0.5)
# from the cheapest, `tree` first with its savings; a more expensive one is chosen only if all cheaper ones lose more
# than the tolerance
BIAS_KINDS: tuple[BiasKind, ...] = ("cached", "query", "single", "tree", "exact")
TOLERANCE = 0.01
TABLE_PROMPTS = 100
MIN_BUCKET_PROMPTS = 10


@dataclass(frozen=True)
class Plan:
    """The extent of a search. `positions` are of gold documents, counted from 0; each half asks `num_prompts`.

    `search_bias` is the estimate during the search, `bias_kinds` are those to choose among at the end; all use dummies
    of the form `dummy`.
    """

    positions: tuple[int, ...]
    num_prompts: int
    num_measured: int
    span_rules: tuple[SpanRule, ...]
    search_bias: BiasKind
    bias_kinds: tuple[BiasKind, ...]
    limits: Limits
    dummy: DummyForm = "framed"

    def middle(self, num_documents: int) -> tuple[int, ...]:
        """Return the positions in the middle or, if there are none, those nearest to it."""
        wanted = middle_positions(num_documents)
        distances = {position: min(abs(position - one) for one in wanted) for position in self.positions}
        nearest = min(distances.values())
        return tuple(position for position in self.positions if distances[position] == nearest)


@dataclass(frozen=True)
class ProfileChoice:
    """The profile, on or off, and the results that led to it.

    `rounds` have vanilla first; `estimates` and `held_out` are those of the tried finalists, vanilla first.
    """

    profile: CalibrationProfile
    rel_settings: Sequence[RelSetting]
    rounds: Sequence[Sequence[Tried]]
    estimates: Sequence[Tried]
    held_out: Sequence[Tried]


def choose_calibration(
    bench: AnyBench,
    examples: Sequence[Example],
    plan: Plan,
    on_step: Callable[[str, int], None] = lambda what, work: None,
    unanswerable: Sequence[Unanswerable] = (),
) -> ProfileChoice:
    """Choose settings on one half of the examples (gold anywhere), decide on the other half.

    Each half asks half of the unanswerable questions too, which only count in averages.

    `on_step` receives the name of each step and its number of prompts. Raises ValueError for fewer than 2 examples.
    """
    if len(examples) < 2:
        raise ValueError(
            "a calibration needs at least two questions, one to choose settings with and one to decide with"
        )
    middle = plan.middle(len(examples[0].documents))
    # the gain is expected in the middle, which has few of the positions, so it is asked three times as often
    asked = (*plan.positions, *middle, *middle)
    half = len(examples) // 2
    placed, rest = (at_positions(part, asked, plan.num_prompts) for part in (examples[:half], examples[half:]))
    cut = len(unanswerable) // 2
    search, held_out = evenly_mixed(placed, unanswerable[:cut]), evenly_mixed(rest, unanswerable[cut:])
    on_step("measuring attention", plan.num_measured * len(plan.span_rules))
    settings = _rel_settings(bench, examples[:half], middle, plan)
    found = candidates(_best(settings, plan.limits), bench.num_layers, plan.search_bias, plan.limits)
    profiles = [profile.model_copy(update={"dummy": plan.dummy}) for profile in found]
    rounds = []
    chunks = _chunks(search)
    on_step(f"trying {len(profiles)} settings", len(chunks[0]) * num_tries(len(profiles), plan.limits))
    for tried in narrow_down(bench.ask, profiles, chunks, middle, plan.limits):
        rounds.append(tried)
        if len(rounds) < len(chunks):
            following = num_kept(len(tried) - 1, plan.limits)
            on_step(f"trying the best {following}", len(chunks[len(rounds)]) * (following + 1))
    last, *running = rounds[-1]
    finalists = [tried.profile for tried in varied(running, last, middle, plan.limits) if tried.profile is not None]
    estimates: list[Tried] = []
    decided: list[Tried] = []
    for finalist in finalists:
        kinds = _kinds(finalist, plan)
        num_tabulated = len(at_positions(examples[:half][:TABLE_PROMPTS], plan.positions)) if "cached" in kinds else 0
        num_compared = 1 + len(kinds) + ("tree" in kinds)
        on_step("comparing estimates of the bias", len(search) * num_compared + num_tabulated)
        estimates = list(_by_estimate(bench, finalist, search, plan, examples[:half]))
        chosen = cheapest_as_good(estimates, middle)
        on_step("deciding on held-out questions", len(held_out) * 2)
        decided = _tried(bench, [None, chosen], held_out)
        vanilla, calibrated = decided
        if does_help(calibrated.score, vanilla.score, middle):
            profile = chosen.model_copy(update={"gain": gain(calibrated.score, vanilla.score, middle)})
            return ProfileChoice(profile, settings, rounds, estimates, decided)
    seen = {"gain": gain(decided[1].score, decided[0].score, middle)} if decided else {}
    off = OFF.model_copy(update={"dummy": plan.dummy, **seen})
    return ProfileChoice(off, settings, rounds, estimates, decided)


def gain(calibrated: Score, vanilla: Score, middle: Collection[int]) -> dict[str, float]:
    """Accuracies in 0 … 1 for the profile: means over all positions, over the middle ones, and over the first and
    last; and the share of unanswerable questions that were refused, if any were asked."""
    ends = {min(vanilla.asked), max(vanilla.asked)}
    numbers = {
        "vanilla": vanilla.accuracy(),
        "calibrated": calibrated.accuracy(),
        "middle_vanilla": vanilla.accuracy(middle),
        "middle_calibrated": calibrated.accuracy(middle),
        "ends_vanilla": vanilla.accuracy(ends),
        "ends_calibrated": calibrated.accuracy(ends),
    }
    counts = {"num_prompts": float(vanilla.num_questions)}
    if vanilla.unanswerable:
        numbers["refused_vanilla"] = vanilla.refused / vanilla.unanswerable
        numbers["refused_calibrated"] = calibrated.refused / calibrated.unanswerable
        counts["num_unanswerable"] = float(vanilla.unanswerable)
    return {name: round(value, 4) for name, value in numbers.items()} | counts


def evenly_mixed(examples: Sequence[Example], others: Sequence[Unanswerable]) -> list[Example | Unanswerable]:
    """Both kinds in one list, each in its order, so that every part of the list has about the same share of each."""
    kinds: tuple[Sequence[Example | Unanswerable], ...] = (examples, others)
    placed = [((number + 0.5) / len(some), one) for some in kinds for number, one in enumerate(some)]
    return [one for _, one in sorted(placed, key=lambda pair: pair[0])]


def cheapest_as_good(tried: Sequence[Tried], middle: Collection[int]) -> CalibrationProfile:
    """Return the cheapest of profiles with different estimates whose accuracies are within TOLERANCE of the best's.

    `tried` has vanilla first; the best is by `merit`. Raises ValueError if there is no profile.
    """
    vanilla, *others = tried
    profiles = [(one.profile, one.score) for one in others if one.profile is not None]
    if not profiles:
        raise ValueError("no estimate was tried")
    best = max(profiles, key=lambda one: merit(one[1], vanilla.score, middle))[1]
    as_good = [profile for profile, score in profiles if _is_as_good(score, best, middle)]
    return min(as_good, key=lambda profile: (BIAS_KINDS.index(profile.bias), profile.window is None))


def bias_tables(
    bench: AnyBench, examples: Sequence[Example], positions: Sequence[int], profile: CalibrationProfile
) -> Iterator[BiasTable]:
    """Compute mean Attn(dummy, k) over what enters rel, of examples with equally many documents, by length.

    A bucket with fewer than MIN_BUCKET_PROMPTS prompts is left out, unless it is the only one.
    """
    placed = at_positions(examples, positions)
    prompts = bench.prompts(placed, profile.span_rule)
    buckets: dict[int, list[list[float]]] = {}
    measurements = bench.measure(placed, profile.span_rule, estimated(profile.bias), DummyOptions(profile.dummy))
    for prompt, measured in zip(prompts, measurements, strict=True):
        bucket = length_bucket([end - start for start, end in prompt.spans])
        means = mean_over_heads(measured.bias, layers=profile.rel_layers, heads=profile.rel_heads).tolist()
        buckets.setdefault(bucket, []).append(means)
    for bucket, rows in sorted(buckets.items()):
        if len(rows) >= MIN_BUCKET_PROMPTS or len(buckets) == 1:
            attention = tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
            yield BiasTable(bucket=bucket, attention=attention, num_prompts=len(rows))


def _rel_settings(bench: AnyBench, examples: Sequence[Example], middle: Sequence[int], plan: Plan) -> list[RelSetting]:
    """Rank all settings of rel, of all span rules and scopes, best first."""
    placed = at_positions(examples, middle, plan.num_measured)
    kind = estimated(plan.search_bias)
    found: list[RelSetting] = []
    for span_rule in plan.span_rules:
        measured = list(bench.measure(placed, span_rule, kind, DummyOptions(plan.dummy)))
        for scope in plan.limits.rel_scopes:
            found += rank_rel_settings(measured, span_rule, scope)
        found += rank_heads(measured, span_rule, plan.limits.head_scores)
    # of equals, layers come before heads
    return sorted(found, key=lambda setting: (-setting.merit, bool(setting.heads), len(setting.layers)))


def _best(settings: Sequence[RelSetting], limits: Limits) -> list[RelSetting]:
    """The first few of each span rule and scope; of settings with equal results, only the first."""
    chosen: dict[tuple[SpanRule, RelScope], list[RelSetting]] = {}
    for setting in settings:
        others = chosen.setdefault((setting.span_rule, setting.scope), [])
        if len(others) < limits.rel_settings and all(one.recall != setting.recall for one in others):
            others.append(setting)
    return [setting for some in chosen.values() for setting in some]


def _chunks(examples: Sequence[Example | Unanswerable]) -> list[Sequence[Example | Unanswerable]]:
    """Split by SEARCH_SHARES, and leave out empty chunks."""
    ends = [round(len(examples) * sum(SEARCH_SHARES[: number + 1])) for number in range(len(SEARCH_SHARES))]
    starts = [0, *ends[:-1]]
    return [examples[start:end] for start, end in zip(starts, ends, strict=True) if start < end]


def _kinds(profile: CalibrationProfile, plan: Plan) -> list[BiasKind]:
    """The estimates to choose among; a cached bias has one number for all heads."""
    return [kind for kind in plan.bias_kinds if kind != "cached" or profile.rel_scope == "mean"]


def _by_estimate(
    bench: AnyBench,
    profile: CalibrationProfile,
    search: Sequence[Example | Unanswerable],
    plan: Plan,
    examples: Sequence[Example],
) -> Iterator[Tried]:
    profiles = []
    for kind in _kinds(profile, plan):
        changes: dict[str, object] = {"bias": kind}
        if kind == "cached":
            changes["tables"] = tuple(bias_tables(bench, examples[:TABLE_PROMPTS], plan.positions, profile))
        profiles.append(profile.model_copy(update=changes))
        if kind == "tree":
            profiles.append(profiles[-1].model_copy(update=TREE_SAVINGS))
    yield from _tried(bench, [None, *profiles], search)


def _tried(
    bench: AnyBench, profiles: Sequence[CalibrationProfile | None], examples: Sequence[Example | Unanswerable]
) -> list[Tried]:
    return [
        Tried(profile, score_of(examples, answers))
        for profile, answers in zip(profiles, bench.ask(profiles, examples), strict=True)
    ]


def _is_as_good(score: Score, best: Score, middle: Collection[int]) -> bool:
    return score.mean() >= best.mean() - TOLERANCE and score.accuracy(middle) >= best.accuracy(middle) - TOLERANCE
