"""Rows of queries are scored, measured and calibrated as Eq. 3.5 says of their weights.

With the unit vectors as values, what a row reads is its weights.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from services.generate.calibration import (
    Documents,
    attend_calibrated,
    measure_rows,
    measure_scores,
    row_scores,
    score_change,
)
from tests.generate.calibrated_weights import SPANS, alphas, mean_weight, rescaled_one_by_one


def rows(dtype: torch.dtype = torch.float64, num_keys: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (4, 6, 2, 5), keys (4, 3, S, 5), and values (4, 3, S, S) that spell out weights."""
    generator = torch.Generator().manual_seed(5)
    query = 2 * torch.randn(4, 6, 2, 5, generator=generator, dtype=torch.float64)
    key = torch.randn(4, 3, num_keys, 5, generator=generator, dtype=torch.float64)
    return query.to(dtype), key.to(dtype), torch.eye(num_keys, dtype=dtype).expand(4, 3, -1, -1)


def test_rows_of_a_group_share_its_keys() -> None:
    query, key, _ = rows()
    expected = query @ key.repeat_interleave(2, dim=1).transpose(2, 3) * 0.3
    torch.testing.assert_close(row_scores(query, key, 0.3), expected, atol=1e-12, rtol=0)
    mask = torch.rand(4, 2, 40, generator=torch.Generator().manual_seed(6)) < 0.5
    for some in (mask, mask[:, :1]):
        scores = row_scores(query, key, 0.3, some)
        torch.testing.assert_close(scores, expected.masked_fill(~some[:, None], -torch.inf), atol=1e-12, rtol=0)


def test_scores_of_half_precision_are_not_rounded_to_it() -> None:
    query, key, _ = rows(torch.bfloat16)
    scores = row_scores(query, key, 0.3)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, row_scores(query.float(), key.float(), 0.3), atol=1e-5, rtol=0)


@pytest.mark.parametrize("shape", [(), (6,)])
def test_calibrated_rows_keep_sums_other_weights_and_the_documents_weight(shape: tuple[int, ...]) -> None:
    query, key, value = rows()
    mask = torch.ones(4, 2, 40, dtype=torch.bool)
    mask[1, 0, :5] = False
    mask[:, 1, 38:] = False
    documents, log_alpha = Documents.of(SPANS), alphas(*shape)
    before = row_scores(query, key, 0.3, mask).softmax(dim=-1)
    after = attend_calibrated(query, key, value, 0.3, mask, documents, log_alpha)
    torch.testing.assert_close(after.sum(dim=-1), torch.ones(4, 6, 2, dtype=torch.float64), atol=1e-12, rtol=0)
    for row, spans in enumerate(SPANS):
        inside = torch.zeros(40, dtype=torch.bool)
        for start, end in spans:
            inside[start:end] = True
        torch.testing.assert_close(after[row, ..., ~inside], before[row, ..., ~inside], atol=1e-12, rtol=0)
        total = before[row, ..., inside].sum(dim=-1)
        torch.testing.assert_close(after[row, ..., inside].sum(dim=-1), total, atol=1e-12, rtol=0)
        if spans:
            alpha = log_alpha[row].exp() if shape == () else log_alpha[row, :, None].exp()
            torch.testing.assert_close(
                after[row], rescaled_one_by_one(before[row], spans, alpha.expand(6, 2, -1)), atol=1e-12, rtol=0
            )
    assert torch.equal(after[3], before[3])  # a row without documents is attended as ever
    # Eq. 3.6 where every document is seen: Attn_cal(k) = α_k C
    attention = mean_weight(after, documents)[2, ..., [0, 1, 3, 4]]
    alpha = (log_alpha[2] if shape == () else log_alpha[2, :, None])[..., [0, 1, 3, 4]].exp()
    kept = attention / alpha
    torch.testing.assert_close(kept, kept[..., :1].expand_as(kept), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_bias_as_additive_mask_of_sdpa_gives_the_same(dtype: torch.dtype, tolerance: float) -> None:
    query, key, value = rows(dtype)
    documents, mask = Documents.of(SPANS), torch.ones(4, 1, 40, dtype=torch.bool)
    mask[1, :, :5] = False
    change = score_change(row_scores(query, key, 0.3, mask), documents, alphas().to(dtype))
    assert change.shape == (4, 6, 2, 37)  # the last document ends there
    additive = F.pad(change, (0, 3)).masked_fill(~mask[:, None], -torch.inf)
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=additive, scale=0.3, enable_gqa=True)
    actual = attend_calibrated(query, key, value, 0.3, mask, documents, alphas().to(dtype))
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def test_a_document_next_to_nothing_still_gets_its_share() -> None:
    query, key, value = rows(torch.float32)
    query, key = query.abs(), key.abs()
    documents = Documents.of([[(0, 10), (10, 20)]] * 4)
    key[:, :, 10:20] -= 300  # of which softmax in float32 leaves 0
    assert (row_scores(query, key, 0.3).softmax(dim=-1)[..., 10:20] == 0).all()
    weights = attend_calibrated(query, key, value, 0.3, None, documents, torch.tensor([[0.2, 0.8]] * 4).log())
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(4, 6, 2), atol=1e-5, rtol=0)
    first, second = weights[..., :10].sum(dim=-1), weights[..., 10:20].sum(dim=-1)
    torch.testing.assert_close(second / first, torch.full((4, 6, 2), 4.0), atol=1e-3, rtol=0)


def test_documents_out_of_sight_leave_a_row_as_it_is() -> None:
    query, key, value = rows()
    mask = torch.zeros(4, 1, 40, dtype=torch.bool)
    mask[..., 37:] = True
    calibrated = attend_calibrated(query, key, value, 0.3, mask, Documents.of(SPANS), alphas())
    expected = row_scores(query, key, 0.3, mask).softmax(dim=-1)
    torch.testing.assert_close(calibrated, expected, atol=1e-12, rtol=0)


def test_measuring_in_parts_is_measuring_at_once() -> None:
    query, key, _ = rows()
    documents, mask = Documents.of(SPANS), torch.ones(4, 1, 40, dtype=torch.bool)
    mask[0, :, :7] = False
    expected = measure_scores(row_scores(query, key, 0.3, mask), documents)
    weights = mean_weight(row_scores(query, key, 0.3, mask).softmax(dim=-1), documents)
    torch.testing.assert_close(expected, weights, atol=1e-12, rtol=0)
    for max_scores in (1, 700, 1400, 1 << 20):
        assert torch.equal(measure_rows(query, key, 0.3, mask, documents, max_scores), expected)
