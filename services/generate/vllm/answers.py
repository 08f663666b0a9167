"""Answers by vLLM, step by step as those of the own engine.

A calibrated answer is measured first, then one request of vLLM's generates it; any other answer over documents is
measured by the request that generates it. Text is made of vLLM's tokens here, so that stop strings, held back
characters and ends are those of the own engine; but for conversations with tools, which vLLM renders and reads itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from services.generate.generation.answer_text import Vocabulary
from services.generate.generation.generation import Generation, Progress, PromptFacts
from services.generate.generation.relevance import answerable_by, applied, layer_means, mean_attention
from services.generate.generation.sampling import NUM_SEEDS, TokenChoice
from services.generate.generation.sequence import new_text, scored_tokens
from services.generate.vllm.calibrator import VllmCalibrator, calibration_fields
from services.generate.vllm.client import Gone, VllmClient, documents_field, new_key, of_tenant, one_token


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
                    yield Progress(generation, piece.text, piece.tokens, num_tokens, finish_reason, first)
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
        log_odds = await self._log_odds(generation, fields, refusal.token_id)
        return answerable_by(refusal, log_odds, is_calibrated=generation.num_rerun > 0)

    async def refusal_odds(self, generation: Generation, token_id: int) -> Tensor:
        """Return the log odds of a token as the answer's first, float64."""
        fields: dict[str, Any] = {}
        if generation.num_rerun:
            _, calibration = await self._calibrator.calibrate(generation)
            fields = calibration_fields(generation, calibration)
        return await self._log_odds(generation, fields, token_id)

    async def _log_odds(self, generation: Generation, fields: dict[str, Any], token_id: int) -> Tensor:
        body = one_token(generation.prompt.input_ids, generation.tenant)
        if generation.num_rerun:
            body["vllm_xargs"] = fields
        return await log_odds_after(self._client, body, token_id)


async def log_odds_after(client: VllmClient, body: dict[str, Any], token_id: int) -> Tensor:
    """Return log p − log(1 − p) of a token after the prompt of a request for `one_token`, in float64."""
    completed = await client.complete(body, token_ids=[token_id])
    log_p = torch.tensor(dict(completed.choices[0].top)[token_id], dtype=torch.float64)
    return log_p - torch.log(-torch.expm1(log_p))


def _asked(choice: TokenChoice, generation: Generation) -> TokenChoice:
    """Leave out what vLLM adds to the most likely tokens: the chosen one."""
    return replace(choice, top=choice.top[: generation.sampling.num_logprobs or 0])
