"""Run the kernels on random rows, interpreted on the CPU or compiled, and hold them to Eq. 3.5 token by token.

    TRITON_INTERPRET=1 python -m tests.vllm_plugin.attention.kernel_trials cpu FIRST COUNT
    python -m tests.vllm_plugin.attention.kernel_trials cuda FIRST COUNT

Triton decides on import whether it interprets, so this needs a process in which nothing has imported it before.
"""

import dataclasses
import random
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fovea_vllm.attention.kernels import Scratch, launch
from fovea_vllm.attention.pieces import cut
from fovea_vllm.attention.rows import DocumentRows
from fovea_vllm.attention.table import PLAIN, TableRow, lay_out, shares_of
from tests.vllm_plugin.attention.reference import attend, random_shape, random_trial

# Half precision rounds the weights that it multiplies values with, at most to 1 + 2⁻¹¹ of themselves, bfloat16 to
# 1 + 2⁻⁸, which the interpreter computes in float32.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-5}
COMPILED_TOLERANCES = {**TOLERANCES, torch.bfloat16: 2e-2}
PIECE = 40  # so that parts of a hundred tokens have several


def hold(seed: int, device: str) -> None:
    """Compare one trial, calibrated with an alpha for all heads or for each, and only measured every third time.

    Every seventh has logits so far apart that documents underflow in their rows.
    """
    dtype = list(TOLERANCES)[seed % 3]
    tolerance = (TOLERANCES if device == "cpu" else COMPILED_TOLERANCES)[dtype]
    trial = random_trial(random_shape(random.Random(seed), max_rows=2, max_heads=7), seed, dtype)
    if seed % 7 == 0:
        trial.query.mul_(40)
        tolerance *= 20
    rows = DocumentRows.of(trial.block_table.to(device), trial.shape.lengths, trial.shape.spans)
    log_alpha = trial.log_alpha
    if seed % 4 == 0:
        log_alpha = log_alpha[..., None] + torch.randn(
            trial.shape.num_heads, generator=torch.Generator().manual_seed(seed)
        )
    if seed % 5 == 0:
        log_alpha[:, : seed % 3] = -torch.inf
    for given in (log_alpha, None)[: 1 + (seed % 3 == 0)]:
        query, key_cache, value_cache = (x.to(device) for x in (trial.query, trial.key_cache, trial.value_cache))
        alpha = None if given is None else given.to(device)
        scale, window = trial.shape.width**-0.5, trial.shape.window
        out, attention = attend_rows(query, key_cache, value_cache, rows, alpha, scale=scale, window=window, size=PIECE)
        expected_out, expected_attention = attend(trial, given)
        if given is not None and rows.starts.shape[1]:
            torch.testing.assert_close(out.double().cpu(), expected_out, rtol=0, atol=tolerance)
        torch.testing.assert_close(attention.double().cpu(), expected_attention, rtol=1e-4, atol=1e-7)


def attend_rows(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: DocumentRows,
    log_alpha: Tensor | None,
    *,
    scale: float,
    window: int | None = None,
    size: int,
) -> tuple[Tensor, Tensor]:
    """Compute what `attend_documents` does, in pieces of about `size` tokens; without α the output is not written."""
    num_rows, num_heads, width = query.shape
    num_documents = rows.starts.shape[1]
    out = query.new_empty(query.shape, dtype=torch.float32)
    alpha = None if log_alpha is None else log_alpha.double().cpu().numpy()
    laid = [_table_row(rows, row, None if alpha is None else alpha[row], window, size, num_heads)
            for row in range(num_rows)]  # fmt: skip
    table = torch.from_numpy(lay_out(laid))
    attention = query.new_zeros((num_rows, num_documents, num_heads), dtype=torch.float32)
    scratch = Scratch.of(
        query.device,
        num_ints=len(table),
        num_pieces=sum(len(row.pieces) for row in laid),
        num_rows=num_rows,
        heads=(num_heads, key_cache.shape[2], width),
    )
    scratch.table.copy_(table)
    scratch = dataclasses.replace(scratch, measured=attention)
    launch(query, key_cache, value_cache, rows.block_table, out, scratch, layer=0, scale=scale)
    return out, attention


def _table_row(rows: DocumentRows, row: int, log_alpha: Any, window: int | None, size: int, num_heads: int) -> TableRow:
    """Lay out a row of which each is calibrated, with log α (K,) or (K, H), and measured."""
    spans = list(zip(rows.starts[row].tolist(), rows.ends[row].tolist(), strict=True))
    last = int(rows.seq_lens[row])
    first = 0 if window is None else max(0, last - window)
    num_tokens = np.array([end - start for start, end in spans], dtype=np.int32)
    is_seen = np.array([max(start, first) < min(end, last) for start, end in spans], dtype=np.bool_)
    is_calibrated = log_alpha is not None and len(spans) > 0
    return TableRow(
        row,
        row,
        cut(spans, first, last, size),
        num_tokens,
        shares_of(log_alpha.T, num_tokens, is_seen) if is_calibrated else np.zeros(0, dtype=np.float32),
        np.array([0 if is_calibrated else PLAIN], dtype=np.int32),
        len(spans) if is_calibrated and log_alpha.ndim == 2 else 0,
        row * len(spans) * num_heads,
    )


def main() -> None:
    device, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for seed in range(first, first + count):
        try:
            hold(seed, device)
        except AssertionError as error:
            raise SystemExit(f"trial {seed}: {error}") from error
    print(f"{count} trials")


if __name__ == "__main__":
    main()
