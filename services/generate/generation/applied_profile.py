"""What a calibration profile makes of one prompt: the estimate that it needs, rel of the documents, the calibration.

Shapes: L layers, L' the layers that enter rel, H heads, K documents.
"""

import torch
from torch import Tensor

from services.generate.calibration import log_alpha, relevance
from services.generate.generation.bias import EstimateKind, TreeOptions
from services.generate.model.language_model import Calibration
from services.generate.profile import BadProfile, CalibrationProfile
from services.generate.prompts.templates import Prompt


def needed_estimate(profile: CalibrationProfile, prompt: Prompt) -> tuple[EstimateKind, TreeOptions] | None:
    """How the bias of the prompt's documents is to be estimated; None where the profile's tables hold it.

    Where a cached bias has no table for so many documents, `tree` stands in for it.
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
    """How the prompt's answer shall attend: α of rel, (K,) or with `per_head` (L, H, K), L = `num_layers`."""
    num_tokens = torch.tensor([end - start for start, end in prompt.spans], device=rel.device)
    alpha = log_alpha(rel, profile.temperature, num_tokens)
    if alpha.dim() == 3:
        # one a layer of the model: what is intervened on is among the layers that enter rel
        every = alpha.new_zeros((num_layers, *alpha.shape[1:]))
        every[list(layers_of_relevance(profile, num_layers))] = alpha
        alpha = every
    return Calibration(prompt.spans, alpha, frozenset(profile.layers))


def _looked_up(profile: CalibrationProfile, prompt: Prompt) -> tuple[float, ...] | None:
    if profile.bias != "cached":
        return None
    return profile.cached_attention([end - start for start, end in prompt.spans])
