"""Attention heads that find documents: chosen by scores over questions whose gold documents are known.

A few heads of a model retrieve; the mean over all heads of a layer dilutes them. Two scores of a head h over questions
q with a gold document g among K:

* QRHead (Zhang et al. 2025, arXiv 2506.09944), what the head pays to the gold document,
  QRscore_h = mean_q s_h(q, g);
* CoRe (Tran et al. 2025, arXiv 2510.02219), how the gold document compares with the others,
  S_h = mean_q exp(s_h(q, g) / t) / Σ_k exp(s_h(q, k) / t), so that a head that pays much to everything gains nothing.

The papers sum attention over the rows of the query. Here s_h(q, k) is rel(k) or Attn(k) of the head in the prompt's
last row, the quantity that ranks documents and calibrates answers.

Shapes: E questions, L layers, H heads, K documents.
"""

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

HeadScore = Literal["core", "qr"]
Head = tuple[int, int]


def mean_over_heads(attention: Tensor, *, layers: Sequence[int] | None = None, heads: Sequence[Head] = ()) -> Tensor:
    """Mean of (…, L, H, K) over `heads`, pairs of layer and head, or without them over all heads of `layers`: (…, K).

    `layers` None means all. Raises IndexError for a layer or a head that there is not.
    """
    if heads:
        of_layers, of_heads = zip(*heads, strict=True)
        return attention[..., list(of_layers), list(of_heads), :].mean(dim=-2)
    chosen = attention if layers is None else attention[..., list(layers), :, :]
    return chosen.mean(dim=(-3, -2))


def query_focused_scores(scores: Tensor, gold: Tensor) -> Tensor:
    """QRscore_h: the mean of s_h(q, g). `scores` (E, L, H, K), `gold` (E,) int64 → (L, H), in the unit of `scores`."""
    return _of_gold(scores, gold).mean(dim=0)


def contrastive_scores(scores: Tensor, gold: Tensor, temperature: float) -> Tensor:
    """S_h: the mean share of the gold document in softmax(s_h / t). Shapes as above → (L, H), from 0 to 1.

    `temperature` t is above 0, in the unit of `scores` (ValueError).
    """
    if not temperature > 0:
        raise ValueError(f"the temperature must be above 0, not {temperature}")
    return _of_gold((scores / temperature).softmax(dim=-1), gold).mean(dim=0)


def best_heads(scores: Tensor, number: int) -> tuple[Head, ...]:
    """The `number` heads with the highest scores (L, H), in order of layer and head; of equal ones, the earlier."""
    num_heads = scores.shape[-1]
    chosen = scores.flatten().argsort(descending=True, stable=True)[:number].tolist()
    return tuple(sorted(divmod(place, num_heads) for place in chosen))


def _of_gold(scores: Tensor, gold: Tensor) -> Tensor:
    """(E, L, H, K) → (E, L, H), the gold document's."""
    return scores.gather(-1, gold[:, None, None, None].expand(*scores.shape[:-1], 1)).squeeze(-1)
