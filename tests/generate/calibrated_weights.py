"""The equation of calibration as it is written, which tests hold its faster forms to."""

import torch.nn.functional as F
from torch import Tensor

from services.generate.calibration import Documents, rescale, spread, widen


def calibrated_weights(weights: Tensor, documents: Documents, alpha: Tensor) -> Tensor:
    """attn_cal = c_k attn on the tokens of document k, everything else unchanged (Eq. 3.5), materialised.

    Shapes as in `rescale`; returns (B, …, T).
    """
    weights = widen(weights)
    c, _ = rescale(weights, documents, alpha)
    change = spread(c - 1, documents)
    return weights * F.pad(1 + change, (0, weights.shape[-1] - change.shape[-1]), value=1.0)
