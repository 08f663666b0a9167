"""Calibrated attention over paged keys and values in torch, against Eq. 3.5 token by token."""

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fovea_vllm.attention.attend import attend_documents, merge_weights
from fovea_vllm.attention.rows import DocumentRows
from tests.generate.merged_parts import merge_parts
from tests.vllm_plugin.attention.reference import Shape, Trial, attend, random_shape, random_trial

GOLDENS = Path(__file__).parents[2] / "goldens"
SHAPE = Shape(6, 2, 32, 16, None, (70, 41, 5), (((3, 20), (20, 37), (50, 50), (51, 64)), ((30, 40), (0, 9)), ()))


def attended(trial: Trial, log_alpha: Tensor | None, **options: Any) -> tuple[Tensor, Tensor]:
    rows = DocumentRows.of(trial.block_table, trial.shape.lengths, trial.shape.spans)
    caches = (trial.key_cache, trial.value_cache)
    options = {"scale": trial.shape.width**-0.5, "window": trial.shape.window, **options}
    return attend_documents(trial.query, *caches, rows, log_alpha, **options)


def assert_equal(actual: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], tolerance: float = 1e-10) -> None:
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("seed", range(10))
def test_random_rows_are_attended_by_equation_3_5_and_measured_without_it(seed: int) -> None:
    random_numbers = random.Random(seed)
    for number in range(20):
        trial = random_trial(random_shape(random_numbers), 100 * seed + number)
        for log_alpha in (trial.log_alpha, None):
            assert_equal(attended(trial, log_alpha), attend(trial, log_alpha))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float16, 1e-5), (torch.bfloat16, 1e-5)])
def test_half_precision_is_widened_before_it_is_multiplied(dtype: torch.dtype, tolerance: float) -> None:
    trial = random_trial(SHAPE, 1, dtype)
    out, attention = attended(trial, trial.log_alpha.float())
    assert out.dtype == attention.dtype == torch.float32
    assert_equal((out, attention), attend(trial, trial.log_alpha), tolerance)


def test_a_step_may_have_no_rows() -> None:
    cache = torch.zeros(1, 16, 2, 32)
    rows = DocumentRows.of(torch.zeros(0, 1, dtype=torch.int32), [], [])
    out, attention = attend_documents(torch.zeros(0, 4, 32), cache, cache, rows, None, scale=1.0)
    assert (out.shape, attention.shape) == ((0, 4, 32), (0, 0, 4))


def test_every_head_may_have_its_own_alpha() -> None:
    trial = random_trial(SHAPE, 2)
    log_alpha = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64).log_softmax(1)
    assert_equal(attended(trial, log_alpha), attend(trial, log_alpha))
    same = trial.log_alpha[..., None].expand(3, 4, 6)
    assert_equal(attended(trial, same), attended(trial, trial.log_alpha))


def test_rows_of_alpha_0_are_only_measured_beside_calibrated_ones() -> None:
    trial = random_trial(SHAPE, 4)
    log_alpha = trial.log_alpha.clone()
    log_alpha[0] = -torch.inf
    out, attention = attended(trial, log_alpha)
    plain, measured = attend(trial, None)
    calibrated, _ = attend(trial, trial.log_alpha)
    assert_equal((out[0], attention), (plain[0], measured))
    assert_equal((out[1], out[2]), (calibrated[1], plain[2]))
    assert not torch.allclose(calibrated[1], plain[1])


def test_a_document_of_alpha_0_gets_nothing_and_the_others_its_weight() -> None:
    trial = random_trial(SHAPE, 5)
    log_alpha = trial.log_alpha.clone()
    log_alpha[0, 1] = -torch.inf
    assert_equal(attended(trial, log_alpha), attend(trial, log_alpha))


def test_documents_outside_the_window_leave_their_weight_to_those_that_are_seen() -> None:
    trial = random_trial(dataclasses.replace(SHAPE, window=30), 6)
    out, attention = attended(trial, trial.log_alpha)
    assert (attention[0, :2] == 0).all()  # they end before position 40, and this row sees 40 to 69
    assert_equal((out, attention), attend(trial, trial.log_alpha))
    # of its documents the second row sees (30, 40) alone, which so keeps every weight
    assert_equal((out[1], attention), (attend(trial, None)[0][1], attention))


def test_a_document_whose_weight_underflows_still_gets_its_share() -> None:
    shape = Shape(1, 1, 32, 16, None, (40,), (((0, 10), (10, 20)),))
    trial = random_trial(shape, 7, torch.float32)
    rows = DocumentRows.of(trial.block_table, [40], shape.spans)
    query = torch.zeros(1, 1, 32)
    query[..., 0] = 1.0
    for position in range(40):
        place = trial.block_table[0, position // 16], position % 16
        trial.key_cache[place] = -500.0 if 10 <= position < 20 else 0.0
        trial.value_cache[place] = float(10 <= position < 20)
    caches = (trial.key_cache, trial.value_cache)
    plain, attention = attend_documents(query, *caches, rows, None, scale=1.0)
    assert (plain == 0).all()
    assert attention[0, 1, 0] == 0
    out, _ = attend_documents(query, *caches, rows, torch.tensor([[0.5, 0.5]]).log(), scale=1.0)
    # 10 of the 30 tokens with weight are a document's, and the two documents share that third evenly
    torch.testing.assert_close(out, torch.full_like(out, 1 / 6))


def test_parts_are_merged_as_the_own_engine_merges_them() -> None:
    generator = torch.Generator().manual_seed(11)
    lse = 3 * torch.randn(3, 2, 5, generator=generator, dtype=torch.float64)
    lse[0, :, 1] = lse[1, :, 4] = -torch.inf
    num_tokens = torch.tensor([[5, 4, 0, 9], [1, 2, 3, 4], [7, 7, 7, 7]])
    lse[0, :, 2] = -torch.inf  # as it has no tokens
    log_alpha = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    log_alpha[2] = -torch.inf
    outputs = torch.eye(5, dtype=torch.float64).expand(3, 2, 5, 5)
    expected = merge_parts(outputs, lse, log_alpha[:, None], num_tokens[:, None])
    torch.testing.assert_close(merge_weights(lse, num_tokens, log_alpha), expected)


@pytest.mark.parametrize("case", ["f0", "f1", "f2", "f3", "f4"])
def test_rows_with_the_goldens_logits_are_attended_with_the_goldens_weights(case: str) -> None:
    golden = {name: array for name, array in np.load(GOLDENS / "fitm_calibration.npz").items() if f"{case}/" in name}
    (facts,) = [c for c in json.loads((GOLDENS / "fitm.json").read_text())["cases"] if c["case"] == case]
    layer = facts["intervened_layers"][0]
    logits = torch.from_numpy(golden[f"{case}/logits"]).double()[layer, :, -1]  # of the last row, (H, T)
    expected = torch.from_numpy(golden[f"{case}/calibrated"]).double()[layer, :, -1]
    num_heads, num_tokens = logits.shape
    num_blocks = -(-num_tokens // 16)
    # each head is its own group with the logits as keys, and the values are random
    key_cache = torch.zeros(num_blocks * 16, num_heads, 32, dtype=torch.float64)
    key_cache[:num_tokens, :, 0] = logits.T
    value_cache = torch.randn(key_cache.shape, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    query = torch.zeros(1, num_heads, 32, dtype=torch.float64)
    query[..., 0] = 1.0
    spans = [(int(start), int(end)) for start, end in golden[f"{case}/spans"]]
    rows = DocumentRows.of(torch.arange(num_blocks, dtype=torch.int32)[None], [num_tokens], [spans])
    caches = (key_cache.view(num_blocks, 16, num_heads, 32), value_cache.view(num_blocks, 16, num_heads, 32))
    log_alpha = torch.from_numpy(golden[f"{case}/alpha"]).double().log()[None]
    out, attention = attend_documents(query, *caches, rows, log_alpha, scale=1.0)
    values = value_cache[:num_tokens].transpose(0, 1)
    torch.testing.assert_close(out[0], (expected[:, None] @ values)[:, 0], rtol=0, atol=1e-6)
    measured = torch.from_numpy(golden[f"{case}/attn"]).double()[layer, :, -1]
    means = torch.stack([measured[:, start:end].mean(dim=-1) for start, end in spans])
    torch.testing.assert_close(attention[0], means, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"soft_cap": 30.0}, r"soft cap \(30.0\)"),
        ({"window": 0}, "window must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_calibrated_is_refused(options: dict[str, Any], message: str) -> None:
    trial = random_trial(SHAPE, 9)
    with pytest.raises(ValueError, match=message):
        attended(trial, trial.log_alpha, **options)


def test_tensors_that_do_not_fit_each_other_are_refused() -> None:
    trial = random_trial(SHAPE, 10)
    refused = {
        r"log_alpha must be \(3, 4\)": (trial, torch.zeros(3, 5)),
        "3 queries, but 2 rows": (
            dataclasses.replace(
                trial,
                block_table=trial.block_table[:2],
                shape=dataclasses.replace(SHAPE, lengths=SHAPE.lengths[:2], spans=SHAPE.spans[:2]),
            ),
            None,
        ),
        "5 query heads are not a multiple of 2": (dataclasses.replace(trial, query=trial.query[:, :5]), None),
        "need caches": (dataclasses.replace(trial, query=trial.query[..., :16]), None),
        "one dtype": (dataclasses.replace(trial, key_cache=trial.key_cache.to(torch.float8_e4m3fn)), None),
        "70 tokens exceeds its 4 blocks of 16": (
            dataclasses.replace(trial, block_table=trial.block_table[:, :4]),
            None,
        ),
    }
    for message, (changed, log_alpha) in refused.items():
        with pytest.raises(ValueError, match=message):
            attended(changed, log_alpha)


@pytest.mark.parametrize(
    ("lengths", "spans", "message"),
    [
        ([4, 5], [[]], "1 rows in the block table, 2 in seq_lens and 1 in spans"),
        ([0], [[]], "at least 1, not 0"),
        ([9], [[(3, 2)]], r"\(3, 2\) is not a span"),
        ([9], [[(-1, 2)]], r"\(-1, 2\) is not a span"),
        ([9], [[(5, 8), (0, 6)]], r"\(0, 6\) and \(5, 8\) overlap"),
    ],
)
def test_rows_that_do_not_exist_and_spans_that_overlap_are_refused(
    lengths: list[int], spans: list[list[tuple[int, int]]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DocumentRows.of(torch.zeros(1, 1, dtype=torch.int32), lengths, spans)
