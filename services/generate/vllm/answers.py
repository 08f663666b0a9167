"""Answers and rankings by vLLM, with the steps and scores of the own engine.

A calibrated answer is measured first, then one request of vLLM's generates it; any other answer over documents is
measured by the request that generates it. Text is made of vLLM's tokens here, so that stop strings, held back
characters and ends are those of the own engine; but for conversations with tools, which vLLM renders and reads itself.

The estimates `exact`, `single` and `query` of the bias are prompts of their own, whose beginnings vLLM's prefix cache
shares with the measured one. A branch of `tree`, which sees keys and values of two different prefixes, is no prompt, so
`exact` replaces it, which it approximates.

Shapes: L layers, L' layers that are calibrated, H heads, K documents.
"""

import asyncio
import statistics
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from services.generate.generation.answer_text import Vocabulary
from services.generate.generation.bias import EstimateKind, dummies_of
from services.generate.generation.generation import Generation, Progress, PromptFacts, ReorderedGeneration
from services.generate.generation.prompt_calibration import (
    MAX_REMEMBERED,
    PromptCalibration,
    answerable_by,
    applied,
    by_document,
    calibration_of,
    document_relevance,
    layer_means,
    mean_attention,
    needed_estimate,
)
from services.generate.generation.ranking import Ranking, ranking_of, sorting_scores
from services.generate.generation.running_batch import new_text, scored_tokens
from services.generate.generation.sampling import NUM_SEEDS, TokenChoice
from services.generate.model.profile import CalibrationProfile, DummyForm
from services.generate.prompts.ranking import RankingJob, RankMethod, prepare_ranking
from services.generate.prompts.templates import CONTENT_FREE, Prompt, filler_ids, with_question
from services.generate.vllm.client import Gone, Measured, VllmClient, documents_field, new_key, of_tenant, one_token

# For a document without tokens, whose α is 0: the plug-in takes finite numbers.
LOG_ZERO = -1e30


@dataclass(frozen=True)
class MeasuredPrompt:
    """A prompt and its bias, as measured: `attention` (L, H, K), and Attn(dummy, k) as `bias` (L, H, K), None where a
    table has it, by an estimate of `kind`. `num_passes` and `cached_tokens` are 0 where it was remembered."""

    attention: Tensor
    bias: Tensor | None
    kind: EstimateKind | None
    num_passes: int
    cached_tokens: int


@dataclass(frozen=True)
class _Wanted:
    """The key of what is measured; without a `kind` there are no prompts beside the own one."""

    prompt: Prompt
    kind: EstimateKind | None
    form: DummyForm
    tenant: str


class VllmCalibrator:
    """Measures prompts by one served model, and remembers the last ones of each tenant.

    Equal prompts that come together, such as several answers to one, are measured once.
    """

    def __init__(self, client: VllmClient, tokenizer: Any) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._filler_ids = filler_ids(tokenizer)
        self._content_free = filler_ids(tokenizer, CONTENT_FREE)
        self._remembered: OrderedDict[_Wanted, MeasuredPrompt] = OrderedDict()
        self._locks: WeakValueDictionary[_Wanted, asyncio.Lock] = WeakValueDictionary()

    async def calibrate(self, generation: Generation) -> tuple[MeasuredPrompt, PromptCalibration]:
        """Measure and calibrate the prompt of a generation whose calibration is on, with two documents or more."""
        profile, prompt = generation.calibration, generation.prompt
        assert profile is not None, "its calibration is on"
        measured = await self.measure(prompt, profile, generation.tenant)
        rel = document_relevance(profile, prompt, measured.attention, measured.bias)
        calibration = calibration_of(profile, prompt, rel, len(measured.attention))
        return measured, PromptCalibration(
            calibration, by_document(rel), measured.num_passes, measured.kind or "cached", measured.bias
        )

    async def measure(self, prompt: Prompt, profile: CalibrationProfile, tenant: str = "") -> MeasuredPrompt:
        """Measure a prompt and, unless the profile has a table of its bias, the dummies of its documents."""
        needed = needed_estimate(profile, prompt)
        kind = None if needed is None else needed[0]
        key = _Wanted(prompt, "exact" if kind == "tree" else kind, profile.dummy, tenant)
        async with self._locks.setdefault(key, asyncio.Lock()):
            found = self._remembered.get(key)
            if found is not None:
                self._remembered.move_to_end(key)
                return replace(found, num_passes=0, cached_tokens=0)
            measured = await self._measure(key)
            self._remembered[key] = measured
            if len(self._remembered) > MAX_REMEMBERED:
                self._remembered.popitem(last=False)
            return measured

    async def attention(self, prompt: Prompt, tenant: str = "") -> Measured:
        """Measure a prompt without dummies."""
        return await self._client.measure(prompt.input_ids, prompt.spans, tenant)

    async def _measure(self, wanted: _Wanted) -> MeasuredPrompt:
        # before those with dummies, which find its beginning in vLLM's prefix cache
        own = await self.attention(wanted.prompt, wanted.tenant)
        if wanted.kind is None:
            return MeasuredPrompt(own.attention, None, None, 0, own.cached_tokens)
        prompts = self._others(wanted)
        spans, tenant = wanted.prompt.spans, wanted.tenant
        found = await asyncio.gather(*(self._client.measure(input_ids, spans, tenant) for input_ids, _ in prompts))
        bias = torch.zeros_like(own.attention)
        for (_, documents), measured in zip(prompts, found, strict=True):
            bias[..., list(documents)] = measured.attention[..., list(documents)]
        return MeasuredPrompt(own.attention, bias, wanted.kind, len(prompts), own.cached_tokens)

    def _others(self, wanted: _Wanted) -> list[tuple[Sequence[int], tuple[int, ...]]]:
        """Make the prompts that a bias is measured on, each with the documents that are measured on it."""
        prompt = wanted.prompt
        if wanted.kind == "query":
            replaced = [k for k, (start, stop) in enumerate(prompt.spans) if start < stop]
            return [(with_question(prompt, self._content_free), tuple(replaced))] if replaced else []
        dummies = dummies_of(self._tokenizer, prompt, self._filler_ids, wanted.form)
        replaced = [k for k, dummy in enumerate(dummies) if dummy.input_ids]
        if not replaced:
            return []
        groups = [(k,) for k in replaced] if wanted.kind == "exact" else [tuple(replaced)]
        prompts: list[tuple[Sequence[int], tuple[int, ...]]] = []
        for group in groups:
            input_ids = list(prompt.input_ids)
            for k in group:
                start, stop = prompt.spans[k]
                input_ids[start:stop] = dummies[k].input_ids
            prompts.append((input_ids, group))
        return prompts


def calibration_fields(generation: Generation, calibration: PromptCalibration) -> dict[str, Any]:
    """Name the calibration of an answer in the plug-in's fields: α of each document, or of each layer and head too."""
    found, profile = calibration.calibration, generation.calibration
    assert profile is not None, "it is calibrated by its profile"
    log_alpha = found.log_alpha
    if log_alpha.dim() == 3:
        log_alpha = log_alpha[list(profile.layers)]
    return documents_field(generation.prompt.spans) | {
        "fovea_log_alpha": log_alpha.clamp_min(LOG_ZERO).flatten().tolist(),
        "fovea_layers": list(profile.layers),
        "fovea_first_row": len(generation.prompt.input_ids) - generation.num_rerun,
    }


class VllmAnswers:
    """Generates by one served model, whose answers end with `eos_token_ids`."""

    def __init__(
        self, client: VllmClient, calibrator: VllmCalibrator, vocabulary: Vocabulary, eos_token_ids: frozenset[int]
    ) -> None:
        self._client = client
        self._calibrator = calibrator
        self._vocabulary = vocabulary
        self._eos_token_ids = eos_token_ids

    async def answer(
        self, generation: Generation, order: Sequence[int] | None = None
    ) -> AsyncGenerator[Progress, None]:
        """Yield the steps of an answer; `order` are the documents' places in the request, if they were reordered.

        Raises what `VllmClient` raises.
        """
        facts, fields = await self._read_prompt(generation, order)
        if not generation.max_tokens:
            yield Progress(generation, "", (), 0, "length", facts)
            return
        if generation.prompt.messages:
            async for progress in self._converse(generation, facts, fields):
                yield progress
            return
        key = fields.get("fovea_measure")
        text, num_tokens = new_text(generation, self._vocabulary), 0
        body = self.request(generation, fields)
        async with aclosing(self._client.stream(body)) as chunks:
            async for choices in chunks:
                for choice in choices:
                    num_tokens += 1
                    if num_tokens == 1 and key is not None:
                        facts = await self._with_attention(facts, generation, key)
                    is_end = choice.token_id in self._eos_token_ids and not generation.ignore_eos
                    piece, finish_reason = text.take(
                        self._vocabulary.token(_asked(choice, generation)),
                        is_end=is_end,
                        is_last=num_tokens == generation.max_tokens,
                    )
                    first = facts if num_tokens == 1 else None
                    said = (piece.text, piece.tokens, num_tokens, finish_reason, first)
                    yield Progress(generation, *said, stop_string=text.stop_string)
                    if finish_reason is not None:
                        return
        # as it ends what runs when it is stopped
        raise Gone("vLLM ended an answer before its end.")

    def request(self, generation: Generation, fields: dict[str, Any]) -> dict[str, Any]:
        """Make the completion request for an answer, with every option that vLLM would take from elsewhere."""
        sampling = generation.sampling
        body: dict[str, Any] = {
            "prompt": list(generation.prompt.input_ids),
            "max_tokens": generation.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            # ends are those of our configuration alone
            "ignore_eos": True,
            "stop_token_ids": [] if generation.ignore_eos else sorted(self._eos_token_ids),
            **of_tenant(generation.tenant),
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed % NUM_SEEDS  # -1 is no seed there
        if sampling.num_logprobs is not None:
            body["logprobs"] = sampling.num_logprobs
        if sampling.logit_bias:
            body["logit_bias"] = {str(token_id): value for token_id, value in sampling.logit_bias}
        return body | dict(generation.for_vllm) | ({"vllm_xargs": fields} if fields else {})

    async def _converse(
        self, generation: Generation, facts: PromptFacts, fields: dict[str, Any]
    ) -> AsyncGenerator[Progress, None]:
        """Yield the steps of an answer by vLLM's own chat, which reads the calls of tools; all in one, if not streamed.

        vLLM refuses it if its prompt has another length, where the documents would be elsewhere.
        """
        prompt, num_logprobs = generation.prompt, generation.sampling.num_logprobs
        if fields:
            fields = {**fields, "fovea_num_prompt_tokens": len(prompt.input_ids)}
        body = self.request(generation, fields) | {"messages": list(prompt.messages), "stop": list(generation.stop)}
        del body["prompt"]
        if num_logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": num_logprobs}
        key, first = fields.get("fovea_measure"), True
        ends: frozenset[int] = frozenset() if generation.ignore_eos else self._eos_token_ids
        async with aclosing(self._client.converse(body)) as parts:
            async for part in parts:
                if first and key is not None:
                    facts = await self._with_attention(facts, generation, key)
                choices = [one for one in part.choices if one.token_id not in ends]
                yield Progress(
                    generation,
                    part.text,
                    tuple(self._vocabulary.token(_asked(choice, generation)) for choice in choices),
                    part.num_tokens,
                    part.finish_reason,
                    facts if first else None,
                    part.tool_calls,
                )
                first = False
                if part.finish_reason is not None:
                    return
        raise Gone("vLLM ended an answer before its end.")

    async def _read_prompt(
        self, generation: Generation, order: Sequence[int] | None
    ) -> tuple[PromptFacts, dict[str, Any]]:
        """Measure and calibrate the prompt: the facts, and the plug-in's fields for the answer."""
        prompt, fields = generation.prompt, {}
        attention, calibration, cached_tokens = None, None, 0
        if generation.num_rerun:
            measured, calibration = await self._calibrator.calibrate(generation)
            attention, cached_tokens = measured.attention, measured.cached_tokens
            fields = calibration_fields(generation, calibration)
        elif prompt.spans:
            fields = {**documents_field(prompt.spans), "fovea_measure": new_key()}
        scored, answerable = await asyncio.gather(self._scored(generation), self._answerable(generation, fields))
        facts = PromptFacts(
            prompt_tokens=len(prompt.input_ids),
            cached_tokens=cached_tokens,
            attention=mean_attention(generation.calibration, attention),
            relevance=calibration.relevance if calibration is not None else None,
            calibration_passes=calibration.num_passes if calibration is not None else 0,
            applied=applied(generation.calibration, calibration),
            order=tuple(range(len(prompt.spans)) if order is None else order),
            echo=generation.echo,
            scored=() if scored is None else scored_tokens(generation, scored, self._vocabulary),
            answerable=answerable,
            by_layer=layer_means(generation, attention, calibration),
        )
        return facts, fields

    async def _with_attention(self, facts: PromptFacts, generation: Generation, key: str) -> PromptFacts:
        attention = await self._client.take_attention(key)
        by_layer = layer_means(generation, attention, None)
        return replace(facts, attention=mean_attention(generation.calibration, attention), by_layer=by_layer)

    async def _scored(self, generation: Generation) -> tuple[TokenChoice, ...] | None:
        if not generation.scores_prompt:
            return None
        body = one_token(generation.prompt.input_ids, generation.tenant)
        return (await self._client.complete(body, num_prompt_logprobs=generation.sampling.num_logprobs)).scored

    async def _answerable(self, generation: Generation, fields: dict[str, Any]) -> float | None:
        profile = generation.calibration
        refusal = profile.answerability if profile is not None else None
        if refusal is None:
            return None
        body = one_token(generation.prompt.input_ids, generation.tenant)
        if generation.num_rerun:
            body["vllm_xargs"] = fields
        log_odds = await log_odds_after(self._client, body, refusal.token_id)
        return answerable_by(refusal, log_odds, is_calibrated=generation.num_rerun > 0)


async def log_odds_after(client: VllmClient, body: dict[str, Any], token_id: int) -> Tensor:
    """Return log p − log(1 − p) of a token after the prompt of a request for `one_token`, in float64."""
    completed = await client.complete(body, token_ids=[token_id])
    log_p = torch.tensor(dict(completed.choices[0].top)[token_id], dtype=torch.float64)
    return log_p - torch.log(-torch.expm1(log_p))


def _asked(choice: TokenChoice, generation: Generation) -> TokenChoice:
    """Leave out what vLLM adds to the most likely tokens: the chosen one."""
    return replace(choice, top=choice.top[: generation.sampling.num_logprobs or 0])


class VllmRankings:
    """Ranks by one served model, whose checkpoint has `profile`."""

    def __init__(self, client: VllmClient, calibrator: VllmCalibrator, profile: CalibrationProfile) -> None:
        self._client = client
        self._calibrator = calibrator
        self._profile = profile

    async def rank(self, job: RankingJob, profile: CalibrationProfile | None = None, tenant: str = "") -> Ranking:
        """Rank prepared documents, by the checkpoint's profile unless another is given. Raises as `VllmClient` does."""
        profile = profile or self._profile
        answers: float | None = None
        if not job.prompts:
            scores: list[float] = []
        elif job.method == "attention":
            measured = await self._calibrator.attention(job.prompts[0], tenant)
            scores = list(mean_attention(profile, measured.attention))
        elif job.method == "calibrated":
            found = await asyncio.gather(*(self._relevance(prompt, profile, tenant) for prompt in job.prompts))
            scores = [score for some, _ in found for score in some]
            answers = min((one for _, one in found if one is not None), default=None)
        elif job.method == "options":
            scores = await self._after(job.prompts[0], job, profile, tenant)
        else:
            # equal documents have equal prompts, and must have equal scores
            distinct = list(dict.fromkeys(job.prompts))
            likely = await asyncio.gather(*(self._score(prompt, job, profile, tenant) for prompt in distinct))
            of_prompt = dict(zip(distinct, likely, strict=True))
            scores = [of_prompt[prompt] for prompt in job.prompts]
        return ranking_of(job, scores, profile, answers)

    async def order(self, generation: ReorderedGeneration, tokenizer: Any, max_model_len: int) -> tuple[int, ...]:
        """Order the documents of an answer by its method. Raises TooLarge as `prepare_ranking` does."""
        profile, method = generation.calibration or self._profile, generation.method
        assert method != "none", "it is reordered"
        by: RankMethod = "relevance_prompt" if method == "prompt" else method
        job = prepare_ranking(tokenizer, max_model_len, generation.query, generation.documents, by, profile)
        if method != "attention":
            return (await self.rank(job, profile, generation.tenant)).order
        (prompt,) = job.prompts
        attention = (await self._calibrator.attention(prompt, generation.tenant)).attention
        num_tokens = torch.tensor([end - start for start, end in prompt.spans])
        summed: list[float] = sorting_scores(attention, num_tokens).tolist()
        return tuple(sorted(range(len(summed)), key=summed.__getitem__))

    async def _relevance(
        self, prompt: Prompt, profile: CalibrationProfile, tenant: str
    ) -> tuple[list[float], float | None]:
        measured = await self._calibrator.measure(prompt, profile, tenant)
        rel = document_relevance(profile, prompt, measured.attention, measured.bias)
        refusal = profile.answerability
        if refusal is None:
            return list(by_document(rel)), None
        log_odds = await log_odds_after(self._client, one_token(prompt.input_ids, tenant), refusal.token_id)
        return list(by_document(rel)), answerable_by(refusal, log_odds, is_calibrated=False)

    async def _score(self, prompt: Prompt, job: RankingJob, profile: CalibrationProfile, tenant: str) -> float:
        if job.answer_ids is not None:
            yes, no = await self._after(prompt, job, profile, tenant)
            return yes - no
        body = one_token(prompt.input_ids, tenant)
        scored = (await self._client.complete(body, num_prompt_logprobs=0)).scored
        # the first token has no log-probability, so the token at `tail_start` is one place earlier
        return statistics.fmean(choice.logprob or 0.0 for choice in scored[prompt.tail_start - 1 :])

    async def _after(self, prompt: Prompt, job: RankingJob, profile: CalibrationProfile, tenant: str) -> list[float]:
        """Return the log-probabilities of the job's answers after a prompt, calibrated over documents."""
        answer_ids, body = job.answer_ids or (), one_token(prompt.input_ids, tenant)
        generation = Generation(prompt, 1, calibration=profile, tenant=tenant)
        if generation.num_rerun:
            _, calibration = await self._calibrator.calibrate(generation)
            body["vllm_xargs"] = calibration_fields(generation, calibration)
        completed = await self._client.complete(body, token_ids=answer_ids)
        found = dict(completed.choices[0].top)
        return [found[token_id] for token_id in answer_ids]
