"""Rankings by vLLM, with the scores of `generation.ranking`: the same prompts, measured by requests of one token each.

Shapes: L layers, H heads, K documents.
"""

import asyncio
import statistics
from typing import Any

import torch

from services.generate.generation.ranking import Ranking, ranking_of, sorting_scores
from services.generate.generation.relevance import answerable_by, by_document, document_relevance, mean_attention
from services.generate.generation.reordered import ReorderedGeneration
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.ranking import RankingJob, RankMethod, prepare_ranking
from services.generate.prompts.templates import Prompt
from services.generate.vllm.answers import log_odds_after
from services.generate.vllm.calibrator import VllmCalibrator
from services.generate.vllm.client import VllmClient, one_token


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
            scores, answers = await self._relevance(job.prompts[0], profile, tenant)
        else:
            # equal documents have equal prompts, and must have equal scores
            distinct = list(dict.fromkeys(job.prompts))
            found = await asyncio.gather(*(self._score(prompt, job, tenant) for prompt in distinct))
            of_prompt = dict(zip(distinct, found, strict=True))
            scores = [of_prompt[prompt] for prompt in job.prompts]
        return ranking_of(job, scores, profile, answers)

    async def order(self, generation: ReorderedGeneration, tokenizer: Any, max_model_len: int) -> tuple[int, ...]:
        """Order the documents of an answer by its method. Raises TooLarge as `prepare_ranking` does."""
        profile, method = generation.calibration or self._profile, generation.method
        assert method != "none", "it is reordered"
        by: RankMethod = "relevance_prompt" if method == "prompt" else method
        job = prepare_ranking(tokenizer, max_model_len, generation.query, generation.documents, by, profile.span_rule)
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

    async def _score(self, prompt: Prompt, job: RankingJob, tenant: str) -> float:
        body = one_token(prompt.input_ids, tenant)
        if job.answer_ids is not None:
            yes, no = job.answer_ids
            found = dict((await self._client.complete(body, token_ids=job.answer_ids)).choices[0].top)
            return found[yes] - found[no]
        scored = (await self._client.complete(body, num_prompt_logprobs=0)).scored
        # the first token has no log-probability, so the token at `tail_start` is one place earlier
        return statistics.fmean(choice.logprob or 0.0 for choice in scored[prompt.tail_start - 1 :])
