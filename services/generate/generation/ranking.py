"""Scores by a language model of how well each of K documents answers a question, and orders for prompts.

- `attention`: Attn(k), the mean weight on document k's tokens in the last row of a prompt of all documents;
- `calibrated`: rel(k) of it, Eq. 3.4, without the bias of a document's position;
- `query_likelihood`: LongLLMLingua's r_k, the mean log-probability of the question and a restrictive sentence after
  document k alone (its negative is the paper's mean negative log-likelihood, lower for more relevant documents);
- `query_generation`: the same for the question alone, after an instruction to write one for the document (Sun et al.,
  2023);
- `relevance_prompt`: log p(Yes) − log p(No) when asked whether document k answers the question;
- `options`, of the options of an answer in place of documents: the logit of the token that stands for option k, under
  the calibration of the documents that the prompt may have.

Attention sorting (Peysakhovich and Lerer, 2023) is an order for generation: documents by the *sum* of the weights on
their tokens, the most attended last, and again over the prompt in that order.

Shapes: K documents, L layers, H heads, T tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generate.calibration import log_alpha
from services.generate.generation.bias import BiasJob, estimating, num_estimate_tokens
from services.generate.generation.generation import Progress, Reorder, num_rerun
from services.generate.generation.passes import Passes, finish
from services.generate.generation.prefilling import prefilling, rerunning
from services.generate.generation.prompt_calibration import (
    MeasuredPrompt,
    PromptCalibrator,
    answerable,
    by_document,
    document_relevance,
    layers_of_relevance,
    needed_estimate,
)
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel, Prefill, Prefilled, Row
from services.generate.model.profile import OFF, CalibrationProfile
from services.generate.prompts.ranking import JobMethod, RankingJob, RankMethod, prepare_ranking
from services.generate.prompts.templates import Document, Prompt, filler_ids
from services.generate.retrieval_heads import mean_over_heads

# Tokens of prompts side by side in the cache; a longer prompt is alone. They run in one pass, for which the running
# answers wait, and larger passes are hardly faster.
MAX_CACHED_TOKENS = 2048


@dataclass(frozen=True)
class Ranking:
    """The documents of one question, K numbers each.

    scores: the method's own numbers, higher is better, and equal for equal documents. relevance_scores: from 0 to 1 in
    the same order, equal if they differ too little for a float: for `calibrated` the probability that the document
    answers, σ((o + rel) / t) by the profile's fit (times the probability that any document answers, if the model has a
    trained refusal), or its share α of all documents where the profile has no fit; a document's share of the attention
    for `attention`, the geometric mean of the tokens' probabilities for the likelihoods, p(Yes) among Yes and No for
    `relevance_prompt`, the probability among the options for `options`, for a reranker the sigmoid of its logit.
    order: documents from best to worst, of equal ones the earlier first. prompt_tokens: tokens of
    all prompts that were run.
    """

    scores: tuple[float, ...]
    relevance_scores: tuple[float, ...]
    order: tuple[int, ...]
    prompt_tokens: int

    @classmethod
    def of_logits(cls, logits: Sequence[float], prompt_tokens: int) -> "Ranking":
        """Rank by the logits of a reranker."""
        # one by one, as torch's sigmoid of equal numbers depends on their places in a tensor
        relevance = [math.exp(min(logit, 0.0)) / (1 + math.exp(-abs(logit))) for logit in logits]
        return cls(tuple(logits), tuple(relevance), best_first(logits), prompt_tokens)


# What answers an item: the steps of a generation, or the one ranking of a job.
ItemResult = Progress | Ranking


@dataclass(frozen=True)
class Reordering:
    """`order` are the documents' original places in their new order; `prompt_tokens` is the cost."""

    order: tuple[int, ...]
    prompt_tokens: int


def rank(
    model: LanguageModel,
    query: str,
    documents: Sequence[Document],
    method: RankMethod = "calibrated",
    profile: CalibrationProfile = OFF,
) -> Ranking:
    """Rank K documents, alone on the model. Uses the profile's span rule and settings of rel, even if it is off.

    Raises TooLarge as `prepare_ranking` does.
    """
    job = prepare_ranking(model.tokenizer, model.config.max_model_len, query, documents, method, profile)
    return run_rankings(model, [job], profile)[0]


def run_rankings(model: LanguageModel, jobs: Sequence[RankingJob], profile: CalibrationProfile = OFF) -> list[Ranking]:
    """Run prepared rankings of any methods, sharing passes among those of one kind."""
    return finish(running_rankings(model, jobs, profile))


def running_rankings(
    model: LanguageModel, jobs: Sequence[RankingJob], profile: CalibrationProfile = OFF
) -> Passes[list[Ranking]]:
    """Run `run_rankings` one pass at a time, each of at most `MAX_CACHED_TOKENS` or one prompt."""
    scores: list[list[float]] = [[] for _ in jobs]
    answered: list[float | None] = [None] * len(jobs)
    for method, run in _RUNS.items():
        asked = [(i, prompt) for i, job in enumerate(jobs) if job.method == method for prompt in job.prompts]
        prompts = [_Asked(prompt, jobs[i].answer_ids) for i, prompt in asked]
        results = yield from _in_groups(model, profile, prompts, run)
        for (i, _), some in zip(asked, results, strict=True):
            scores[i] += some.numbers
            if some.answerable is not None:
                earlier = answered[i]
                answered[i] = some.answerable if earlier is None else min(some.answerable, earlier)
    return [ranking_of(job, some, profile, answers) for job, some, answers in zip(jobs, scores, answered, strict=True)]


def ranking_of(
    job: RankingJob, scores: Sequence[float], profile: CalibrationProfile, any_answers: float | None = None
) -> Ranking:
    """Make the ranking of K scores, or 2 K in both orders, of which the lesser counts.

    A document behind one that answers is attended to as if it answered as well. `any_answers` is the probability that
    the documents answer, if it is known.
    """
    if job.is_in_both_orders:
        scores = list(map(min, scores[: job.num_documents], reversed(scores[job.num_documents :])))
    # the bias of a place is an estimate, so equal documents at two places differ a little
    equals = [[score for score, first in zip(scores, job.firsts, strict=True) if first == own] for own in job.firsts]
    scores = [sum(some) / len(some) for some in equals]
    between = _between_0_and_1(scores, job.method, profile, any_answers)
    return Ranking(tuple(scores), between, best_first(scores), job.prompt_tokens)


def num_ranking_tokens(job: RankingJob, profile: CalibrationProfile = OFF) -> int:
    """Number of tokens run for a ranking."""
    num_tokens = job.prompt_tokens
    for prompt in job.prompts if job.method in ("calibrated", "options") else ():
        num_rows = num_rerun(prompt, profile) if job.method == "options" else 0
        if num_rows or job.method == "calibrated":
            how = needed_estimate(profile, prompt)
            num_tokens += num_rows + (0 if how is None else num_estimate_tokens(prompt, *how))
    return num_tokens


def reorder(
    model: LanguageModel,
    query: str,
    documents: Sequence[Document],
    method: Reorder,
    profile: CalibrationProfile = OFF,
) -> Reordering:
    """Order documents for a prompt, calibrated or not: the most relevant first.

    `attention` is attention sorting, which puts the most attended last. Raises TooLarge as `prepare_ranking` does.
    """
    return finish(reordering(model, query, documents, method, profile))


def reordering(
    model: LanguageModel,
    query: str,
    documents: Sequence[Document],
    method: Reorder,
    profile: CalibrationProfile,
) -> Passes[Reordering]:
    """Run `reorder` one pass at a time, as in `running_rankings`."""
    if method == "none" or not documents:
        return Reordering(tuple(range(len(documents))), 0)
    if method == "attention":
        return (yield from _sorting_by_attention(model, query, documents, profile))
    by: RankMethod = "relevance_prompt" if method == "prompt" else method
    job = prepare_ranking(model.tokenizer, model.config.max_model_len, query, documents, by, profile)
    (ranking,) = yield from running_rankings(model, [job], profile)
    return Reordering(ranking.order, ranking.prompt_tokens)


def sorting_scores(attention: Tensor, num_tokens: Tensor) -> Tensor:
    """Attention sorting's score, the summed weight on a document's tokens, mean over heads and then layers.

    `attention` (L, H, K) is Attn(k), a mean over tokens; `num_tokens` (K,). Returns (K,).
    """
    return (attention * num_tokens).mean(dim=(0, 1))


def best_first(scores: Sequence[float]) -> tuple[int, ...]:
    """Places of K scores from the highest to the lowest; of equal ones, the earlier first."""
    return tuple(sorted(range(len(scores)), key=lambda k: -scores[k]))


def _sorting_by_attention(
    model: LanguageModel, query: str, documents: Sequence[Document], profile: CalibrationProfile
) -> Passes[Reordering]:
    job = prepare_ranking(model.tokenizer, model.config.max_model_len, query, documents, "attention", profile)
    prompts = [_Asked(prompt) for prompt in job.prompts]
    (measured,) = yield from _in_groups(model, profile, prompts, _summed_attention)
    # ascending, equal ones in their current order
    order = tuple(sorted(range(len(documents)), key=lambda k: measured.numbers[k]))
    return Reordering(order, job.prompt_tokens)


@dataclass(frozen=True)
class _Asked:
    """A prompt and, for a relevance prompt, the tokens of Yes and No, or those of the options of an answer."""

    prompt: Prompt
    answer_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Scores:
    """Numbers of a prompt's documents, and the probability that any of them answers, if it is known."""

    numbers: list[float]
    answerable: float | None = None


@dataclass(frozen=True, eq=False)
class _Group:
    """Prompts that share one cache, each in an empty slot of its length."""

    model: LanguageModel
    profile: CalibrationProfile
    asked: list[_Asked]
    slots: list[Slot]

    @property
    def prompts(self) -> list[tuple[Slot, Prompt]]:
        return [(slot, one.prompt) for slot, one in zip(self.slots, self.asked, strict=True)]

    def prefilled(self) -> Passes[list[Prefilled]]:
        """Run the prompts, with Attn(k) of each one's documents, (L, H, K)."""
        prompts = [Prefill(slot, prompt.input_ids, prompt.spans) for slot, prompt in self.prompts]
        return (yield from prefilling(self.model, prompts, (yield)))

    def attention(self) -> Passes[list[Tensor]]:
        """Attn(k) of each prompt's documents, (L, H, K)."""
        prefilled = yield from self.prefilled()
        return [one.attention for one in prefilled if one.attention is not None]


def _in_groups(
    model: LanguageModel,
    profile: CalibrationProfile,
    asked: Sequence[_Asked],
    run: Callable[[_Group], Passes[list[_Scores]]],
) -> Passes[list[_Scores]]:
    """Return `run`'s scores of each prompt, with as many prompts in the cache at a time as allowed."""
    # each distinct prompt runs once, because equal prompts at different places of a pass differ in their last bits, but
    # equal documents must have equal scores
    distinct = list(dict.fromkeys(asked))
    lengths = [len(one.prompt.input_ids) for one in distinct]
    scores: dict[_Asked, _Scores] = {}
    for places in _groups(lengths):
        # the longest is first, so the cache never has to move
        cache = model.new_cache(len(places) * lengths[places[0]])
        slots = [cache.open(lengths[i]) for i in places]
        some = [distinct[i] for i in places]
        came = yield from run(_Group(model, profile, some, slots))
        scores |= zip(some, came, strict=True)
    return [scores[one] for one in asked]


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of prompts, longest first, whose slots fit into the cache side by side."""
    group: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if group and (len(group) + 1) * lengths[group[0]] > MAX_CACHED_TOKENS:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _mean_attention(group: _Group) -> Passes[list[_Scores]]:
    layers = layers_of_relevance(group.profile, group.model.config.num_layers)
    measured = yield from group.attention()
    heads = group.profile.rel_heads
    return [_Scores(mean_over_heads(attention, layers=layers, heads=heads).tolist()) for attention in measured]


def _summed_attention(group: _Group) -> Passes[list[_Scores]]:
    measured = yield from group.attention()
    return [
        _Scores(sorting_scores(attention, _num_tokens(prompt).to(attention)).tolist())
        for (_, prompt), attention in zip(group.prompts, measured, strict=True)
    ]


def _relevance(group: _Group) -> Passes[list[_Scores]]:
    profile = group.profile
    prefilled = yield from group.prefilled()
    biases = yield from _biases(group)
    rels = []
    for (_, prompt), own, bias in zip(group.prompts, prefilled, biases, strict=True):
        assert own.attention is not None  # there are spans
        rel = document_relevance(profile, prompt, own.attention, bias)
        rels.append(_Scores(list(by_document(rel)), answerable(profile, own.logits)))
    return rels


def _biases(group: _Group) -> Passes[list[Tensor | None]]:
    """Estimate Attn(dummy, k) of each prompt up to the last layer that enters rel; None if it is looked up."""
    num_layers = max(layers_of_relevance(group.profile, group.model.config.num_layers)) + 1
    filler = filler_ids(group.model.tokenizer)
    biases: list[Tensor | None] = [None] * len(group.slots)
    needed = [needed_estimate(group.profile, prompt) for _, prompt in group.prompts]
    for kind, options in {one for one in needed if one is not None}:
        places = [i for i, one in enumerate(needed) if one == (kind, options)]
        jobs = [BiasJob(*group.prompts[i], filler) for i in places]
        estimates = yield from estimating(group.model, jobs, kind, num_layers=num_layers, options=options)
        for i, estimate in zip(places, estimates, strict=True):
            biases[i] = estimate.attention
    return biases


def _mean_log_probability(group: _Group) -> Passes[list[_Scores]]:
    """Average the log-probabilities of the tokens from each prompt's `tail_start` on."""
    max_tokens = yield
    # logits are as wide as the vocabulary, so the passage's own tokens get none
    beginnings = [Prefill(slot, prompt.input_ids[: prompt.tail_start]) for slot, prompt in group.prompts]
    passages = yield from prefilling(group.model, beginnings, max_tokens)
    ends = [Prefill(slot, prompt.input_ids[prompt.tail_start :], scores_all=True) for slot, prompt in group.prompts]
    questions = yield from prefilling(group.model, ends, None if max_tokens is None else (yield))
    scores = []
    for (_, prompt), passage, question in zip(group.prompts, passages, questions, strict=True):
        first = passage.logits.log_softmax(dim=-1)[prompt.input_ids[prompt.tail_start]]
        assert question.scores is not None  # it was asked for
        scores.append(_Scores([float(torch.cat([first[None], question.scores.logprobs]).mean())]))
    return scores


def _option_logits(group: _Group) -> Passes[list[_Scores]]:
    prefilled = yield from group.prefilled()
    logits = [one.logits for one in prefilled]
    measured = {
        place: MeasuredPrompt(slot, prompt, own.attention, group.profile)
        for place, ((slot, prompt), own) in enumerate(zip(group.prompts, prefilled, strict=True))
        if num_rerun(prompt, group.profile) and own.attention is not None
    }
    calibrator = PromptCalibrator(group.model, max_bytes=0)
    calibrated = yield from calibrator.calibrating(list(measured.values()))
    for (place, one), found in zip(measured.items(), calibrated, strict=True):
        rows = one.prompt.input_ids[-num_rerun(one.prompt, one.profile) :]
        logits[place] = yield from rerunning(group.model, Row(one.slot, rows, found.calibration))
    scores = []
    for asked, row in zip(group.asked, logits, strict=True):
        assert asked.answer_ids is not None  # its method has them
        scores.append(_Scores(row[list(asked.answer_ids)].tolist()))
    return scores


def _yes_over_no(group: _Group) -> Passes[list[_Scores]]:
    answers = yield from _option_logits(group)
    # the difference of log-probabilities is that of logits
    return [_Scores([yes - no]) for yes, no in (one.numbers for one in answers)]


_RUNS: dict[JobMethod, Callable[[_Group], Passes[list[_Scores]]]] = {
    "attention": _mean_attention,
    "calibrated": _relevance,
    "query_likelihood": _mean_log_probability,
    "query_generation": _mean_log_probability,
    "relevance_prompt": _yes_over_no,
    "options": _option_logits,
}


def _between_0_and_1(
    scores: Sequence[float], method: JobMethod, profile: CalibrationProfile, any_answers: float | None
) -> tuple[float, ...]:
    if not scores:
        return ()
    numbers = torch.tensor(scores, dtype=torch.float64)
    if method == "attention":
        shares = numbers / numbers.sum().clamp_min(torch.finfo(numbers.dtype).tiny)
    elif method == "calibrated":
        if (fit := profile.relevance) is not None:
            shares = ((fit.offset + numbers) / fit.temperature).sigmoid()
        else:
            shares = log_alpha(numbers, profile.temperature, torch.ones_like(numbers)).exp()
        shares = shares if any_answers is None else shares * any_answers
    elif method == "relevance_prompt":
        shares = numbers.sigmoid()
    elif method == "options":
        shares = numbers.softmax(dim=0)
    else:
        shares = numbers.exp()
    return tuple(shares.tolist())


def _num_tokens(prompt: Prompt) -> Tensor:
    return torch.tensor([end - start for start, end in prompt.spans])
