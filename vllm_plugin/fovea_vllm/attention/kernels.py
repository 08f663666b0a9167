"""Attention of document rows over a paged cache in Triton: one launch a layer, for as many rows as a table names.

A program takes pieces of rows in turn, one for a key head with all query heads of its group, and computes the attention
over the piece alone. The program that finishes the last piece of a row and key head merges them by the equations of
`attend`. The grid does not depend on the rows, nor does any other argument but the table's content: a captured graph
replays the launch for whatever rows a later step has, and one without rows ends at its first load.

Products accumulate in float32, and exponentials and sums are float32; with half precision, a piece's weights are
rounded to it before they multiply its values. float32 is multiplied as such, not as TF32. Triton's interpreter cannot
multiply bfloat16, so there it is widened first.

A row of T tokens gives at least H' T / `pieces.SIZE` items, enough for one row of a long prompt to occupy a GPU. A
piece of n tokens reads n keys and n values per key head, and writes G outputs in float32, which the merge reads again.

Shapes: R rows, H query heads, H' key heads, G = H / H' heads of a group, D head width, K documents, P pieces.
"""

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fovea_vllm.attention.pieces import CHUNK

TILE = 32  # tokens that a program reads at once
NUM_WARPS = 4
PROGRAMS_PER_PROCESSOR = 4
INTERPRETED_PROGRAMS = 3


@triton.jit
def attend_piece(  # noqa: PLR0913 (a kernel has no other way to get them)
    query, key_cache, value_cache, block_table, lse, outputs, scale, token, place, piece, group, start, end,
    query_row, query_head, query_width, key_block, key_slot, key_head, key_width,
    value_block, value_slot, value_head, value_width, table_row, table_block,
    num_heads: tl.constexpr, heads_per_group: tl.constexpr, width: tl.constexpr, block_size: tl.constexpr,
    IS_WIDENED: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Store the attention over a piece, and the log of its summed exponentials, −inf for padding."""
    of_group = tl.arange(0, HEADS)
    head = group * heads_per_group + of_group
    feature = tl.arange(0, WIDTH)
    is_head = of_group < heads_per_group
    is_feature = feature < width
    is_query = is_head[:, None] & is_feature[None, :]
    places = token * query_row + head[:, None] * query_head + feature[None, :] * query_width
    queries = tl.load(query + places, mask=is_query, other=0.0)
    if IS_WIDENED:
        queries = queries.to(tl.float32)

    largest = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    sums = tl.zeros([HEADS, WIDTH], tl.float32)
    for begin in range(start, end, TILE):
        position = begin + tl.arange(0, TILE)
        is_token = position < end
        table = place * table_row + (position // block_size) * table_block
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
    total = tl.where(total > 0.0, total, 1.0)
    tl.store(lse + piece * num_heads + head, largest + tl.log(total), mask=is_head)
    places = (piece * num_heads + head[:, None]) * width + feature[None, :]
    tl.store(outputs + places, sums / total[:, None], mask=is_query)


@triton.jit
def merge_row(  # noqa: PLR0913 (a kernel has no other way to get them)
    out, lse, outputs, table, measured, first, last, piece_part, document_tokens, shares, measured_at, token, head,
    is_calibrated, out_row, out_head, out_width,
    num_heads: tl.constexpr, width: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Merge a row's pieces for a head: store its attention, and Attn(k) where it is measured."""
    nothing = float("-inf")
    largest = nothing
    total = 0.0
    of_documents = 0.0
    for begin in range(first, last, CHUNK):
        pieces = (begin + tl.arange(0, CHUNK)).to(tl.int64)
        mass = tl.load(lse + pieces * num_heads + head, mask=pieces < last, other=nothing, cache_modifier=".cg")
        part = tl.load(table + piece_part + pieces, mask=pieces < last, other=-1)
        new_largest = tl.maximum(largest, tl.max(mass, axis=0))
        base = tl.where(new_largest == nothing, 0.0, new_largest)
        shrink = tl.exp(largest - base)
        weights = tl.exp(mass - base)
        total = total * shrink + tl.sum(weights, axis=0)
        of_documents = of_documents * shrink + tl.sum(tl.where(part >= 0, weights, 0.0), axis=0)
        largest = new_largest
    log_total = largest + tl.log(total)

    feature = tl.arange(0, WIDTH)
    is_feature = feature < width
    sums = tl.zeros([WIDTH], tl.float32)
    for begin in range(first, last, CHUNK):
        pieces = (begin + tl.arange(0, CHUNK)).to(tl.int64)
        mass = tl.load(lse + pieces * num_heads + head, mask=pieces < last, other=nothing, cache_modifier=".cg")
        part = tl.load(table + piece_part + pieces, mask=pieces < last, other=-1)
        is_document = part >= 0
        is_seen = mass > nothing
        # the mass of the piece's document, all of whose pieces are in this chunk
        is_same = part[:, None] == part[None, :]
        document = tl.max(tl.where(is_same, mass[None, :], nothing), axis=1)
        base = tl.where(document > nothing, document, 0.0)
        together = tl.sum(tl.exp(tl.where(is_same, mass[None, :] - base[:, None], nothing)), axis=1)
        document = base + tl.log(tl.where(together > 0.0, together, 1.0))
        weight = tl.exp(mass - log_total)
        if is_calibrated:
            share = tl.load(table + shares + part, mask=is_document, other=0).to(tl.float32, bitcast=True)
            moved = is_document & (share >= 0.0)
            within = tl.exp(tl.where(moved, mass - document, nothing))
            weight = tl.where(moved, of_documents / total * share * within, weight)
        if measured_at >= 0:
            length = tl.load(table + document_tokens + part, mask=is_document, other=1).to(tl.float32)
            kept = measured + measured_at + part.to(tl.int64) * num_heads + head
            tl.store(kept, tl.exp(document - log_total) / length, mask=is_document & is_seen)
        at = (pieces[:, None] * num_heads + head) * width + feature[None, :]
        is_read = is_seen[:, None] & is_feature[None, :]
        of_piece = tl.load(outputs + at, mask=is_read, other=0.0, cache_modifier=".cg")
        sums += tl.sum(tl.where(is_seen, weight, 0.0)[:, None] * of_piece, axis=0)
    if is_calibrated:
        at = out + token * out_row + head * out_head + feature * out_width
        tl.store(at, sums.to(out.dtype.element_ty), mask=is_feature)


@triton.jit(do_not_specialize=["layer"])
def attend_table(  # noqa: PLR0913 (a kernel has no other way to get them)
    query, key_cache, value_cache, block_table, out, table, lse, outputs, arrived, measured, layer, scale,
    query_row, query_head, query_width, key_block, key_slot, key_head, key_width,
    value_block, value_slot, value_head, value_width, table_row, table_block, out_row, out_head, out_width,
    num_heads: tl.constexpr, num_groups: tl.constexpr, width: tl.constexpr, block_size: tl.constexpr,
    IS_WIDENED: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    num_pieces = tl.load(table)
    if num_pieces > 0:
        # sections in the order of `table.lay_out`
        piece_row, piece_start, piece_end = tl.load(table + 1), tl.load(table + 2), tl.load(table + 3)
        piece_part, row_first, row_token = tl.load(table + 4), tl.load(table + 5), tl.load(table + 6)
        row_place, share_stride, row_measured = tl.load(table + 7), tl.load(table + 8), tl.load(table + 9)
        tokens_first, row_documents, layer_acts = tl.load(table + 10), tl.load(table + 11), tl.load(table + 12)
        share_at, document_tokens, shares = tl.load(table + 13), tl.load(table + 14), tl.load(table + 15)
        num_rows = row_place - row_token
        heads_per_group: tl.constexpr = num_heads // num_groups
        num_items = tl.where(tl.load(table + layer_acts + layer) > 0, num_pieces * num_groups, 0)
        for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
            piece = item // num_groups
            group = item % num_groups
            row = tl.load(table + piece_row + piece)
            at = tl.load(table + share_at + layer * num_rows + row)
            if at != -1:
                token = tl.load(table + row_token + row).to(tl.int64)
                attend_piece(
                    query, key_cache, value_cache, block_table, lse, outputs, scale, token,
                    tl.load(table + row_place + row).to(tl.int64), piece, group,
                    tl.load(table + piece_start + piece), tl.load(table + piece_end + piece),
                    query_row, query_head, query_width, key_block, key_slot, key_head, key_width,
                    value_block, value_slot, value_head, value_width, table_row, table_block,
                    num_heads, heads_per_group, width, block_size, IS_WIDENED, HEADS, WIDTH, TILE,
                )  # fmt: skip
                # what all threads stored is there before the count says so
                tl.debug_barrier()
                first = tl.load(table + row_first + row)
                last = tl.load(table + row_first + row + 1)
                count = arrived + row * num_groups + group
                if tl.atomic_add(count, 1, sem="acq_rel") == last - first - 1:
                    tl.store(count, 0)
                    measured_at = tl.load(table + row_measured + row).to(tl.int64)
                    num_documents = tl.load(table + row_documents + row)
                    if measured_at >= 0:
                        measured_at += layer.to(tl.int64) * num_documents * num_heads
                    for of_group in range(heads_per_group):
                        head = group * heads_per_group + of_group
                        of_head = shares + at + head * tl.load(table + share_stride + row)
                        merge_row(
                            out, lse, outputs, table, measured, first, last, piece_part,
                            document_tokens + tl.load(table + tokens_first + row), of_head, measured_at, token, head,
                            at >= 0, out_row, out_head, out_width,
                            num_heads, width, WIDTH, CHUNK,
                        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Scratch:
    """A table on the device and what a launch needs beside it, for P pieces and R rows at most.

    `table` (N,) int32; `lse` (P, H) and `outputs` (P, H, D) float32; `arrived` (R · H',) int32, which are 0 before and
    after a launch; `measured` float32, as `TableRow` describes, here for no row.
    """

    table: Tensor
    lse: Tensor
    outputs: Tensor
    arrived: Tensor
    measured: Tensor

    @classmethod
    def of(
        cls,
        device: torch.device,
        *,
        num_ints: int,
        num_pieces: int,
        num_rows: int,
        heads: tuple[int, int, int],
    ) -> "Scratch":
        """Allocate for `heads`, (H, H', D)."""
        num_heads, num_groups, width = heads
        return cls(
            torch.zeros(num_ints, dtype=torch.int32, device=device),
            torch.empty((num_pieces, num_heads), dtype=torch.float32, device=device),
            torch.empty((num_pieces, num_heads, width), dtype=torch.float32, device=device),
            torch.zeros(num_rows * num_groups, dtype=torch.int32, device=device),
            torch.zeros(1, dtype=torch.float32, device=device),
        )


@functools.cache
def num_programs(device: torch.device) -> int:
    """The programs of a launch."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count


def launch(  # noqa: PLR0913 (a layer's attention)
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    out: Tensor,
    scratch: Scratch,
    *,
    layer: int,
    scale: float,
) -> None:
    """Attend the rows of `scratch.table` that act in a layer, and overwrite those of `out` that are calibrated.

    `query` and `out` (T, H, D); the caches (blocks, B, H', D); `block_table` (places, M) int32.
    """
    _, num_heads, width = query.shape
    num_groups = key_cache.shape[2]
    attend_table[(num_programs(query.device),)](
        query, key_cache, value_cache, block_table, out, scratch.table, scratch.lse, scratch.outputs,
        scratch.arrived, scratch.measured, layer, scale,
        *query.stride(), *key_cache.stride(), *value_cache.stride(), *block_table.stride(), *out.stride(),
        num_heads=num_heads, num_groups=num_groups, width=width, block_size=key_cache.shape[1],
        IS_WIDENED=query.dtype == torch.bfloat16 and not isinstance(attend_table, triton.JITFunction),
        HEADS=max(16, triton.next_power_of_2(num_heads // num_groups)),  # a product's smallest side is 16
        WIDTH=triton.next_power_of_2(width), TILE=TILE, CHUNK=CHUNK, num_warps=NUM_WARPS,
    )  # fmt: skip
