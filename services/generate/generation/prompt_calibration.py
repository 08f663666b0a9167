"""Calibration of a prompt's answer, computed from the attention of the prompt's last row.

The bias of each document's place is estimated (or looked up) and subtracted; the remaining relevance determines the
answer's attention. Prompts that are admitted together share the passes of their estimates.

Shapes: L layers, L' the layers that enter rel, H heads, K documents.
"""

import functools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog
from torch import Tensor

from services.generate.generation.bias import BiasEstimate, BiasJob, DummyCache, DummyOptions, EstimateKind, estimating
from services.generate.generation.passes import Passes
from services.generate.generation.relevance import (
    PromptCalibration,
    by_document,
    cached_bias,
    calibration_of,
    document_relevance,
)
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel
from services.generate.model.profile import CalibrationProfile
from services.generate.prompts.templates import Prompt, filler_ids

# Estimates to remember: prompts are often repeated, and several answers to a prompt are often requested.
MAX_REMEMBERED = 256
# Minimum room for estimates shared by running answers, even if less is kept for later.
MIN_SHARED_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class MeasuredPrompt:
    """A prompt that is fully in `slot`, with two documents or more; `attention` (L, H, K) is Attn(k) of its last row in
    the plain model. Estimates are remembered per `tenant`, because their number of passes is reported."""

    slot: Slot
    prompt: Prompt
    attention: Tensor
    profile: CalibrationProfile
    tenant: str = ""


@dataclass(frozen=True)
class _Wanted:
    """The key of an estimate: its prompt, method and tenant."""

    prompt: Prompt
    kind: EstimateKind
    num_layers: int
    options: DummyOptions
    tenant: str


class PromptCalibrator:
    """Calibrates prompts of one model.

    Dummies of at most `max_dummy_bytes` are kept for later questions, and the same amount of the last estimates; with
    0, neither are kept.
    """

    def __init__(self, model: LanguageModel, *, max_dummy_bytes: int) -> None:
        self._model = model
        self._max_dummy_bytes = max_dummy_bytes
        self._filler_ids = filler_ids(model.tokenizer)
        self._dummies = DummyCache(max_dummy_bytes) if max_dummy_bytes else None
        self._max_remembered = MAX_REMEMBERED if max_dummy_bytes else 0
        self._remembered: OrderedDict[_Wanted, Tensor] = OrderedDict()

    def calibrating(self, prompts: Sequence[MeasuredPrompt]) -> Passes[list[PromptCalibration]]:
        """Calibrate each prompt by its own profile."""
        estimates = yield from self._estimates(prompts)
        return [_calibrated(one, bias, num_passes) for one, (bias, num_passes) in zip(prompts, estimates, strict=True)]

    def trim(self, *, is_shared: bool = False) -> None:
        """Drop surplus estimates; prompts calibrated before this call can share them.

        `is_shared` keeps the last ones even if nothing is kept for later, because answers may soon share them.
        """
        max_number = MAX_REMEMBERED if is_shared else self._max_remembered
        max_bytes = max(self._max_dummy_bytes, MIN_SHARED_BYTES) if is_shared else self._max_dummy_bytes
        num_bytes = sum(bias.nbytes for bias in self._remembered.values())
        while len(self._remembered) > max_number or num_bytes > max_bytes:
            num_bytes -= self._remembered.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Forget all prompts and dummies."""
        self._remembered.clear()
        if self._dummies is not None:
            self._dummies = DummyCache(self._max_dummy_bytes)

    def _estimates(self, prompts: Sequence[MeasuredPrompt]) -> Passes[list[tuple[Tensor | None, int]]]:
        """Attn(dummy, k) of each prompt, (layers that ran, H, K), and the passes that it took; None for one whose
        bias is looked up."""
        wanted = [_wanted(one) for one in prompts]
        new = {key: one for key, one in zip(wanted, prompts, strict=True) if key and key not in self._remembered}
        # held here, because others may replace them in memory between two passes
        biases = {key: self._remembered[key] for key in wanted if key and key not in new}
        num_passes: dict[_Wanted, int] = {}
        for how, keys in _by_kind(new):
            jobs = [BiasJob(new[key].slot, key.prompt, self._filler_ids) for key in keys]
            estimates = yield from self._estimating(jobs, *how)
            for key, estimate in zip(keys, estimates, strict=True):
                biases[key] = self._remembered[key] = estimate.attention.cpu()
                num_passes[key] = estimate.num_passes
        # only the first of several equal prompts is charged for the passes
        return [(biases[key], num_passes.pop(key, 0)) if key else (None, 0) for key in wanted]

    def _estimating(
        self, jobs: Sequence[BiasJob], kind: EstimateKind, num_layers: int, options: DummyOptions
    ) -> Passes[list[BiasEstimate]]:
        dummies = self._dummies if kind == "tree" else None
        return estimating(self._model, jobs, kind, num_layers=num_layers, options=options, dummy_cache=dummies)


def _by_kind(wanted: Iterable[_Wanted]) -> Iterator[tuple[tuple[EstimateKind, int, DummyOptions], list[_Wanted]]]:
    """Yield groups of estimates that can be made together."""
    groups: dict[tuple[EstimateKind, int, DummyOptions], list[_Wanted]] = {}
    for one in wanted:
        groups.setdefault((one.kind, one.num_layers, one.options), []).append(one)
    yield from groups.items()


def _wanted(one: MeasuredPrompt) -> _Wanted | None:
    needed = needed_estimate(one.profile, one.prompt)
    return needed and _Wanted(one.prompt, needed[0], max(one.profile.rel_layers) + 1, needed[1], one.tenant)


def _calibrated(one: MeasuredPrompt, bias: Tensor | None, num_passes: int) -> PromptCalibration:
    attention = one.attention.cpu()
    rel = document_relevance(one.profile, one.prompt, attention, bias)
    calibration = calibration_of(one.profile, one.prompt, rel, len(attention))
    needed = needed_estimate(one.profile, one.prompt)
    estimate = needed[0] if needed else "cached"
    return PromptCalibration(calibration, by_document(rel), num_passes, estimate, bias)


@functools.cache
def _warn_of_no_table(num_documents: int) -> None:
    """Warn once for each number of documents."""
    message = "a cached bias has no table for this number of documents, and is measured in each prompt"
    structlog.get_logger(__name__).warning(message, documents=num_documents)


def needed_estimate(profile: CalibrationProfile, prompt: Prompt) -> tuple[EstimateKind, DummyOptions] | None:
    """Choose how to estimate the bias of the prompt's documents; None if the profile's tables contain it.

    `tree` replaces a cached bias without a table for this number of documents, and `query` in a prompt that does not
    say where its question is.
    """
    if cached_bias(profile, prompt) is not None:
        return None
    if profile.bias == "cached":
        _warn_of_no_table(len(prompt.spans))
    is_replaced = profile.bias == "query" and prompt.question is None
    if profile.bias == "tree" or profile.bias == "cached" or is_replaced:
        return "tree", DummyOptions.of(profile)
    return profile.bias, DummyOptions(profile.dummy)
