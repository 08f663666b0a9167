"""Launching of the kernels that attend document rows over a paged cache.

Pieces have a fixed length, whatever the batch: none mixes documents, so there is no even split of a row, and a length
bounds the longest program, which is what a small batch waits for. A row of T tokens gives at least H' T / `PIECE`
programs, enough for one row of a long prompt to occupy a GPU. vLLM 0.32 cuts the rows of a small batch into a fixed
number of segments instead, and those of a large one not at all. Here a large batch pays for pieces that it does not
need: one of n tokens reads n keys and n values per key head, and writes G outputs in float32, which the merge reads
again. In half precision that is G / n of what it reads. A token between two documents is a piece of its own and costs a
program that reads one tile. The speed of none of this has been measured on a GPU.

Shapes as in `kernels`.
"""

import torch
import triton
from torch import Tensor

from fovea_vllm.attention.kernels import attend_pieces, merge_pieces
from fovea_vllm.attention.pieces import Pieces
from fovea_vllm.attention.rows import DocumentRows

PIECE = 256  # tokens of a piece at most
TILE = 32  # tokens that a program reads at once
MERGED_AT_ONCE = 16  # pieces whose outputs a program of the merge reads at once


def attend_rows(  # noqa: PLR0913 (a layer's attention and what calibrates it)
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: DocumentRows,
    log_alpha: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
    piece: int = PIECE,
) -> tuple[Tensor, Tensor]:
    """Compute what `attend.attend_documents` describes, in pieces of at most `piece` tokens.

    Raises ValueError for float64.
    """
    if query.dtype == torch.float64:
        raise ValueError("the kernels compute in float32; float64 would lose precision")
    pieces = rows.pieces(key_cache.shape[1], window, piece)
    num_rows, num_heads, width = query.shape
    num_documents, num_groups = rows.starts.shape[1], key_cache.shape[2]
    num_pieces = pieces.row.shape[0]
    lse = query.new_empty((num_pieces, num_heads), dtype=torch.float32)
    outputs = query.new_empty((num_pieces, num_heads, width), dtype=torch.float32)
    out = query.new_empty(query.shape, dtype=torch.float32)
    attention = query.new_empty((num_rows, num_documents, num_heads), dtype=torch.float32)
    if num_rows == 0:
        return out, attention
    heads_per_group = num_heads // num_groups
    attend_pieces[(num_pieces, num_groups)](
        query,
        key_cache,
        value_cache,
        rows.block_table,
        pieces.row,
        pieces.start,
        pieces.end,
        lse,
        outputs,
        scale,
        *query.stride(),
        *key_cache.stride(),
        *value_cache.stride(),
        *rows.block_table.stride(),
        num_heads=num_heads,
        heads_per_group=heads_per_group,
        width=width,
        block_size=key_cache.shape[1],
        IS_WIDENED=query.dtype == torch.bfloat16 and not isinstance(attend_pieces, triton.JITFunction),
        HEADS=max(16, triton.next_power_of_2(heads_per_group)),  # a product's smallest side is 16
        WIDTH=triton.next_power_of_2(width),
        TILE=TILE,
    )
    _merge(lse, outputs, pieces, rows.num_tokens, log_alpha, out, attention)
    return out, attention


def _merge(  # noqa: PLR0913 (all that the kernel reads and writes)
    lse: Tensor,
    outputs: Tensor,
    pieces: Pieces,
    num_tokens: Tensor,
    log_alpha: Tensor | None,
    out: Tensor,
    attention: Tensor,
) -> None:
    num_rows, num_heads, width = out.shape
    num_documents = attention.shape[1]
    alpha = num_tokens if log_alpha is None else log_alpha.float()  # where nothing is calibrated it is not read
    strides = alpha.stride() if alpha.dim() == 3 else (*alpha.stride(), 0)
    merge_pieces[(num_rows, num_heads)](
        lse,
        outputs,
        pieces.part,
        pieces.first,
        num_tokens,
        alpha,
        out,
        attention,
        *strides,
        num_heads=num_heads,
        num_documents=num_documents,
        width=width,
        IS_CALIBRATED=log_alpha is not None,
        PARTS=triton.next_power_of_2(num_documents + 1),
        WIDTH=triton.next_power_of_2(width),
        AT_ONCE=MERGED_AT_ONCE,
    )
