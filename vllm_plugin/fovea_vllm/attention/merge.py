"""Eq. 3.5 of found-in-the-middle calibration as a merge of partial attentions (Hsieh et al. 2024).

With w_i the attention weight of token i, document k's tokens D_k, N_k = |D_k|, Attn(k) = Σ_{i∈D_k} w_i / N_k and α_k
the attention that the documents should get, Eq. 3.5 is

    w'_i = α_k C / Attn(k) · w_i for i in D_k,    w'_i = w_i outside documents,    C = Σ_j N_j Attn(j) / Σ_j N_j α_j

Its factor is constant within a document. So let o_k be the attention over document k's tokens alone, lse_k the log of
their summed exponentials, and o_0 and lse_0 the same over all tokens outside documents. With

    Z = Σ_{k≥0} exp lse_k    and    M = Σ_{k≥1} exp lse_k

the weights of D_k are w_i = exp(lse_k)/Z times those of o_k, hence Attn(k) = exp(lse_k − log Z) / N_k, and
N_k Attn(k) = exp(lse_k)/Z cancels in the factor: document k's tokens have N_k α_k C in all, C = M / (Z Σ_j N_j α_j).
The calibrated row is

    o = exp(lse_0)/Z · o_0 + M/Z · Σ_{k≥1} (N_k α_k / Σ_j N_j α_j) · o_k

in which attention is measured and calibrated with keys and values read once. Σ_k (weight of o_k) = 1.

An empty document (N_k = 0), and one that the row does not see (lse_k = −inf, as with a sliding window), are left out
of the sums: the documents that are seen share M. A document that is seen in part counts with all N_k of its tokens,
as the mean Attn(k) does. If α_k is 0 for all documents that a row sees, Eq. 3.5 has no solution, and the row is left as
it is: o_k keeps its weight exp(lse_k)/Z.

Shapes: R rows, H heads, K documents; index K on the axis of K + 1 partial attentions is that of the tokens outside.
"""

import torch
from torch import Tensor


def merge_weights(lse: Tensor, num_tokens: Tensor, log_alpha: Tensor | None) -> Tensor:
    """Compute the weights of the partial attentions o_k in the merge: (R, H, K + 1) → the same, each row's sum 1.

    `lse` float32 or float64, −inf for a part without tokens that the row sees, of which a row has at least one;
    `num_tokens` (R, K) int64, N_k; `log_alpha` (R, K), or (R, K, H) for one per head, −inf where α is 0, None to leave
    all rows as they are.
    """
    share = lse.softmax(dim=-1)
    num_documents = num_tokens.shape[1]
    if log_alpha is None or num_documents == 0:
        return share
    is_seen = lse[..., :num_documents] > -torch.inf
    log_alpha = log_alpha[:, None] if log_alpha.dim() == 2 else log_alpha.transpose(1, 2)
    wanted = log_alpha.to(lse.dtype) + num_tokens[:, None].to(lse.dtype).log()
    wanted = wanted.masked_fill(~is_seen, -torch.inf)
    is_calibrated = wanted.amax(dim=-1, keepdim=True) > -torch.inf
    mass = share[..., :num_documents].sum(dim=-1, keepdim=True)
    documents = torch.where(is_calibrated, mass * wanted.softmax(dim=-1), share[..., :num_documents])
    return torch.cat((documents, share[..., num_documents:]), dim=-1)


def document_attention(lse: Tensor, num_tokens: Tensor) -> Tensor:
    """Attn(k), the mean weight of a document's tokens without calibration: (R, H, K + 1) → (R, K, H).

    `num_tokens` (R, K) int64. 0 for a document that is empty or not seen.
    """
    share = lse.softmax(dim=-1)[..., : num_tokens.shape[1]]
    return (share / num_tokens[:, None].clamp_min(1)).transpose(1, 2)
