"""Attention of document rows over a paged cache in torch, on any device.

Shapes: R rows, H query heads, H' key heads, G = H / H' heads of a group, D head width, K documents, B tokens of a
block, T tokens that a row sees. Head h reads the keys of group h // G.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from fovea_vllm.attention.merge import document_attention, merge_weights
from fovea_vllm.attention.rows import DocumentRows, Seen

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
    """Compute what `attend.attend_documents` describes, one row after the other.

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
