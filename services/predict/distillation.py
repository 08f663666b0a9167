"""The losses of Distilling step-by-step (Hsieh et al. 2023): a student learns labels and a teacher's rationales.

    L_label     = 1/N Σ_i ℓ(f(x_i), ŷ_i)          (Eq. 2.1)
    L_rationale = 1/N Σ_i ℓ(f(x_i), r̂_i)          (Eq. 2.4)
    L           = L_label + λ L_rationale          (Eq. 2.3)

ŷ are human labels (finetuning) or the teacher's (distillation), r̂ the teacher's rationales. One prefix before x asks
for the label, another for the rationale, so both losses use the same weights in two forward passes, and only the first
pass is needed after training. The other methods apply the same loss to other texts: with the input [x, r̂] (Eq. 2.2),
or with the single target [r̂, ŷ] (Eq. 2.5).

ℓ is the cross-entropy of a target's tokens. As in the released code, the mean is over all target tokens of a batch,
which is not the mean over its examples.

Shapes: B batch, T target tokens, V vocabulary. Losses have the logits' dtype, or float32 if that is half precision.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # in `labels` where there is no token to predict: padding, or no target at all


def target_loss(logits: Tensor, labels: Tensor, *, num_targets: int | Tensor | None = None) -> Tensor:
    """Loss of Eq. 2.1, 2.2, 2.4 or 2.5, depending on the inputs of the logits and on the labels: a scalar.

    `logits` (B, T, V), any float dtype, at t predict `labels` (B, T) int64 at t; labels are token ids in [0, V) or
    IGNORED, which do not count in the mean.

    `num_targets` replaces the divisor of the sum: with the number of target tokens of a whole batch, the losses of its
    parts add up to the loss of the batch. Without any target token, the loss is 0 with gradient 0.
    """
    if torch.finfo(logits.dtype).bits < 32:
        logits = logits.float()
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum")
    total = (labels != IGNORED).sum() if num_targets is None else num_targets
    return loss / torch.as_tensor(total, device=loss.device).clamp(min=1)


def multi_task_loss(label_loss: Tensor, rationale_loss: Tensor, alpha: float = 0.5) -> Tensor:
    """α L_label + (1 − α) L_rationale, the released form of Eq. 2.3: that with λ = (1 − α)/α, times α.

    Takes scalars and returns a scalar. α = 1 learns only labels, α = 0 only rationales. Raises ValueError.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must be from 0 to 1, not {alpha}")
    return alpha * label_loss + (1 - alpha) * rationale_loss


def alpha_of(rationale_weight: float) -> float:
    """The α whose loss is proportional to that of λ: 1 / (1 + λ). Raises ValueError for a λ below 0."""
    if not rationale_weight >= 0:
        raise ValueError(f"the weight of rationales must be at least 0, not {rationale_weight}")
    return 1 / (1 + rationale_weight)
