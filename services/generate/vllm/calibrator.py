"""Calibrations of prompts that vLLM measures: Attn(k) of the prompt, and of prompts with dummies.

`exact`, `single` and `query` are prompts of their own, whose beginnings vLLM's prefix cache shares with the measured
one. A branch of `tree`, which sees keys and values of two different prefixes, is no prompt, so `exact` replaces it,
which it approximates.

Shapes: L layers, L' layers that are calibrated, H heads, K documents.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from services.generate.generation.bias import EstimateKind, dummies_of
from services.generate.generation.generation import Generation
from services.generate.generation.prompt_calibration import MAX_REMEMBERED, needed_estimate
from services.generate.generation.relevance import (
    PromptCalibration,
    by_document,
    calibration_of,
    document_relevance,
)
from services.generate.model.profile import CalibrationProfile, DummyForm
from services.generate.prompts.templates import CONTENT_FREE, Prompt, filler_ids, with_question
from services.generate.vllm.client import Measured, VllmClient, documents_field

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
