"""The equation of calibration as it is written, which tests hold its faster forms to, and prompts for them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from services.generate.calibration import Documents, _gather, _over_rows, spread, widen

Spans = list[tuple[int, int]]
# four prompts of unequal lengths with unequal documents, one of them empty, and one prompt without any
PROMPTS: list[tuple[int, Spans]] = [
    (31, [(3, 9), (9, 20), (22, 28)]),
    (12, [(2, 4), (4, 11)]),
    (40, [(1, 6), (6, 12), (12, 12), (15, 30), (30, 37)]),
    (7, []),
]
SPANS = [spans for _, spans in PROMPTS]
NUM_DOCUMENTS = 5


def without_first(documents: Documents, num_dropped: int) -> Documents:
    """The same documents without the axis's first tokens; dropped tokens of a document still count in its N."""
    if num_dropped == 0:
        return documents
    mask = documents.mask & (documents.index >= num_dropped)
    index = torch.where(mask, documents.index - num_dropped, 0)
    return Documents(index, mask, documents.num_tokens, documents.end - num_dropped)


def mean_weight(weights: Tensor, documents: Documents) -> Tensor:
    """Attn(k) of given attention weights: (B, …, T) → (B, …, K); 0 for an empty document."""
    sums = _gather(weights, documents.index, documents.mask, padding=0.0).sum(dim=-1)
    return sums / _over_rows(documents.num_tokens, weights).clamp_min(1)


def rescale(weights: Tensor, documents: Documents, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """c_k and C of Eq. 3.5 as in the paper, from attention weights.

    `weights` (B, …, T); `alpha` (B, K), or with the dimensions of c. Returns c (B, …, K), 1 for an empty or unseen
    document, and C (B, …). Unstable if weights underflow; `log_rescale` is stable.
    """
    attention = mean_weight(weights, documents)
    alpha = (_over_rows(alpha, attention) if alpha.dim() == 2 else alpha).to(attention.dtype)
    num_tokens = _over_rows(documents.num_tokens, attention)
    is_seen = attention > 0
    kept = (num_tokens * attention).sum(dim=-1) / torch.where(is_seen, num_tokens * alpha, 0.0).sum(dim=-1)
    c = torch.where(is_seen, alpha * kept[..., None] / attention, 1.0)
    return c, kept


def calibrated_weights(weights: Tensor, documents: Documents, alpha: Tensor) -> Tensor:
    """attn_cal = c_k attn on the tokens of document k, everything else unchanged (Eq. 3.5), materialised.

    Shapes as in `rescale`; returns (B, …, T).
    """
    weights = widen(weights)
    c, _ = rescale(weights, documents, alpha)
    change = spread(c - 1, documents)
    return weights * F.pad(1 + change, (0, weights.shape[-1] - change.shape[-1]), value=1.0)


def alphas(*shape: int) -> Tensor:
    """log α (4, …, K) of the prompts above, −inf where a prompt has no such document or an empty one."""
    rel = 2 * torch.randn(4, *shape, NUM_DOCUMENTS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    there = Documents.of(SPANS).num_tokens.reshape(4, *(1,) * len(shape), -1) > 0
    return torch.where(there, rel, -torch.inf).log_softmax(dim=-1).nan_to_num(nan=-torch.inf)


def rescaled_one_by_one(weights: Tensor, spans: Spans, alpha: Tensor) -> Tensor:
    """Eq. 3.5, document by document: (…, T) weights and α (…, K)."""
    result = weights.clone()
    attention = [weights[..., start:end].mean(dim=-1) if end > start else None for start, end in spans]
    seen = [
        (k, end - start, a, a > 0)
        for k, ((start, end), a) in enumerate(zip(spans, attention, strict=True))
        if a is not None
    ]
    mass = sum(n * a for _, n, a, _ in seen)
    shares = sum(torch.where(is_seen, n * alpha[..., k], 0.0) for k, n, _, is_seen in seen)
    for k, _, a, is_seen in seen:
        start, end = spans[k]
        factor = torch.where(is_seen, alpha[..., k] * (mass / shares) / a, 1.0)
        result[..., start:end] *= factor[..., None]
    return result
