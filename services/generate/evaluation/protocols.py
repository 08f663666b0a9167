"""The dissertation's protocols of found-in-the-middle, run on one model and one data set (chapter 3, appendix B).

Every protocol returns the scores of a `Result`. Percentages are of questions, fractions are in 0 … 1.

Shapes: L layers, H heads, K documents, E examples.
"""

import math
import random
import re
import statistics
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from services.generate.calibrate.bench import AnyBench, Bench, VllmBench
from services.generate.calibrate.search import Measured, Score, is_found, middle_positions, score_of
from services.generate.calibration import relevance
from services.generate.data.questions import Example, place_gold
from services.generate.evaluation.results import MOST_USED
from services.generate.generation.bias import DummyOptions, estimated
from services.generate.generation.generation import Generation
from services.generate.generation.ranking import reorder, run_rankings
from services.generate.generation.running_batch import RunningBatch
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import TREE_SAVINGS, BiasKind, BiasTable, CalibrationProfile, SpanRule
from services.generate.prompts.ranking import RankMethod, prepare_ranking
from services.generate.prompts.templates import Prompt
from services.generate.retrieval_heads import Head, mean_over_heads


@dataclass(frozen=True)
class AnswerOptions:
    """An answer ends before one of the `stop` strings, or after `max_tokens`.

    At most `max_running` prompts run at a time, in slots of `max_cached_tokens` in total.
    """

    max_tokens: int
    stop: tuple[str, ...] = ()
    max_running: int = 64
    max_cached_tokens: int = 65_536


def answer(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    options: AnswerOptions,
    profile: CalibrationProfile | None = None,
    on_progress: Callable[[int], None] = lambda count: None,
) -> list[str]:
    """Greedy answers in the order of the prompts, calibrated by `profile` if it is on.

    `on_progress` receives the number of newly ended answers. Raises ValueError, with the number of tokens, for a prompt
    that does not fit with its answer into the cache or the model's limit.
    """
    generations = [Generation(prompt, options.max_tokens, stop=options.stop, calibration=profile) for prompt in prompts]
    batch = RunningBatch(
        model,
        max_cached_tokens=options.max_cached_tokens,
        max_running=options.max_running,
        prefix_cache_bytes=0,
        headroom_tokens=options.max_tokens,
    )
    limit = min(model.config.max_model_len, options.max_cached_tokens)
    for generation in generations:
        if generation.num_tokens > limit:
            raise ValueError(f"a prompt and its answer take {generation.num_tokens} tokens; there is room for {limit}")
    texts = {id(generation): "" for generation in generations}
    waiting = deque(generations)
    while waiting or batch.num_running:
        joining: list[Generation] = []
        # many prompts are prefilled at a time, because replacing each ended one immediately would cost a pass each
        if batch.num_running <= options.max_running // 2:
            while waiting and batch.has_room(*joining, waiting[0]):
                joining.append(waiting.popleft())
        for progress in batch.admit(joining) if joining else batch.step():
            texts[id(progress.generation)] += progress.text
            if progress.finish_reason is not None:
                on_progress(1)
    return [texts[id(generation)] for generation in generations]


Scores = dict[str, dict[str, float]]

VANILLA, CALIBRATED = "Vanilla attention", "Calibrated attention"
SORTING, PROMPT, LIKELIHOOD = "Attention sorting", "Prompt reordering", "LongLLMLingua-r_k"
AND_CALIBRATED = " + Cal."
# by reordering; the last two rank each document alone, so that gold's position makes no difference
REORDERINGS: Mapping[str, RankMethod] = {
    SORTING: "attention",
    PROMPT: "relevance_prompt",
    LIKELIHOOD: "query_likelihood",
}
METHODS = (VANILLA, CALIBRATED, *(f"{name}{end}" for name in REORDERINGS for end in ("", AND_CALIBRATED)))
RANKINGS: Mapping[str, RankMethod] = {
    "Query generation": "query_generation",
    "Relevance generation": "relevance_prompt",
    LIKELIHOOD: "query_likelihood",
}
NO_BIAS = "none"
SAVINGS: Mapping[str, Mapping[str, object]] = {
    "tree, dummies of 4 tokens": {"dummy_tokens": TREE_SAVINGS["dummy_tokens"]},
    "tree, window of 64": {"window": TREE_SAVINGS["window"]},
    "tree, both": TREE_SAVINGS,
}
RANKED_AT_ONCE = 32


@dataclass(frozen=True)
class Study:
    """A model with its questions (`bench`), the number of concurrent prompts, and the profile under test.

    A server of vLLM answers, and so has `accuracy_by_position` without reordering; the rest needs the model (`own`).
    """

    bench: AnyBench
    profile: CalibrationProfile
    options: AnswerOptions

    @property
    def own(self) -> Bench:
        """The bench of a model in this process."""
        assert isinstance(self.bench, Bench), "what vLLM cannot do is refused"
        return self.bench

    def answers(self, examples: Sequence[Example], *, is_calibrated: bool = False) -> list[str]:
        """Answer as in the service, calibrated by the profile or not."""
        profile = self.profile if is_calibrated else None
        if isinstance(self.bench, VllmBench):
            return self.bench.answers(examples, profile)
        span_rule: SpanRule = self.profile.span_rule if is_calibrated else "newline"
        prompts = self.bench.prompts(examples, span_rule)
        return answer(self.bench.model, prompts, self.options, profile, self.bench.on_progress)

    def accuracy(self, examples: Sequence[Example], *, is_calibrated: bool = False) -> float:
        """Accuracy in percent."""
        answers = self.answers(examples, is_calibrated=is_calibrated)
        right = [
            self.bench.questions.is_right(text, example.answers)
            for text, example in zip(answers, examples, strict=True)
        ]
        return 100 * statistics.fmean(right)


def num_prompts(
    protocol: str, num_examples: int, num_documents: int, positions: Sequence[int], methods: Sequence[str]
) -> int | None:
    """Return how many prompts a protocol reports as ended; None where that depends on the answers."""
    if protocol == "recall":
        return num_examples * (1 + len(RANKINGS))
    if protocol == "hypotheses":
        return num_examples * num_documents
    if protocol != "accuracy":
        return None
    alone = [name for name in _without_endings(methods) if REORDERINGS.get(name) not in (None, "attention")]
    num_alone = sum(one.removesuffix(AND_CALIBRATED) in alone for one in methods)
    return num_examples * (len(alone) + num_alone + len(positions) * (len(methods) - num_alone))


def accuracy_by_position(
    study: Study, examples: Sequence[Example], positions: Sequence[int], methods: Sequence[str] = METHODS
) -> Scores:
    """Table B.2 and Figures 3.5 and 3.6: percentage of examples answered right, by gold position.

    Methods for which the position makes no difference have a single number under `Avg.`.
    """
    scores: Scores = {}
    for name in _without_endings(methods):
        chosen = [(f"{name}{end}", bool(end)) for end in ("", AND_CALIBRATED) if f"{name}{end}" in methods]
        if name == VANILLA:
            chosen = [(one, one == CALIBRATED) for one in (VANILLA, CALIBRATED) if one in methods]
        if REORDERINGS.get(name) not in (None, "attention"):
            ordered = reordered(study, examples, REORDERINGS[name])
            scores |= {row: {"Avg.": study.accuracy(ordered, is_calibrated=how)} for row, how in chosen}
            continue
        for position in positions:
            placed = [place_gold(example, position) for example in examples]
            if name in REORDERINGS:
                placed = reordered(study, placed, "attention")
            for row, how in chosen:
                scores.setdefault(row, {})[str(position)] = study.accuracy(placed, is_calibrated=how)
    return scores


def reordered(study: Study, examples: Sequence[Example], method: RankMethod) -> list[Example]:
    """Reorder documents by a method: the most relevant first, but with attention sorting the most attended last."""
    if method == "attention":
        orders = [reorder(study.own.model, one.question, one.documents, method).order for one in examples]
    else:
        orders = [ranking for _, ranking in _rankings(study.own, examples, method)]
    return [_in_order(example, order) for example, order in zip(examples, orders, strict=True)]


def recall_at_3(study: Study, examples: Sequence[Example], *, methods: Mapping[str, RankMethod] = RANKINGS) -> Scores:
    """Table 3.3: the share of examples in which gold, placed in the middle, is among the three best documents.

    Attention is a mean over all layers and heads; attention and rel over those of the profile are added if these are
    not all.
    """
    middle = (len(examples[0].documents) - 1) // 2
    placed = [place_gold(example, middle) for example in examples]
    profile = study.profile
    measured = list(study.own.measure(placed, profile.span_rule, estimated(profile.bias), DummyOptions(profile.dummy)))
    every = tuple(range(study.own.model.config.num_layers))
    found: dict[str, list[bool]] = {}
    for layers, heads in dict.fromkeys([(every, ()), (profile.rel_layers or every, profile.rel_heads)]):
        named = ", heads" if heads else f", layers {layers[0]}–{layers[-1]}"
        where = "" if layers == every and not heads else named
        found[VANILLA + where] = [_is_gold_found(_attention(one, layers, heads), one.gold) for one in measured]
        found[CALIBRATED + where] = [_is_gold_found(_rel(one, layers, heads), one.gold) for one in measured]
    for name, method in methods.items():
        found[name] = [
            _is_gold_found(torch.tensor(scores), middle) for scores, _ in _rankings(study.own, placed, method)
        ]
    return {name: {"recall_at_3": statistics.fmean(own)} for name, own in found.items()}


def attention_and_use(study: Study, examples: Sequence[Example], seed: int) -> Scores:
    """Figures 3.3 and 3.4 and Table 3.1, over the examples that are answered wrong with gold in the middle.

    Columns are positions: mean TF-IDF cosine of the response to the document there, and mean Attn(k) over all layers
    and heads, in the original and in a shuffled order. `MOST_USED` counts in which half of the attention the document
    most similar to the response is; responses similar to none are left out. NaN if no answer is wrong.
    """
    middle = (len(examples[0].documents) - 1) // 2
    placed = [place_gold(example, middle) for example in examples]
    texts = study.answers(placed)
    is_right = study.bench.questions.is_right
    wrong = [
        (example, text) for example, text in zip(placed, texts, strict=True) if not is_right(text, example.answers)
    ]
    scores: Scores = {}
    original = [example for example, _ in wrong]
    shuffled = [_shuffled(example, random.Random(f"{seed} {place}")) for place, example in enumerate(original)]
    halves = {"Highest": 0.0, "Lowest": 0.0}
    for order, some in (("original order", original), ("shuffled order", shuffled)):
        responses = [text for _, text in wrong] if some is original else study.answers(some)
        likeness = [
            similarities(response, [f"{document.title} {document.text}" for document in example.documents])
            for response, example in zip(responses, some, strict=True)
        ]
        attention = [one.mean(dim=(0, 1)).tolist() for one in study.own.attention(some, "newline")]
        scores[f"TF-IDF, {order}"] = _means(likeness)
        scores[f"Attention, {order}"] = _means(attention)
        if some is original:
            for own, weights in zip(likeness, attention, strict=True):
                if max(own) > 0:
                    is_high = is_in_attended_half(weights, own.index(max(own)))
                    halves["Highest" if is_high else "Lowest"] += 1
    return {**scores, MOST_USED: halves}


def attention_everywhere(study: Study, examples: Sequence[Example]) -> Tensor:
    """Attn of every document at every position, a mean over all layers and heads: (E, K documents, K positions).

    The order is rotated through all positions, so that each example takes K prompts.
    """
    num_documents = len(examples[0].documents)
    attention = torch.empty(len(examples), num_documents, num_documents)
    for turn in range(num_documents):
        order = [(place + turn) % num_documents for place in range(num_documents)]
        turned = [_in_order(example, order) for example in examples]
        for number, measured in enumerate(study.own.attention(turned, "newline")):
            attention[number, order, range(num_documents)] = measured.mean(dim=(0, 1)).to(attention)
    return attention


def hypotheses(study: Study, examples: Sequence[Example]) -> Scores:
    """Tables 3.2 and B.1: how often the two conditions hold, and how well each model of attention orders documents.

    There is no log-linear row if a document was not attended at all.
    """
    attention = attention_everywhere(study, examples).double().numpy()
    matrices = list(attention)
    scores = {
        "Condition 1": {"share": condition_1(matrices)},
        "Condition 2": {"share": condition_2(matrices)},
        "Linear": {"spearman": rank_correlation(matrices, "linear")},
    }
    if (attention > 0).all():
        scores["Log-linear"] = {"spearman": rank_correlation(matrices, "log-linear")}
    return scores


@dataclass
class _Estimate:
    """Sums of the results of one estimate of the bias."""

    bias: list[float] = field(default_factory=list)
    rel: list[float] = field(default_factory=list)
    found: list[bool] = field(default_factory=list)
    tokens: int = 0
    prompt_tokens: int = 0


def compare_estimates(
    study: Study, examples: Sequence[Example], tables: Sequence[BiasTable], kinds: Sequence[BiasKind]
) -> Scores:
    """Compare each estimate of the bias with the paper's, under the profile's other settings.

    `examples` have their gold documents at the positions to measure; `tables` are for `cached`. Spearman's ρ of bias
    and of rel with those of `exact` are means over prompts; Recall@3 is of examples with gold in the middle; accuracies
    are in percent. Costs are tokens run: of the estimate relative to `exact`'s own, and of prompt and estimate together
    in prefills of the prompt. Rows of `tree` with a longer name are its savings; `none` subtracts no bias.
    """
    profile = study.profile.model_copy(update={"rel_scope": "mean"})
    num_documents = len(examples[0].documents)
    middle = middle_positions(num_documents)
    exact = list(study.own.measure(examples, profile.span_rule, "exact", DummyOptions(profile.dummy)))
    nothing = BiasTable(bucket=1, attention=(0.0,) * num_documents, num_prompts=1)
    full = profile.model_copy(update={"dummy_tokens": None, "window": None})
    variants: dict[str, CalibrationProfile] = {
        **{kind: full.model_copy(update={"bias": kind, "tables": tuple(tables)}) for kind in kinds},
        **{name: full.model_copy(update={"bias": "tree", **saving}) for name, saving in SAVINGS.items()},
        NO_BIAS: profile.model_copy(update={"bias": "cached", "tables": (nothing,)}),
    }
    answers = study.own.ask([None, *variants.values()], examples)
    vanilla, *others = [score_of(examples, one) for one in answers]
    scores: Scores = {"vanilla": _accuracies(vanilla, middle)}
    exact_tokens = sum(one.bias_tokens for one in exact)
    for (name, variant), score in zip(variants.items(), others, strict=True):
        estimate = _compared(study, examples, exact, variant)
        scores[name] = {
            "bias_spearman": _mean(estimate.bias),
            "rel_spearman": _mean(estimate.rel),
            "recall_at_3": _mean(estimate.found),
            **_accuracies(score, middle),
            "relative_cost": estimate.tokens / exact_tokens,
            "prefills": 1 + estimate.tokens / estimate.prompt_tokens,
        }
    return {
        row: {column: value for column, value in columns.items() if not math.isnan(value)}
        for row, columns in scores.items()
    }


def _accuracies(score: Score, middle: Collection[int]) -> dict[str, float]:
    """Accuracy in percent: over all positions, of the middle ones, and of the first and last."""
    places = {
        "average": None,
        "middle": middle,
        "ends": {min(score.asked), max(score.asked)},
    }
    return {name: 100 * score.accuracy(chosen) for name, chosen in places.items()}


def _compared(
    study: Study, examples: Sequence[Example], exact: Sequence[Measured], profile: CalibrationProfile
) -> _Estimate:
    mean = partial(mean_over_heads, layers=profile.rel_layers, heads=profile.rel_heads)
    middle = middle_positions(len(examples[0].documents))
    sums = _Estimate()
    for one, own in zip(exact, _measured_again(study, examples, exact, profile), strict=True):
        wanted, attention, bias = mean(one.bias), mean(one.attention), mean(own.bias)
        sums.bias.append(_spearman(bias, wanted))
        sums.rel.append(_spearman(attention - bias, attention - wanted))
        if one.gold in middle:
            sums.found.append(_is_gold_found(attention - bias, one.gold))
        sums.tokens += own.bias_tokens
        sums.prompt_tokens += own.prompt_tokens
    return sums


def _measured_again(
    study: Study, examples: Sequence[Example], exact: Sequence[Measured], profile: CalibrationProfile
) -> Iterator[Measured]:
    """Measure again with the profile's estimate of the bias; a cached estimate runs no tokens."""
    if profile.bias == "exact":
        yield from exact
    elif profile.bias != "cached":
        yield from study.own.measure(examples, profile.span_rule, profile.bias, DummyOptions.of(profile))
    else:
        prompts = study.own.prompts(examples, profile.span_rule)
        for one, prompt in zip(exact, prompts, strict=True):
            table = profile.cached_attention([end - start for start, end in prompt.spans])
            if table is None:
                raise ValueError(f"there is no table of the bias for {len(prompt.spans)} documents")
            yield replace(one, bias=torch.tensor(table).expand_as(one.bias), bias_tokens=0)


def _spearman(one: Tensor, other: Tensor) -> float:
    return spearman(one.double().numpy(), other.double().numpy())


def _rankings(
    bench: Bench, examples: Sequence[Example], method: RankMethod
) -> Iterator[tuple[tuple[float, ...], tuple[int, ...]]]:
    """Yield scores and order of each example's documents, computed for several examples together."""
    model = bench.model
    for start in range(0, len(examples), RANKED_AT_ONCE):
        some = examples[start : start + RANKED_AT_ONCE]
        jobs = [
            prepare_ranking(model.tokenizer, model.config.max_model_len, one.question, one.documents, method)
            for one in some
        ]
        yield from ((ranking.scores, ranking.order) for ranking in run_rankings(model, jobs))
        bench.on_progress(len(some))


def _without_endings(methods: Sequence[str]) -> list[str]:
    """List the distinct methods, without the suffix for calibration."""
    return list(dict.fromkeys(VANILLA if one == CALIBRATED else one.removesuffix(AND_CALIBRATED) for one in methods))


def _in_order(example: Example, order: Sequence[int]) -> Example:
    """Reorder the documents; `order` contains their current places."""
    return replace(
        example, documents=tuple(example.documents[place] for place in order), gold=list(order).index(example.gold)
    )


def _shuffled(example: Example, generator: random.Random) -> Example:
    order = list(range(len(example.documents)))
    generator.shuffle(order)
    return _in_order(example, order)


def _attention(measured: Measured, layers: Sequence[int], heads: Sequence[Head]) -> Tensor:
    return mean_over_heads(measured.attention, layers=layers, heads=heads)


def _rel(measured: Measured, layers: Sequence[int], heads: Sequence[Head]) -> Tensor:
    return relevance(measured.attention, measured.bias, layers=layers, heads=heads)


def _is_gold_found(scores: Tensor, gold: int) -> bool:
    return bool(is_found(scores, gold, 3))


def _means(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    return {str(place): _mean(column) for place, column in enumerate(zip(*rows, strict=True))}


def _mean(values: Sequence[float]) -> float:
    """Mean of the values that are not NaN; NaN if there are none."""
    numbers = [float(value) for value in values if not math.isnan(value)]
    return statistics.fmean(numbers) if numbers else math.nan


WORD = re.compile(r"\b\w\w+\b")


def similarities(response: str, documents: Sequence[str]) -> list[float]:
    """Cosines in 0 … 1 of the response to each of K documents; 0 if either has no word of two letters or more.

    The dissertation names no vectoriser (Figure 3.3 and Table 3.1). This one counts and weights terms like
    scikit-learn's default, fitted on the documents and the response together.
    """
    counts = [Counter(WORD.findall(text.lower())) for text in (*documents, response)]
    occurrences = Counter(word for count in counts for word in count)
    # as if one more text contained every word once, so that no weight is 0 or infinite
    weights = {word: math.log((1 + len(counts)) / (1 + number)) + 1 for word, number in occurrences.items()}
    *vectors, asked = [_unit({word: number * weights[word] for word, number in count.items()}) for count in counts]
    return [math.fsum(weight * vector.get(word, 0.0) for word, weight in asked.items()) for vector in vectors]


def _unit(vector: Mapping[str, float]) -> Mapping[str, float]:
    length = math.hypot(*vector.values())
    return {word: weight / length for word, weight in vector.items()}


Array = NDArray[np.float64]
Form = Literal["linear", "log-linear"]


def condition_1(examples: Sequence[Array]) -> float:
    """The share of (two documents, two positions) where both documents order the positions alike, 0 to 1.

    `examples` are matrices (D, K), pooled. A tie counts against the condition, also if both documents tie. Raises
    ValueError if no example has two documents and two positions.
    """
    return _agreement([np.asarray(attention).T for attention in examples])


def condition_2(examples: Sequence[Array]) -> float:
    """The share of (two documents, two positions) where the documents' order is the same at both; as `condition_1`."""
    return _agreement(list(examples))


def rank_correlation(examples: Sequence[Array], form: Form) -> float:
    """Spearman's ρ of the documents' difference at one position with that at another (Table B.1), −1 to 1.

    Over quadruplets of all `examples` (D, K) together. NaN if all differences of one side are equal. Raises ValueError
    if there is no quadruplet and, with `log-linear`, for attention without a logarithm.
    """
    sides = [_differences(_values(attention, form)) for attention in examples]
    one, other = (np.concatenate([side[i].ravel() for side in sides] or [np.empty(0)]) for i in (0, 1))
    if one.size == 0:
        raise ValueError("two documents at two positions are needed")
    return spearman(one, other)


def spearman(one: Array, other: Array) -> float:
    """Spearman's rank correlation of two vectors of equal length; ties take their mean rank. NaN if one is constant."""
    first, second = (ranks - ranks.mean() for ranks in (rankdata(one), rankdata(other)))
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else float("nan")


def is_in_attended_half(attention: Sequence[float], document: int) -> bool:
    """Whether a document is among the ⌈K/2⌉ most attended (Table 3.1); of equal ones, the earlier come first."""
    order = sorted(range(len(attention)), key=lambda k: (-attention[k], k))
    return document in order[: (len(order) + 1) // 2]


def _agreement(examples: Sequence[Array]) -> float:
    differences = [_differences(np.asarray(attention, dtype=np.float64)) for attention in examples]
    agree = [np.sign(one) * np.sign(other) > 0 for one, other in differences]
    total = sum(a.size for a in agree)
    if total == 0:
        raise ValueError("two documents at two positions are needed")
    return float(sum(int(a.sum()) for a in agree) / total)


def _differences(values: Array) -> tuple[Array, Array]:
    """Compute the differences of each pair of rows at the first and second of each pair of columns, (P, P') both."""
    first, second = np.triu_indices(values.shape[0], k=1)
    left, right = np.triu_indices(values.shape[1], k=1)
    difference = values[first] - values[second]
    return difference[:, left], difference[:, right]


def _values(attention: Array, form: Form) -> Array:
    values = np.asarray(attention, dtype=np.float64)
    if form == "linear":
        return values
    if not (values > 0).all():
        raise ValueError("a document that is not attended at all has no log attention")
    return np.log(values)
