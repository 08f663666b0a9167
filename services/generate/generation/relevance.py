"""Relevance of a prompt's documents and the resulting calibration, by a profile.

Shapes: L layers, L' the layers that enter rel, H heads, K documents.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.generate.calibration import Calibration, log_alpha, relevance
from services.generate.generation.generation import Generation, LayerMeans
from services.generate.model.profile import OFF, Answerability, BadProfile, BiasKind, CalibrationProfile
from services.generate.prompts.templates import Prompt
from services.generate.retrieval_heads import mean_over_heads


@dataclass(frozen=True, eq=False)
class PromptCalibration:
    """`relevance` is rel(k), K numbers, a mean over layers and heads even if each head has its own α; `num_passes` is
    the number of prefills with which a naive implementation would estimate the bias. `estimate` is what was made of it,
    which may stand in for the profile's `bias`. `bias` is Attn(dummy, k) of the layers that ran, (L', H, K), None if a
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


def answerable_by(refusal: Answerability, log_odds: Tensor, *, is_calibrated: bool) -> float:
    """Return the probability that the documents answer, from the log odds of the refusal's first token."""
    fit = refusal.fit(is_calibrated=is_calibrated)
    return float(((fit.offset - log_odds) / fit.temperature).sigmoid())


def refusal_log_odds(first_logits: Tensor, token_id: int) -> Tensor:
    """log p − log(1 − p) of one token, in float64, from logits (…, V) to (…)."""
    logits = first_logits.double()
    others = logits.clone()
    others[..., token_id] = -torch.inf
    return logits[..., token_id] - others.logsumexp(-1)


def cached_bias(profile: CalibrationProfile, prompt: Prompt) -> tuple[float, ...] | None:
    """Look up Attn(dummy, k) of the prompt's documents; None if the profile has no table for them."""
    if profile.bias != "cached":
        return None
    return profile.cached_attention([end - start for start, end in prompt.spans])
