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
import torch
from torch import Tensor

from services.generate.calibration import Calibration, log_alpha, relevance
from services.generate.generation.bias import BiasJob, DummyOptions, EstimateKind, estimating
from services.generate.generation.generation import Generation, LayerMeans
from services.generate.generation.passes import Passes
from services.generate.model.kv_cache import Slot
from services.generate.model.language_model import LanguageModel, Row
from services.generate.model.profile import OFF, Answerability, BadProfile, BiasKind, CalibrationProfile
from services.generate.prompts.templates import Prompt, filler_ids
from services.generate.retrieval_heads import mean_over_heads


@dataclass(frozen=True, eq=False)
class PromptCalibration:
    """`relevance` is rel(k), K numbers, a mean over layers and heads even if each head has its own α; `num_passes` is
    the number of prefills with which a naive implementation would estimate the bias. `estimate` is the method used,
    which can differ from the profile's `bias`. `bias` is Attn(dummy, k) of the layers that ran, (L', H, K), None if a
    table holds it."""

    calibration: Calibration
    relevance: tuple[float, ...]
    num_passes: int
    estimate: BiasKind
    bias: Tensor | None


def applied(profile: CalibrationProfile | None, calibration: PromptCalibration | None) -> CalibrationProfile | None:
    """Return the profile as it acted on a prompt; None if nothing was calibrated."""
    if profile is None or calibration is None:
        return None
    return profile.model_copy(update={"bias": calibration.estimate})


def layers_of_relevance(profile: CalibrationProfile, num_layers: int) -> tuple[int, ...]:
    """The layers that enter rel; all layers of the model if the profile has none, as it may if it is off."""
    return profile.rel_layers or tuple(range(num_layers))


def document_relevance(profile: CalibrationProfile, prompt: Prompt, attention: Tensor, bias: Tensor | None) -> Tensor:
    """rel(k), Eq. 3.4: (K,), or with `per_head` (L', H, K).

    `attention` (L, H, K) is Attn(k) of the prompt's last row; `bias` is Attn(dummy, k) of the first layers, at least
    up to the last that enters rel, or None to look it up. Raises BadProfile if there is no table for K documents.
    """
    layers = layers_of_relevance(profile, len(attention))
    if bias is not None:
        own = attention[: len(bias)].to(bias)
        return relevance(own, bias, layers=layers, heads=profile.rel_heads, scope=profile.rel_scope)
    table = cached_bias(profile, prompt)
    if table is None:
        raise BadProfile(f"the profile has no table of the bias for {len(prompt.spans)} documents")
    # a table is already a mean over layers and heads
    return mean_over_heads(attention, layers=layers, heads=profile.rel_heads) - torch.tensor(table).to(attention)


def by_document(rel: Tensor) -> tuple[float, ...]:
    """Reduce rel (K,) or (L', H, K) to K numbers: the mean over layers and heads."""
    numbers: list[float] = (rel.mean(dim=(0, 1)) if rel.dim() == 3 else rel).tolist()
    return tuple(numbers)


def mean_attention(profile: CalibrationProfile | None, attention: Tensor | None) -> tuple[float, ...]:
    """Reduce Attn(k) (L, H, K) to K numbers: the mean over what enters rel, or over all without a profile."""
    if attention is None:
        return ()
    of_rel = profile or OFF
    numbers: list[float] = mean_over_heads(attention, layers=of_rel.rel_layers or None, heads=of_rel.rel_heads).tolist()
    return tuple(numbers)


def answer_attention(
    model: LanguageModel, row: Row, spans: Sequence[tuple[int, int]], profile: CalibrationProfile | None
) -> tuple[tuple[float, ...], ...]:
    """Measure Attn(k) of an answer's rows, R times K numbers: means over what enters rel, as `mean_attention`."""
    of_rel = profile or OFF
    layers = layers_of_relevance(of_rel, model.config.num_layers)
    measured = model.attention_of(row, spans, max(layers) + 1)
    return tuple(map(tuple, mean_over_heads(measured, layers=layers, heads=of_rel.rel_heads).tolist()))


def layer_means(
    generation: Generation, attention: Tensor | None, calibration: PromptCalibration | None
) -> LayerMeans | None:
    """Reduce Attn(k) (L, H, K) and Attn(dummy, k) (L', H, K) of the first layers to means over each layer's heads.

    None unless the request asked for them.
    """
    if attention is None or not generation.explains:
        return None
    of_layers = None
    if calibration is not None and calibration.bias is not None:
        bias = calibration.bias
        of_layers = _rows(relevance(attention[: len(bias)].to(bias), bias, scope="per_head"))
    return LayerMeans(_rows(attention), of_layers)


def _rows(per_head: Tensor) -> tuple[tuple[float, ...], ...]:
    """The means of (L, H, K) over heads, L times K numbers."""
    return tuple(map(tuple, per_head.mean(dim=1).tolist()))


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


def answerable(
    profile: CalibrationProfile | None, first_logits: Tensor, *, is_calibrated: bool = False
) -> float | None:
    """Return the probability that the documents answer, from the logits (V,) of an answer's first token.

    `is_calibrated` says whether calibration acted on the logits. None without a profile of a trained refusal. See
    `Answerability` for the equation.
    """
    refusal = profile.answerability if profile is not None else None
    if refusal is None or refusal.token_id >= len(first_logits):
        return None
    return answerable_by(refusal, refusal_log_odds(first_logits, refusal.token_id), is_calibrated=is_calibrated)


def refusal_of(profile: CalibrationProfile | None) -> str | None:
    """The answer that the model was trained to give where no document answers."""
    return None if profile is None or profile.answerability is None else profile.answerability.refusal


def answerable_by(refusal: Answerability, log_odds: Tensor, *, is_calibrated: bool) -> float:
    """Return the probability that the documents answer, from the log odds of the refusal's first token."""
    fit = refusal.fit(is_calibrated=is_calibrated)
    return float(((fit.offset - log_odds) / fit.temperature).sigmoid())


def refusal_log_odds(first_logits: Tensor, token_id: int) -> Tensor:
    """log p − log(1 − p) of one token, in float64, from logits (…, V) to (…)."""
    logits = first_logits.cpu().double()  # on the host, since Apple's GPUs have no float64
    others = logits.clone()
    others[..., token_id] = -torch.inf
    return logits[..., token_id] - others.logsumexp(-1)


def cached_bias(profile: CalibrationProfile, prompt: Prompt) -> tuple[float, ...] | None:
    """Look up Attn(dummy, k) of the prompt's documents; None if the profile has no table for them."""
    if profile.bias != "cached":
        return None
    return profile.cached_attention([end - start for start, end in prompt.spans])


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

    The last estimates are kept for later questions, at most `max_bytes` of them.
    """

    def __init__(self, model: LanguageModel, *, max_bytes: int) -> None:
        self._model = model
        self._max_bytes = max_bytes
        self._filler_ids = filler_ids(model.tokenizer)
        self._max_remembered = MAX_REMEMBERED if max_bytes else 0
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
        max_bytes = max(self._max_bytes, MIN_SHARED_BYTES) if is_shared else self._max_bytes
        num_bytes = sum(bias.nbytes for bias in self._remembered.values())
        while len(self._remembered) > max_number or num_bytes > max_bytes:
            num_bytes -= self._remembered.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        """Forget all prompts."""
        self._remembered.clear()

    def _estimates(self, prompts: Sequence[MeasuredPrompt]) -> Passes[list[tuple[Tensor | None, int]]]:
        """Attn(dummy, k) of each prompt, (layers that ran, H, K), and the passes that it took; None for one whose
        bias is looked up."""
        wanted = [_wanted(one) for one in prompts]
        new = {key: one for key, one in zip(wanted, prompts, strict=True) if key and key not in self._remembered}
        # held here, because others may replace them in memory between two passes
        biases = {key: self._remembered[key] for key in wanted if key and key not in new}
        num_passes: dict[_Wanted, int] = {}
        for (kind, num_layers, options), keys in _by_kind(new):
            jobs = [BiasJob(new[key].slot, key.prompt, self._filler_ids) for key in keys]
            estimates = yield from estimating(self._model, jobs, kind, num_layers=num_layers, options=options)
            for key, estimate in zip(keys, estimates, strict=True):
                biases[key] = self._remembered[key] = estimate.attention.cpu()
                num_passes[key] = estimate.num_passes
        # only the first of several equal prompts is charged for the passes
        return [(biases[key], num_passes.pop(key, 0)) if key else (None, 0) for key in wanted]


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
