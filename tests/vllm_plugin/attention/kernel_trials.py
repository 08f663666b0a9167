"""Run the kernels on random rows, interpreted on the CPU or compiled, and hold them to Eq. 3.5 token by token.

    TRITON_INTERPRET=1 python -m tests.vllm_plugin.attention.kernel_trials cpu FIRST COUNT
    python -m tests.vllm_plugin.attention.kernel_trials cuda FIRST COUNT

Triton decides on import whether it interprets, so this needs a process in which nothing has imported it before.
"""

import random
import sys

import torch

from fovea_vllm.attention import kernels
from fovea_vllm.attention.rows import DocumentRows
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
        out, attention = kernels.attend_rows(
            query, key_cache, value_cache, rows, alpha, scale=scale, window=window, piece=PIECE
        )
        expected_out, expected_attention = attend(trial, given)
        torch.testing.assert_close(out.double().cpu(), expected_out, rtol=0, atol=tolerance)
        torch.testing.assert_close(attention.double().cpu(), expected_attention, rtol=1e-4, atol=1e-7)


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
