"""Calibration of a prompt's answer, computed from the attention of the prompt's last row.

The bias of each document's place is estimated (or looked up), taken off, and what remains says how the answer shall
attend. Prompts that are admitted together share the passes of their estimates.

Shapes: L layers, L' the layers that enter rel, H heads, K documents.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.generate.calibration import log_alpha, relevance
from services.generate.generation.bias import BiasEstimate, BiasJob, DummyCache, EstimateKind, TreeOptions, estimating
from services.generate.generation.passes import Passes
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import Calibration, LanguageModel
from services.generate.model.profile import BadProfile, CalibrationProfile
from services.generate.prompts.templates import Prompt, filler_ids

# Estimates that are remembered: a prompt is often asked again, and several answers to it are often wanted.
MAX_REMEMBERED = 256
# Least room for estimates that running answers share, even where less is kept for later.
MIN_SHARED_BYTES = 2**24


@dataclass(frozen=True, eq=False)
class MeasuredPrompt:
    """A prompt that is in `slot` whole, with two documents or more; `attention` (L, H, K) is Attn(k) of its last
    row as the model computes it. Estimates are remembered per `tenant`, because their number of passes is reported."""

    slot: Slot
    prompt: Prompt
    attention: Tensor
    profile: CalibrationProfile
    tenant: str = ""


@dataclass(frozen=True, eq=False)
class PromptCalibration:
    """`relevance` is rel(k), K numbers, a mean over layers and heads also where α is one a head; `num_passes` is what
    a plain implementation would have prefilled to estimate the bias."""

    calibration: Calibration
    relevance: tuple[float, ...]
    num_passes: int


@dataclass(frozen=True)
class _Wanted:
    """An estimate, to be told from others: of which prompt, how, and for whom."""

    prompt: Prompt
    kind: EstimateKind
    num_layers: int
    options: TreeOptions
    tenant: str


class PromptCalibrator:
    """Calibrates prompts of one model.

    Dummies of at most `max_dummy_bytes` are kept for questions to come, and as much of the last estimates; with 0
    neither.
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
        """Let go of the estimates that are too many; what is calibrated before shares them.

        `is_shared` keeps the last ones even if nothing is to be kept: answers are about to come that may share them.
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
        # held here: between two passes others may be remembered instead
        biases = {key: self._remembered[key] for key in wanted if key and key not in new}
        num_passes: dict[_Wanted, int] = {}
        for how, keys in _by_kind(new):
            jobs = [BiasJob(new[key].slot, key.prompt, self._filler_ids) for key in keys]
            estimates = yield from self._estimating(jobs, *how)
            for key, estimate in zip(keys, estimates, strict=True):
                biases[key] = self._remembered[key] = estimate.attention.cpu()
                num_passes[key] = estimate.num_passes
        # what one prompt has paid for, another of the same does not pay for again
        return [(biases[key], num_passes.pop(key, 0)) if key else (None, 0) for key in wanted]

    def _estimating(
        self, jobs: Sequence[BiasJob], kind: EstimateKind, num_layers: int, options: TreeOptions
    ) -> Passes[list[BiasEstimate]]:
        dummies = self._dummies if kind == "tree" else None
        return estimating(self._model, jobs, kind, num_layers=num_layers, options=options, dummy_cache=dummies)


def _by_kind(wanted: Iterable[_Wanted]) -> Iterator[tuple[tuple[EstimateKind, int, TreeOptions], list[_Wanted]]]:
    """Estimates that can be made together."""
    groups: dict[tuple[EstimateKind, int, TreeOptions], list[_Wanted]] = {}
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
    return PromptCalibration(calibration, by_document(rel), num_passes)


def needed_estimate(profile: CalibrationProfile, prompt: Prompt) -> tuple[EstimateKind, TreeOptions] | None:
    """Choose how to estimate the bias of the prompt's documents; None where the profile's tables hold it.

    Where a cached bias has no table for this number of documents, `tree` replaces it.
    """
    if _looked_up(profile, prompt) is not None:
        return None
    if profile.bias == "tree" or profile.bias == "cached":
        return "tree", TreeOptions(profile.dummy_tokens, profile.window, profile.num_sinks)
    return profile.bias, TreeOptions()


def layers_of_relevance(profile: CalibrationProfile, num_layers: int) -> tuple[int, ...]:
    """The layers that enter rel; all of a model's where the profile names none, as one that is off may."""
    return profile.rel_layers or tuple(range(num_layers))


def document_relevance(profile: CalibrationProfile, prompt: Prompt, attention: Tensor, bias: Tensor | None) -> Tensor:
    """rel(k), Eq. 3.4: (K,), or with `per_head` (L', H, K).

    `attention` (L, H, K) is Attn(k) of the prompt's last row; `bias` is Attn(dummy, k) of the first layers, at least
    up to the last that enters rel, or None to look it up. Raises BadProfile where no table is for K documents.
    """
    layers = layers_of_relevance(profile, len(attention))
    if bias is not None:
        return relevance(attention[: len(bias)].to(bias), bias, layers=layers, scope=profile.rel_scope)
    table = _looked_up(profile, prompt)
    if table is None:
        raise BadProfile(f"the profile has no table of the bias for {len(prompt.spans)} documents")
    # a table is a mean over layers and heads already
    return attention[list(layers)].mean(dim=(0, 1)) - torch.tensor(table).to(attention)


def by_document(rel: Tensor) -> tuple[float, ...]:
    """K numbers of rel (K,) or (L', H, K): the mean over layers and heads."""
    numbers: list[float] = (rel.mean(dim=(0, 1)) if rel.dim() == 3 else rel).tolist()
    return tuple(numbers)


def calibration_of(profile: CalibrationProfile, prompt: Prompt, rel: Tensor, num_layers: int) -> Calibration:
    """Calibrate the prompt's answer by α of rel, (K,) or with `per_head` (L, H, K), L = `num_layers`."""
    num_tokens = torch.tensor([end - start for start, end in prompt.spans], device=rel.device)
    alpha = log_alpha(rel, profile.temperature, num_tokens)
    if alpha.dim() == 3:
        # one per layer of the model: the layers that are intervened on are among those that enter rel
        every = alpha.new_zeros((num_layers, *alpha.shape[1:]))
        every[list(layers_of_relevance(profile, num_layers))] = alpha
        alpha = every
    return Calibration(prompt.spans, alpha, frozenset(profile.layers))


def _looked_up(profile: CalibrationProfile, prompt: Prompt) -> tuple[float, ...] | None:
    if profile.bias != "cached":
        return None
    return profile.cached_attention([end - start for start, end in prompt.spans])
