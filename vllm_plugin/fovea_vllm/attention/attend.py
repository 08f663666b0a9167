"""Attention of document rows over a paged cache, calibrated or only measured, in torch.

It is Eq. 3.5 of found-in-the-middle calibration as a merge of partial attentions (Hsieh et al. 2024).

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

Shapes: R rows, H query heads, H' key heads, G = H / H' heads of a group, D head width, K documents, B tokens of a
block, T tokens that a row sees; index K on the axis of K + 1 partial attentions is that of the tokens outside.
Head h reads the keys of group h // G.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fovea_vllm.attention.rows import DocumentRows, Seen


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


LIGHTEST = 1e-30  # of a sum that begins at 1; smaller ones near the limit of float32, where they lose precision


def attend_rows(  # noqa: PLR0913 (a layer's attention and what calibrates it)
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: DocumentRows,
    log_alpha: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute what `attend_documents` describes in torch, on any device, one row after the other.

    A document whose weight underflows in its row still has an LSE, and can be scaled up.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    num_heads, num_groups, num_documents = query.shape[1], key_cache.shape[2], rows.starts.shape[1]
    out = query.new_zeros(query.shape, dtype=dtype)
    attention = query.new_empty((query.shape[0], num_documents, num_heads), dtype=dtype)
    grouped = (query.to(dtype) * scale).view(-1, num_groups, num_heads // num_groups, query.shape[2])
    for row, seen in enumerate(rows.seen(key_cache.shape[1], window)):
        of_row = slice(row, row + 1)
        keys = _blocks(key_cache, seen, dtype)
        scores = torch.cat([torch.bmm(grouped[row], block.transpose(1, 2)) for block in keys], dim=-1)
        lse, exponentials, total = _partial_attentions(scores.flatten(0, 1), seen)
        of_parts = merge_weights(lse[None], rows.num_tokens[of_row], None if log_alpha is None else log_alpha[of_row])
        factor = torch.where(total > 0, of_parts[0] / total, 0.0)
        weights = exponentials.mul_(factor.index_select(1, seen.part_of_token))
        _add_read(out[row].view_as(grouped[row]), weights.view_as(scores), _blocks(value_cache, seen, dtype))
        attention[row] = document_attention(lse[None], rows.num_tokens[of_row])[0]
    return out, attention


def _blocks(cache: Tensor, seen: Seen, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield a row's keys or values block by block, (H', tokens, D).

    Blocks are multiplied where they lie. To gather them first would take longer than to multiply them.
    """
    by_head = cache.transpose(1, 2)
    for block, start, stop in seen.slots:
        yield by_head[block, :, start:stop].to(dtype)


def _add_read(out: Tensor, weights: Tensor, values: Iterator[Tensor]) -> None:
    """Add to `out` (H', G, D) what weights (H', G, T) read from values."""
    begin = 0
    for block in values:
        end = begin + block.shape[1]
        out.baddbmm_(weights[..., begin:end], block)
        begin = end


def _partial_attentions(scores: Tensor, seen: Seen) -> tuple[Tensor, Tensor, Tensor]:
    """Compute lse_k, (H, K + 1), from (H, T) logits; and the weights of the partial attentions, as exponentials (H, T)
    and their sums (H, K + 1).

    Exponentials are relative to a head's largest logit, but where a part has next to nothing of a head's sum, to that
    of each part: its weights may be scaled up again.
    """
    membership = seen.membership.to(scores.dtype)
    largest = scores.amax(dim=-1, keepdim=True)
    exponentials = (scores - largest).exp_()
    total = exponentials @ membership  # faster than a sum by index
    if (total + seen.is_empty).amin() < LIGHTEST:
        parts = seen.part_of_token.expand_as(scores)
        largest = torch.full_like(total, -torch.inf).scatter_reduce_(1, parts, scores, "amax")
        exponentials = (scores - largest.index_select(1, seen.part_of_token)).exp_()
        total = exponentials @ membership
    return total.log() + largest, exponentials, total


DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def attend_documents(  # noqa: PLR0913 (a layer's attention and what calibrates it)
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: DocumentRows,
    log_alpha: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attend R rows with their documents' weights rescaled by Eq. 3.5, and measure Attn(k) without that.

    `query` (R, H, D); `key_cache` and `value_cache` (blocks, B, H', D) views of the layer's cache with any strides, in
    the dtype of the query: float16, bfloat16, float32 or, in torch, float64; the rows' own keys and values are in it.
    `log_alpha` (R, K), or (R, K, H) for one per head, −inf where α is 0: a row all of whose documents have −inf is only
    measured, as all rows are with None. `scale` multiplies the logits; `window` is the number of tokens up to itself
    that a row sees, None for all.

    Returns the attention, (R, H, D), and Attn(k), (R, K, H), 0 for a document that is empty or not seen: both float32,
    or float64 if the query is. A row without documents is plain attention. The module's docstring says what becomes of
    documents that the window hides.

    Raises ValueError for a soft cap of the logits other than None and 0, query heads that the key heads do not divide,
    other shapes and dtypes than these, a window below 1, and a row longer than its blocks.
    """
    _check(query, key_cache, value_cache, rows, log_alpha)
    if soft_cap:
        raise ValueError(f"logits with a soft cap ({soft_cap}) cannot be calibrated")
    return attend_rows(query, key_cache, value_cache, rows, log_alpha, scale=scale, window=window)


def _check(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: DocumentRows, log_alpha: Tensor | None) -> None:
    num_rows, num_heads, width = query.shape
    if key_cache.shape != value_cache.shape or key_cache.shape[-1] != width:
        raise ValueError(
            f"query heads of width {width} need caches (blocks, block size, key heads, {width}), not "
            f"{tuple(key_cache.shape)} and {tuple(value_cache.shape)}"
        )
    if query.dtype not in DTYPES or not query.dtype == key_cache.dtype == value_cache.dtype:
        raise ValueError(
            f"query, keys and values must have one dtype of {', '.join(map(str, DTYPES))}, not {query.dtype}, "
            f"{key_cache.dtype} and {value_cache.dtype}"
        )
    if num_heads % key_cache.shape[2]:
        raise ValueError(f"{num_heads} query heads are not a multiple of {key_cache.shape[2]} key heads")
    documents = rows.starts.shape
    if documents[0] != num_rows:
        raise ValueError(f"{num_rows} queries, but {documents[0]} rows")
    if log_alpha is not None and tuple(log_alpha.shape) not in {tuple(documents), (*documents, num_heads)}:
        raise ValueError(
            f"log_alpha must be {tuple(documents)}, or {(*documents, num_heads)} for one per head, not "
            f"{tuple(log_alpha.shape)}"
        )
