"""A step's rows as one array of int32, from which the kernel learns in every layer what to do.

The array begins with `HEADER` numbers: the pieces of all rows, and where each section begins. A captured graph reads
it at a fixed address, so a step is written by one copy, and a step without rows by a zero.

Shapes: R rows, P pieces of all rows, L layers, H query heads of this worker, K documents of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fovea_vllm.attention.pieces import Ints, Pieces

Floats = NDArray[np.float32]

HEADER = 16
# in place of where a row's shares begin
ABSENT, PLAIN = -1, -2
# in place of a document's share: none of the documents that the row sees may get attention, so its head stays plain
UNSOLVABLE = -1.0


def shares_of(log_alpha: NDArray[np.float64], num_tokens: Ints, is_seen: NDArray[np.bool_]) -> Floats:
    """Compute N_k α_k / Σ_j N_j α_j over the documents that are seen: (…, K) log α → (…, K), 0 for the others.

    UNSOLVABLE where α is 0 for all that are seen.
    """
    with np.errstate(divide="ignore"):
        wanted = np.where(is_seen, log_alpha + np.log(np.maximum(num_tokens, 1)), -np.inf)
    largest = wanted.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(wanted - np.where(np.isfinite(largest), largest, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    return np.where(total > 0, weights / np.where(total > 0, total, 1.0), UNSOLVABLE).astype(np.float32)


@dataclass(frozen=True, eq=False)
class TableRow:
    """A row of a step.

    It is token `token` of the step's queries, in place `place` of the batch. `shares` are numbers of `shares_of`, flat;
    those of layer l begin at `share_at[l]`, which is ABSENT for layers in which the row does not act and PLAIN for
    those in which it is not calibrated, and those of head h lie h · `share_stride` behind. Its attention is kept from
    `measured_at` on, which is −1 for a row that is not measured, layer by layer (K, H).
    """

    token: int
    place: int
    pieces: Pieces
    num_tokens: Ints
    shares: Floats
    share_at: Ints
    share_stride: int = 0
    measured_at: int = -1


def num_ints(num_layers: int, num_pieces: int, num_documents: int, num_shares: int) -> int:
    """The numbers that a row adds to a table; `HEADER`, L and 1 more are there in any case."""
    return 4 * num_pieces + 7 + num_layers + num_documents + num_shares


def lay_out(rows: Sequence[TableRow]) -> Ints:
    """Write rows, of which there is at least one, into one array."""
    lengths = np.array([len(row.pieces) for row in rows], dtype=np.int32)
    shares = np.concatenate([row.shares.reshape(-1) for row in rows])
    num_tokens = np.concatenate([row.num_tokens for row in rows]).astype(np.int32)
    share_first = _begins([row.shares.size for row in rows])
    tokens_first = _begins([len(row.num_tokens) for row in rows])
    share_at: Any = np.stack([row.share_at for row in rows], axis=1)  # (L, R)
    share_at = np.where(share_at >= 0, share_at + share_first, share_at)
    sections = [
        np.repeat(np.arange(len(rows), dtype=np.int32), lengths),
        np.concatenate([row.pieces.start for row in rows]),
        np.concatenate([row.pieces.end for row in rows]),
        np.concatenate([row.pieces.part for row in rows]),
        np.concatenate((np.zeros(1, dtype=np.int32), lengths.cumsum(dtype=np.int32))),
        np.array([row.token for row in rows], dtype=np.int32),
        np.array([row.place for row in rows], dtype=np.int32),
        np.array([row.share_stride for row in rows], dtype=np.int32),
        np.array([row.measured_at for row in rows], dtype=np.int32),
        tokens_first,
        np.array([len(row.num_tokens) for row in rows], dtype=np.int32),
        (share_at != ABSENT).any(axis=1),
        share_at.reshape(-1),
        num_tokens,
        shares.view(np.int32),
    ]
    header = np.zeros(HEADER, dtype=np.int32)
    header[0] = lengths.sum()
    header[1:] = HEADER + _begins([section.size for section in sections])
    return np.concatenate((header, *(section.astype(np.int32, copy=False) for section in sections)))


def _begins(sizes: Sequence[int]) -> Ints:
    """Find where arrays of these sizes begin that follow each other."""
    found: Ints = (np.cumsum([0, *sizes])[:-1]).astype(np.int32)
    return found
