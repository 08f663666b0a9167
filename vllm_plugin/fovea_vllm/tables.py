"""The rows of a forward pass on a GPU: one table a step, at the same place in every captured graph.

Shapes: R rows of calibrated or measured requests, B places of the batch, L layers, H query heads of this worker, K
documents.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fovea_vllm.attention.kernels import Scratch, launch
from fovea_vllm.attention.pieces import SIZE, Ints, Pieces, cut, piece_size
from fovea_vllm.attention.table import ABSENT, HEADER, PLAIN, Floats, TableRow, lay_out, num_ints, shares_of
from fovea_vllm.request import DocumentRequest
from fovea_vllm.step import Measurements, Row

# Of a launch: for a head of 128 numbers and 32 heads, 128 MiB hold the pieces' attention. 64 rows of 20 documents and
# 8192 tokens are as many.
MAX_PIECES = 8192
MAX_INTS = 1 << 20
# Requests whose layout is remembered
MAX_LAYOUTS = 4096


@dataclass(frozen=True, eq=False)
class Layout:
    """The common part of a request's rows: its documents' pieces up to the last one's end, and its shares where a row
    sees all of them."""

    request: DocumentRequest
    pieces: Pieces
    end: int
    size: int
    num_tokens: Ints
    log_alpha: Any
    shares: Floats
    share_at: Ints
    share_stride: int

    @classmethod
    def of(cls, request: DocumentRequest, num_layers: int, heads: range, max_tokens: int) -> "Layout":
        """Lay out a request for the query heads of this worker, in a context of at most `max_tokens`."""
        num_documents = len(request.spans)
        num_tokens = np.array([end - start for start, end in request.spans], dtype=np.int32)
        log_alpha = np.array(request.log_alpha, dtype=np.float64).reshape(-1, num_documents)
        share_at = np.full(num_layers, ABSENT if request.is_calibrated else PLAIN, dtype=np.int32)
        stride = 0
        if request.is_calibrated:
            places = np.zeros(len(request.layers), dtype=np.int32)
            if len(log_alpha) > 1:
                log_alpha = log_alpha.reshape(len(request.layers), -1, num_documents)[:, heads.start : heads.stop]
                stride = num_documents
                places = np.arange(len(request.layers), dtype=np.int32) * len(heads) * num_documents
            share_at[list(request.layers)] = places
        end = request.spans[-1][1]
        # so that no row has more pieces than a launch, whatever the context
        size = piece_size(request.spans, max(SIZE, 4 * max_tokens // MAX_PIECES))
        return cls(
            request,
            cut(request.spans, 0, end, size),
            end,
            size,
            num_tokens,
            log_alpha,
            shares_of(log_alpha, num_tokens, num_tokens > 0),
            share_at,
            stride,
        )

    def row(self, row: Row, window: int | None, measured_at: int) -> TableRow:
        """Lay out one of the request's rows."""
        first = 0 if window is None else max(0, row.num_seen - window)
        if first == 0 and row.num_seen >= self.end:
            pieces, shares = self.pieces.with_tail(self.end, row.num_seen, self.size), self.shares
        else:
            spans = self.request.spans
            pieces = cut(spans, first, row.num_seen, self.size)
            is_seen = np.array([max(start, first) < min(end, row.num_seen) for start, end in spans], dtype=np.bool_)
            shares = shares_of(self.log_alpha, self.num_tokens, is_seen)
        return TableRow(
            row.token, row.place, pieces, self.num_tokens, shares, self.share_at, self.share_stride, measured_at
        )

    def num_pieces(self, num_tokens: int) -> int:
        """The pieces of a row of a sequence of so many tokens, at most."""
        return len(self.pieces) + -(-max(0, num_tokens - self.end) // self.size)


@dataclass(frozen=True, eq=False)
class TableStep:
    """A step's rows. `scratches` are those of each window of the model's layers, several where the rows exceed one;
    `seq_lens` (L, B) are the lengths for vLLM's own kernel, None for those that it has."""

    scratches: dict[int | None, list[Scratch]]
    seq_lens: Tensor | None

    def attend(  # noqa: PLR0913 (a layer's attention)
        self,
        layer: int,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        output: Tensor,
        *,
        scale: float,
        window: int | None,
    ) -> None:
        """Overwrite the output of the layer's calibrated rows, and keep the attention of the measured ones."""
        for scratch in self.scratches[window]:
            launch(query, key_cache, value_cache, block_table, output, scratch, layer=layer, scale=scale)


class StepTables:
    """Buffers of fixed addresses for the steps of one engine, and what is written into them.

    A step whose rows fit is written into them, so that a captured graph can be replayed for it; others get memory of
    their own and must not be replayed, which `fits` tells beforehand.
    """

    def __init__(  # noqa: PLR0913 (an engine's sizes)
        self,
        *,
        num_layers: int,
        heads: tuple[int, int, int],
        first_head: int,
        windows: Sequence[int | None],
        max_rows: int,
        max_tokens: int,
        device: torch.device,
    ) -> None:
        """`heads` are those of this worker, (H, H', D); `max_rows` the places of the largest graph."""
        self._num_layers = num_layers
        self._heads = heads
        self._max_rows = max_rows
        self._max_tokens = max_tokens
        self._head_range = range(first_head, first_head + heads[0])
        scratch = Scratch.of(device, num_ints=MAX_INTS, num_pieces=MAX_PIECES, num_rows=max_rows, heads=heads)
        self._scratches = {
            window: dataclasses.replace(scratch, table=torch.zeros(MAX_INTS, dtype=torch.int32, device=device))
            for window in windows
        }
        self._seq_lens = torch.zeros((num_layers, max_rows), dtype=torch.int32, device=device)
        self._layouts: dict[int, Layout] = {}
        self._is_clear = True

    def fits(self, requests: Sequence[DocumentRequest]) -> bool:
        """Whether a step with one row of each of these requests can be a replayed graph."""
        layouts = [self._layout(request) for request in requests]
        num_pieces = [layout.num_pieces(self._max_tokens) for layout in layouts]
        return (
            all(request.measure_key is None for request in requests)
            and len(requests) <= self._max_rows
            and sum(num_pieces) <= MAX_PIECES
            and sum(
                num_ints(self._num_layers, pieces, len(layout.num_tokens), layout.shares.size)
                for pieces, layout in zip(num_pieces, layouts, strict=True)
            )
            < MAX_INTS - HEADER - self._num_layers
        )

    def captured(self, seq_lens: Tensor) -> TableStep:
        """The step of a graph that is being captured: no rows now, and whatever is written later."""
        self._clear()
        return TableStep({window: [scratch] for window, scratch in self._scratches.items()}, self._lengths(seq_lens))

    def step(self, rows: Sequence[Row], seq_lens: Tensor, measurements: Measurements) -> TableStep | None:
        """Write a step's rows; None if it has none. `seq_lens` (B,) int32 on the device."""
        lengths = self._lengths(seq_lens)
        if not rows:
            self._clear()
            return None
        measured, starts = self._measured(rows, seq_lens.device, measurements)
        layouts = [self._layout(row.request) for row in rows]
        self._is_clear = False
        scratches: dict[int | None, list[Scratch]] = {}
        for window, own in self._scratches.items():
            laid = [layout.row(row, window, at) for layout, row, at in zip(layouts, rows, starts, strict=True)]
            tables = [lay_out(some) for some in self._shared_out(laid)]
            scratches[window] = []
            for table in tables:
                place = own.table if len(tables) == 1 and len(table) <= MAX_INTS else own.table.new_empty(len(table))
                _copy(table, place)
                scratches[window].append(dataclasses.replace(own, table=place, measured=measured))
        return TableStep(scratches, self._without_calibrated(rows, layouts, lengths))

    def _clear(self) -> None:
        if not self._is_clear:
            for scratch in self._scratches.values():
                scratch.table[:1].zero_()
            self._is_clear = True

    def _lengths(self, seq_lens: Tensor) -> Tensor | None:
        """Give every layer the lengths of its own that graphs read; None for more places than graphs have."""
        if len(seq_lens) > self._max_rows:
            return None
        lengths = self._seq_lens[:, : len(seq_lens)]
        lengths.copy_(seq_lens)
        return lengths

    def _without_calibrated(
        self, rows: Sequence[Row], layouts: Sequence[Layout], lengths: Tensor | None
    ) -> Tensor | None:
        """Let vLLM's own kernel read a single token for places whose output is overwritten in a layer."""
        if lengths is None:
            return None
        alone = np.zeros(lengths.shape, dtype=np.int32)
        for row, layout in zip(rows, layouts, strict=True):
            if row.is_alone and not row.is_measured:
                alone[:, row.place] = layout.share_at >= 0
        if alone.any():
            mask = torch.empty(alone.shape, dtype=torch.int32, device=lengths.device)
            _copy(alone, mask)
            lengths.masked_fill_(mask > 0, 1)
        return lengths

    def _shared_out(self, rows: Sequence[TableRow]) -> Iterator[list[TableRow]]:
        """Yield rows in groups that fit into one launch."""
        group: list[TableRow] = []
        num_pieces = 0
        for row in rows:
            if group and (num_pieces + len(row.pieces) > MAX_PIECES or len(group) == self._max_rows):
                yield group
                group, num_pieces = [], 0
            group.append(row)
            num_pieces += len(row.pieces)
        yield group

    def _measured(
        self, rows: Sequence[Row], device: torch.device, measurements: Measurements
    ) -> tuple[Tensor, list[int]]:
        """Allocate for the attention of measured rows, and put it among the measurements. −1 for the other rows."""
        num_heads, starts, total = self._heads[0], [], 0
        for row in rows:
            starts.append(total if row.is_measured else -1)
            total += self._num_layers * num_heads * len(row.request.spans) if row.is_measured else 0
        measured = torch.zeros(max(1, total), dtype=torch.float32, device=device)
        for row, start in zip(rows, starts, strict=True):
            if row.is_measured and row.request.measure_key is not None:
                shape = (self._num_layers, len(row.request.spans), num_heads)
                kept = measured[start : start + shape[0] * shape[1] * shape[2]].view(shape)
                for layer in range(self._num_layers):
                    measurements.put(row.request.measure_key, layer, kept[layer])
        return measured, starts

    def _layout(self, request: DocumentRequest) -> Layout:
        # by identity: to compare requests would take as long as to lay them out
        found = self._layouts.get(id(request))
        if found is None or found.request is not request:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[id(request)] = Layout.of(
                request, self._num_layers, self._head_range, self._max_tokens
            )
        return found


def _copy(numbers: Ints, place: Tensor) -> None:
    """Copy without waiting, from pinned memory that PyTorch keeps until the copy is done."""
    source = torch.from_numpy(numbers)
    if place.is_cuda:
        source = source.pin_memory()
    place.view(-1)[: source.numel()].copy_(source.view(-1), non_blocking=True)
