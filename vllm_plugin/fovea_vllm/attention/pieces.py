"""Pieces of the tokens that rows see, none of which mixes two documents, as units of work of a kernel.

A row of K documents has K + 1 parts: the documents, and last the tokens outside of them. A part is cut at its gaps and
then into pieces of at most `size` tokens.

Shapes: R rows, K documents of the row with the most, P pieces of all rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pieces:
    """`row`, `part`, `start` and `end` (P,) int32 of each piece, in positions of its row's sequence, ordered by row and
    part; `first` (R, K + 2) int32, part k of row r consists of the pieces from first[r, k] up to first[r, k + 1]."""

    row: Tensor
    part: Tensor
    start: Tensor
    end: Tensor
    first: Tensor

    def to(self, device: torch.device) -> "Pieces":
        tensors = (self.row, self.part, self.start, self.end, self.first)
        return Pieces(*(tensor.to(device, non_blocking=True) for tensor in tensors))


def cut(starts: Tensor, ends: Tensor, seq_lens: Tensor, window: int | None, size: int) -> Pieces:
    """Cut what each row sees, the last `window` tokens or None for all, into pieces of at most `size` tokens.

    `starts` and `ends` (R, K) and `seq_lens` (R,) int64 as in `rows.DocumentRows`. A row's pieces cover each token that
    it sees once; every piece has a token.
    """
    num_rows, num_documents = starts.shape
    last = seq_lens[:, None]
    first = torch.zeros_like(last) if window is None else (last - window).clamp_min(0)
    # gaps lie between documents in their order; an empty one is put at the end, where it makes no gap
    is_empty = starts == ends
    ordered_starts, order = torch.where(is_empty, last, starts).sort(dim=1)
    ordered_ends = torch.where(is_empty, last, ends).gather(1, order)
    begins = torch.cat((starts, torch.zeros_like(last), ordered_ends), dim=1)
    stops = torch.cat((ends, ordered_starts, last), dim=1)
    begins, stops = begins.maximum(first), stops.minimum(last)
    counts = ((stops - begins).clamp_min(0) + size - 1) // size
    of_interval = torch.arange(counts.numel()).repeat_interleave(counts.flatten())
    number = torch.arange(of_interval.numel()) - (counts.flatten().cumsum(0) - counts.flatten())[of_interval]
    begin = begins.flatten()[of_interval] + number * size
    num_intervals = 2 * num_documents + 1
    per_part = torch.cat((counts[:, :num_documents], counts[:, num_documents:].sum(dim=1, keepdim=True)), dim=1)
    bounds = torch.cat((torch.zeros(1, dtype=torch.int64), per_part.flatten().cumsum(0)))
    parts = torch.arange(num_documents + 2) + torch.arange(num_rows)[:, None] * (num_documents + 1)
    return Pieces(
        (of_interval // num_intervals).int(),
        (of_interval % num_intervals).clamp_max(num_documents).int(),
        begin.int(),
        (begin + size).minimum(stops.flatten()[of_interval]).int(),
        bounds[parts].int(),
    )
