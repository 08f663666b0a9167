"""Query rows over a paged cache, and the documents among the tokens that they see.

A row of K documents has K + 1 parts: the documents, and last the tokens outside of them.

Shapes: R rows, K documents of the row with the most, M blocks of the longest row, B tokens of a block.
"""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Seen:
    """The T tokens that a row sees, by the K + 1 parts that they belong to: its documents, and last no document.

    `slots` are (block, start, stop), ranges of the cache's blocks in their order; `part_of_token` (T,) int64.
    """

    slots: tuple[tuple[int, int, int], ...]
    part_of_token: Tensor
    num_parts: int

    @functools.cached_property
    def membership(self) -> Tensor:
        """(T, K + 1) float32, 1 where a token is one of a part's, else 0."""
        return (self.part_of_token[:, None] == torch.arange(self.num_parts, device=self.part_of_token.device)).float()

    @functools.cached_property
    def is_empty(self) -> Tensor:
        """(K + 1,) float32, 1 for parts without tokens that the row sees, else 0."""
        return 1 - self.membership.amax(dim=0)


@dataclass(frozen=True, eq=False)
class DocumentRows:
    """Rows of a step: any mix of decoded tokens and last prompt rows.

    `block_table` (R, M) int, the row's blocks of the cache in the order of its tokens, on the cache's device;
    `seq_lens` (R,) int64, the tokens of its sequence up to itself, so that row r stands at position seq_lens[r] − 1;
    `starts` and `ends` (R, K) int64, half-open spans of documents in positions of the sequence, equal where a row has
    fewer than K documents or a document is empty. These three are on the CPU. Spans of a row do not overlap, and may
    stand in any order. `of` checks all that, the constructor nothing.
    """

    block_table: Tensor
    seq_lens: Tensor
    starts: Tensor
    ends: Tensor
    _seen: dict[tuple[int, int | None], list[Seen]] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, block_table: Tensor, seq_lens: Tensor | Sequence[int], spans: Sequence[Sequence[tuple[int, int]]]
    ) -> "DocumentRows":
        """Create from each row's spans; a row may have none, and a span may be empty.

        Raises ValueError for different numbers of rows, a sequence without tokens, a span that starts below 0 or ends
        before it starts, and spans that overlap.
        """
        lengths = torch.as_tensor(seq_lens, dtype=torch.int64, device="cpu")
        if not block_table.shape[0] == lengths.shape[0] == len(spans):
            raise ValueError(
                f"{block_table.shape[0]} rows in the block table, {lengths.shape[0]} in seq_lens and {len(spans)} in "
                "spans; the three must be equal"
            )
        if lengths.numel() and int(lengths.min()) < 1:
            raise ValueError(f"seq_lens must be at least 1, not {int(lengths.min())}")
        for row in spans:
            _check(row)
        num_documents = max(map(len, spans), default=0)
        padded = [[*row, *[(0, 0)] * (num_documents - len(row))] for row in spans]
        bounds = torch.tensor(padded, dtype=torch.int64).reshape(len(spans), num_documents, 2)
        return cls(block_table, lengths, bounds[..., 0], bounds[..., 1])

    @functools.cached_property
    def num_tokens(self) -> Tensor:
        """N_k, (R, K) int64 on the cache's device; tokens that the row does not see count."""
        return (self.ends - self.starts).to(self.block_table.device)

    def seen(self, block_size: int, window: int | None) -> list[Seen]:
        """Return what each row sees in a cache of such blocks, the last `window` tokens or None for all.

        Kept, so that the layers of a step share it. Raises ValueError for a window below 1 and for a block table that
        is narrower than a row.
        """
        if (block_size, window) not in self._seen:
            self._check_view(block_size, window)
            self._seen[block_size, window] = [
                self._seen_by(row, length, block_size, window) for row, length in enumerate(self.seq_lens.tolist())
            ]
        return self._seen[block_size, window]

    def _check_view(self, block_size: int, window: int | None) -> None:
        if window is not None and window < 1:
            raise ValueError(f"the window must be at least 1, not {window}")
        longest = int(self.seq_lens.max()) if self.seq_lens.numel() else 0
        if longest > self.block_table.shape[1] * block_size:
            raise ValueError(
                f"a row of {longest} tokens exceeds its {self.block_table.shape[1]} blocks of {block_size}"
            )

    def _seen_by(self, row: int, length: int, block_size: int, window: int | None) -> Seen:
        first = 0 if window is None else max(0, length - window)
        starts = range(first - first % block_size, length, block_size)
        blocks = self.block_table[row, first // block_size :][: len(starts)].tolist()
        slots = tuple(
            (block, max(first - start, 0), min(length - start, block_size))
            for block, start in zip(blocks, starts, strict=True)
        )
        num_documents = self.starts.shape[1]
        part_of_token = torch.full((length,), num_documents, dtype=torch.int64)
        for document, (start, end) in enumerate(zip(self.starts[row].tolist(), self.ends[row].tolist(), strict=True)):
            part_of_token[start:end] = document
        part_of_token = part_of_token[first:].to(self.block_table.device)
        return Seen(slots, part_of_token, num_documents + 1)


def _check(spans: Sequence[tuple[int, int]]) -> None:
    for start, end in spans:
        if not 0 <= start <= end:
            raise ValueError(f"({start}, {end}) is not a span of tokens: 0 <= start <= end must hold")
    ordered = sorted(span for span in spans if span[0] < span[1])
    for (start, end), (next_start, next_end) in itertools.pairwise(ordered):
        if next_start < end:
            raise ValueError(f"the documents ({start}, {end}) and ({next_start}, {next_end}) overlap")
