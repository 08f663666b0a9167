"""Attention of document rows over a paged cache in Triton.

`attend_pieces` computes the attention over each piece of a part alone, one program for a piece and a key head, with
all query heads of its group. `merge_pieces` merges them by the equations of `attend`, one program for a row and a head.

Products accumulate in float32, and exponentials and sums are float32; with half precision, a piece's weights are
rounded to it before they multiply its values. float32 is multiplied as such, not as TF32. Triton's interpreter cannot
multiply bfloat16, so there it is widened first.

Pieces have a fixed length, whatever the batch: none mixes documents, so there is no even split of a row, and a length
bounds the longest program, which is what a small batch waits for. A row of T tokens gives at least H' T / `PIECE`
programs, enough for one row of a long prompt to occupy a GPU. vLLM 0.32 cuts the rows of a small batch into a fixed
number of segments instead, and those of a large one not at all. Here a large batch pays for pieces that it does not
need: one of n tokens reads n keys and n values per key head, and writes G outputs in float32, which the merge reads
again. In half precision that is G / n of what it reads. A token between two documents is a piece of its own and costs a
program that reads one tile. The speed of none of this has been measured on a GPU.

Shapes: R rows, H query heads, H' key heads, G = H / H' heads of a group, D head width, K documents, P pieces.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from fovea_vllm.attention.rows import DocumentRows


@triton.jit
def attend_pieces(  # noqa: PLR0913 (a kernel has no other way to get them)
    query, key_cache, value_cache, block_table, piece_row, piece_start, piece_end, lse, outputs, scale,
    query_row, query_head, query_width, key_block, key_slot, key_head, key_width,
    value_block, value_slot, value_head, value_width, table_row, table_block,
    num_heads: tl.constexpr, heads_per_group: tl.constexpr, width: tl.constexpr, block_size: tl.constexpr,
    IS_WIDENED: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1).to(tl.int64)
    row = tl.load(piece_row + piece).to(tl.int64)
    start = tl.load(piece_start + piece)
    end = tl.load(piece_end + piece)
    of_group = tl.arange(0, HEADS)
    head = group * heads_per_group + of_group
    feature = tl.arange(0, WIDTH)
    is_head = of_group < heads_per_group
    is_feature = feature < width
    is_query = is_head[:, None] & is_feature[None, :]
    places = row * query_row + head[:, None] * query_head + feature[None, :] * query_width
    queries = tl.load(query + places, mask=is_query, other=0.0)
    if IS_WIDENED:
        queries = queries.to(tl.float32)

    largest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, WIDTH], tl.float32)
    for begin in range(start, end, TILE):
        position = begin + tl.arange(0, TILE)
        is_token = position < end
        table = row * table_row + (position // block_size) * table_block
        block = tl.load(block_table + table, mask=is_token, other=0).to(tl.int64)
        slot = position % block_size
        is_read = is_token[:, None] & is_feature[None, :]
        of_token = (block * key_block + slot * key_slot + group * key_head)[:, None]
        keys = tl.load(key_cache + of_token + feature[None, :] * key_width, mask=is_read, other=0.0)
        of_token = (block * value_block + slot * value_slot + group * value_head)[:, None]
        values = tl.load(value_cache + of_token + feature[None, :] * value_width, mask=is_read, other=0.0)
        if IS_WIDENED:
            keys = keys.to(tl.float32)
            values = values.to(tl.float32)
        logits = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        logits = tl.where(is_token[None, :], logits, float("-inf"))
        # begin < end, so each tile has a token and its largest logit is finite
        new_largest = tl.maximum(largest, tl.max(logits, axis=1))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(logits - new_largest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        read = tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        sums = sums * shrink[:, None] + read
        largest = new_largest
    tl.store(lse + piece * num_heads + head, largest + tl.log(total), mask=is_head)
    places = (piece * num_heads + head[:, None]) * width + feature[None, :]
    tl.store(outputs + places, sums / total[:, None], mask=is_query)


@triton.jit
def log_sum(x):
    """The log of the summed exponentials of a vector of which some number is finite."""
    largest = tl.max(x, axis=0)
    return largest + tl.log(tl.sum(tl.exp(x - largest), axis=0))


@triton.jit
def part_mass(lse, stride, first, count, PARTS: tl.constexpr, AT_ONCE: tl.constexpr):
    """LSE_k of each part, from those of its pieces; −inf for a part without any."""
    nothing = float("-inf")
    largest = tl.full([PARTS], nothing, tl.float32)
    total = tl.zeros([PARTS], tl.float32)
    for begin in range(0, tl.max(count, axis=0), AT_ONCE):
        number = begin + tl.arange(0, AT_ONCE)[None, :]
        pieces = (first[:, None] + number).to(tl.int64)
        of_piece = tl.load(lse + pieces * stride, mask=number < count[:, None], other=nothing)
        new_largest = tl.maximum(largest, tl.max(of_piece, axis=1))
        base = tl.where(new_largest == nothing, 0.0, new_largest)
        total = total * tl.exp(largest - base) + tl.sum(tl.exp(of_piece - base[:, None]), axis=1)
        largest = new_largest
    return tl.where(count > 0, largest + tl.log(tl.where(count > 0, total, 1.0)), nothing)


@triton.jit
def merge_pieces(  # noqa: PLR0913 (a kernel has no other way to get them)
    lse, outputs, piece_part, first_piece, num_tokens, log_alpha, out, attention,
    alpha_row, alpha_document, alpha_head,
    num_heads: tl.constexpr, num_documents: tl.constexpr, width: tl.constexpr,
    IS_CALIBRATED: tl.constexpr, PARTS: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    nothing = float("-inf")
    part = tl.arange(0, PARTS)
    is_part = part <= num_documents
    is_document = part < num_documents
    bounds = first_piece + row * (num_documents + 2)
    first = tl.load(bounds + part, mask=is_part, other=0)
    count = tl.load(bounds + part + 1, mask=is_part, other=0) - first
    is_seen = count > 0
    mass = part_mass(lse + head, num_heads, first, count, PARTS, AT_ONCE)
    log_total = log_sum(mass)
    length = tl.load(num_tokens + row * num_documents + part, mask=is_document, other=0).to(tl.float32)
    measured = attention + (row * num_documents + part) * num_heads + head
    tl.store(measured, tl.exp(mass - log_total) / tl.maximum(length, 1.0), mask=is_document)

    # the log of the weight of each part's output, less its LSE: what a piece's own LSE is to be added to
    change = tl.zeros([PARTS], tl.float32) - log_total
    if IS_CALIBRATED:
        places = row * alpha_row + part * alpha_document + head * alpha_head
        is_shared = is_document & is_seen
        wanted = tl.load(log_alpha + places, mask=is_shared, other=nothing) + tl.log(tl.maximum(length, 1.0))
        if tl.max(wanted, axis=0) > nothing:
            documents_mass = log_sum(tl.where(is_shared, mass, nothing))
            share = wanted - log_sum(wanted)
            change += tl.where(is_shared, share + documents_mass - tl.where(is_shared, mass, 0.0), 0.0)

    feature = tl.arange(0, WIDTH)
    is_feature = feature < width
    sums = tl.zeros([WIDTH], tl.float32)
    last = tl.load(bounds + num_documents + 1)
    for begin in range(tl.load(bounds), last, AT_ONCE):
        pieces = (begin + tl.arange(0, AT_ONCE)).to(tl.int64)
        is_piece = pieces < last
        parts = tl.load(piece_part + pieces, mask=is_piece, other=0)
        of_piece = tl.load(lse + pieces * num_heads + head, mask=is_piece, other=nothing)
        changes = tl.sum(tl.where(parts[:, None] == part[None, :], change[None, :], 0.0), axis=1)
        weight = tl.exp(of_piece + changes)
        is_read = is_piece[:, None] & is_feature[None, :]
        at = (pieces[:, None] * num_heads + head) * width + feature[None, :]
        sums += tl.sum(weight[:, None] * tl.load(outputs + at, mask=is_read, other=0.0), axis=0)
    tl.store(out + (row * num_heads + head) * width + feature, sums, mask=is_feature)


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
        query, key_cache, value_cache, rows.block_table, pieces.row, pieces.start, pieces.end, lse, outputs, scale,
        *query.stride(), *key_cache.stride(), *value_cache.stride(), *rows.block_table.stride(),
        num_heads=num_heads, heads_per_group=heads_per_group, width=width, block_size=key_cache.shape[1],
        IS_WIDENED=query.dtype == torch.bfloat16 and not isinstance(attend_pieces, triton.JITFunction),
        HEADS=max(16, triton.next_power_of_2(heads_per_group)),  # a product's smallest side is 16
        WIDTH=triton.next_power_of_2(width), TILE=TILE,
    )  # fmt: skip
    alpha = rows.num_tokens if log_alpha is None else log_alpha.float()  # where nothing is calibrated it is not read
    strides = alpha.stride() if alpha.dim() == 3 else (*alpha.stride(), 0)
    merge_pieces[(num_rows, num_heads)](
        lse, outputs, pieces.part, pieces.first, rows.num_tokens, alpha, out, attention, *strides,
        num_heads=num_heads, num_documents=num_documents, width=width, IS_CALIBRATED=log_alpha is not None,
        PARTS=triton.next_power_of_2(num_documents + 1), WIDTH=triton.next_power_of_2(width), AT_ONCE=MERGED_AT_ONCE,
    )  # fmt: skip
    return out, attention
