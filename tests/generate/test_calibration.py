"""Calibration keeps the promises of its equations: held to goldens, and stable where numbers run out."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.generate.calibration import (
    Documents,
    calibrate_weights_,
    document_attention,
    document_log_mass,
    log_alpha,
    log_rescale,
    rank,
    relevance,
    spread,
)
from tests.generate.calibrated_weights import calibrated_weights, mean_weight, rescale, without_first

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = ["f0", "f1", "f2", "f3", "f4"]
TOLERANCES = [(torch.float64, 1e-6), (torch.float32, 1e-4)]


@cache
def facts(case: str) -> dict[str, Any]:
    (found,) = [c for c in json.loads((GOLDENS / "fitm.json").read_text())["cases"] if c["case"] == case]
    return dict(found)


class Golden:
    """One case of a file, in one precision: integers stay, everything else is of `dtype`."""

    def __init__(self, file: str, case: str = "", dtype: torch.dtype = torch.float64) -> None:
        self._arrays = np.load(GOLDENS / f"{file}.npz")
        self._prefix = f"{case}/" if case else ""
        self._dtype = dtype

    def __getitem__(self, name: str) -> Tensor:
        x = torch.from_numpy(self._arrays[self._prefix + name])
        return x.to(self._dtype) if x.is_floating_point() else x

    @property
    def documents(self) -> Documents:
        return Documents.of([self["spans"].tolist()])


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_document_attention_from_weights_and_from_logits_is_the_goldens(
    case: str, dtype: torch.dtype, tolerance: float
) -> None:
    golden = Golden("fitm_calibration", case, dtype)
    documents, logits = golden.documents, golden["logits"][None]
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    from_logits = document_attention(log_mass, logits.logsumexp(dim=-1), documents.num_tokens)
    from_weights = mean_weight(golden["attn"][None], documents)
    assert_close(from_logits[0, :, :, -1], golden["attn_lh"], tolerance / 100)
    assert_close(from_weights[0, :, :, -1], golden["attn_lh"], tolerance / 100)
    assert_close(from_logits[0, :, :, -1].mean(dim=(0, 1)), golden["attn_mean"], tolerance / 100)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_relevance_alpha_and_ranking_are_the_goldens(case: str, dtype: torch.dtype, tolerance: float) -> None:
    golden, t = Golden("fitm_calibration", case, dtype), facts(case)["t"]
    num_documents = len(golden["spans"])
    num_tokens = golden.documents.num_tokens[0]
    dummies = [golden[f"dum{k}/dummy_attn"].mean(dim=-1) for k in range(num_documents)]
    dummy_attention = torch.stack(dummies, dim=-1)
    assert_close(dummy_attention, golden["attn_dum_lh"], tolerance / 100)

    rel = relevance(golden["attn_lh"], dummy_attention)
    assert_close(rel, golden["rel"], tolerance / 100)
    alpha = log_alpha(rel, t, num_tokens)
    assert_close(alpha.exp(), golden["alpha"], tolerance)
    per_head = relevance(golden["attn_lh"], dummy_attention, scope="per_head")
    assert_close(per_head, golden["rel_lh"], tolerance / 100)
    assert_close(log_alpha(per_head, t, num_tokens).exp(), golden["alpha_lh"], tolerance)

    assert rank(rel).tolist() == golden["rank_calibrated"].tolist()
    assert rank(golden["attn_mean"]).tolist() == golden["rank_vanilla"].tolist()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_rescaling_by_logits_and_by_weights_is_the_goldens(case: str, dtype: torch.dtype, tolerance: float) -> None:
    golden, layers = Golden("fitm_calibration", case, dtype), facts(case)["intervened_layers"]
    documents, logits = golden.documents, golden["logits"][None]
    alpha = log_alpha(golden["rel"], facts(case)["t"], documents.num_tokens)
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    log_c = log_rescale(alpha[:, None, None, None], log_mass, documents.num_tokens)
    # of log c the absolute error counts: what a weight is multiplied by is its exponential
    assert_close(log_c[0, layers], Golden("fitm_calibration", case)["c"][layers].log().to(dtype), tolerance)
    biased = logits.clone()
    change = spread(log_c, documents)
    biased[..., : change.shape[-1]] += change
    assert_close(biased.softmax(dim=-1)[0, layers], golden["calibrated"][layers], tolerance)

    c, kept = rescale(golden["attn"][None], documents, alpha.exp())
    assert_close(kept[0, layers], golden["C"][layers], tolerance)
    explicit = calibrated_weights(golden["attn"][None], documents, alpha.exp())
    assert_close(explicit[0, layers], golden["calibrated"][layers], tolerance)
    if dtype == torch.float64:
        assert_close(c[0, layers], golden["c"][layers], tolerance)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_with_one_relevance_a_head_the_weights_are_the_goldens(case: str, dtype: torch.dtype, tolerance: float) -> None:
    golden, layers = Golden("fitm_calibration", case, dtype), facts(case)["intervened_layers"]
    documents, logits = golden.documents, golden["logits"][None]
    alpha = log_alpha(golden["rel_lh"], facts(case)["t"], documents.num_tokens)[None, :, :, None]
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    change = spread(log_rescale(alpha, log_mass, documents.num_tokens), documents)
    logits[..., : change.shape[-1]] += change
    expected = golden["calibrated_perhead_rel"][layers]
    assert_close(logits.softmax(dim=-1)[0, layers], expected, tolerance)
    explicit = calibrated_weights(golden["attn"][None], documents, alpha.exp())
    assert_close(explicit[0, layers], expected, tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
def test_a_long_prompt_with_the_papers_temperature_is_the_goldens(dtype: torch.dtype, tolerance: float) -> None:
    golden = Golden("fitm_realistic", dtype=dtype)
    documents, logits = golden.documents, golden["attn"][None].log()
    rel = golden["attn_mean"] - golden["attn_dum_mean"]
    assert_close(rel, golden["rel"], tolerance / 100)
    alpha = log_alpha(rel, 5e-5, documents.num_tokens)
    assert_close(alpha[0].exp(), golden["alpha"], tolerance)
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    log_c = log_rescale(alpha[:, None, None, None], log_mass, documents.num_tokens)
    layers = [2, 3]
    assert_close(log_c[0, layers, :, 0].exp(), golden["c"][layers], tolerance)
    change = spread(log_c, documents)
    logits[..., : change.shape[-1]] += change
    assert_close(logits.softmax(dim=-1)[0, layers], golden["calibrated"][layers], tolerance)


def rows_of(documents: Documents, *, seed: int = 0, num_keys: int = 40) -> Tensor:
    """Logits (B, 3, 2, T) of some rows."""
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(documents.index.shape[0], 3, 2, num_keys, generator=generator, dtype=torch.float64)


def calibrate(logits: Tensor, documents: Documents, alpha: Tensor) -> Tensor:
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    change = spread(log_rescale(alpha[:, None, None], log_mass, documents.num_tokens[:, None, None]), documents)
    biased = logits.clone()
    biased[..., : change.shape[-1]] += change
    return biased.softmax(dim=-1)


UNEQUAL = [[(3, 9), (9, 20), (22, 30)], [(1, 2)], [], [(0, 5), (5, 5), (30, 40)]]


def test_rows_keep_their_sum_their_other_weights_and_their_documents_weight() -> None:
    documents = Documents.of(UNEQUAL)
    logits = rows_of(documents)
    alpha = log_alpha(torch.randn(4, 3, generator=torch.Generator().manual_seed(1)), 0.3, documents.num_tokens)
    before, after = logits.softmax(dim=-1), calibrate(logits, documents, alpha)
    assert_close(after.sum(dim=-1), torch.ones(4, 3, 2, dtype=torch.float64), 1e-12)
    for row, spans in enumerate(UNEQUAL):
        inside = torch.zeros(40, dtype=torch.bool)
        for start, end in spans:
            inside[start:end] = True
        assert_close(after[row, ..., ~inside], before[row, ..., ~inside], 1e-12)
        assert_close(after[row, ..., inside].sum(dim=-1), before[row, ..., inside].sum(dim=-1), 1e-12)
    # Eq. 3.6: a document's mean weight is α times what all of them share
    attention = mean_weight(after, documents)
    _, kept = rescale(before, documents, alpha.exp())
    has_any = documents.num_tokens.sum(dim=-1) > 0
    assert_close(attention[has_any], (alpha.exp()[:, None, None] * kept[..., None])[has_any], 1e-7)
    assert torch.equal(after[2], before[2])


def test_documents_of_a_batch_are_calibrated_as_each_row_by_itself() -> None:
    documents = Documents.of(UNEQUAL)
    logits = rows_of(documents)
    rel = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = calibrate(logits, documents, log_alpha(rel, 0.3, documents.num_tokens))
    for row, spans in enumerate(UNEQUAL):
        own = Documents.of([spans])
        alone = calibrate(logits[row : row + 1], own, log_alpha(rel[row : row + 1, : len(spans)], 0.3, own.num_tokens))
        assert_close(alone[0], together[row], 1e-12)


def test_one_document_keeps_every_weight() -> None:
    documents = Documents.of([[(4, 17)]])
    logits = rows_of(documents)
    alpha = log_alpha(torch.tensor([[123.0]]), 5e-5, documents.num_tokens)
    assert alpha.tolist() == [[0.0]]
    assert_close(calibrate(logits, documents, alpha), logits.softmax(dim=-1), 1e-14)


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 1e-60])
def test_a_vanishing_temperature_gives_all_to_the_most_relevant_document(temperature: float) -> None:
    documents = Documents.of([[(0, 10), (10, 20), (20, 30), (30, 30)]])
    logits = rows_of(documents).float()
    alpha = log_alpha(torch.tensor([[0.2, 0.5, 0.4999, 9.0]]), temperature, documents.num_tokens)
    assert not alpha.isnan().any()
    assert alpha[0, 3] == -torch.inf
    weights = calibrate(logits, documents, alpha)
    expected = logits.softmax(dim=-1)[..., :30].sum(dim=-1)
    share = weights[..., 10:20].sum(dim=-1)
    assert_close(weights.sum(dim=-1), torch.ones(1, 3, 2), 1e-6)
    if temperature < 1e-6:
        assert_close(share, expected, 1e-5)


def test_temperatures_that_are_not_above_zero_are_refused() -> None:
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="must be above 0"):
            log_alpha(torch.zeros(1, 2), temperature, torch.ones(1, 2))


def test_equal_relevance_is_equal_attention_a_token() -> None:
    documents = Documents.of([[(0, 3), (3, 20), (25, 30)]])
    weights = calibrate(rows_of(documents), documents, log_alpha(torch.zeros(1, 3), 5e-5, documents.num_tokens))
    attention = mean_weight(weights, documents)
    assert_close(attention, attention[..., :1].expand_as(attention), 1e-7)


def test_masked_and_empty_documents_are_left_out_and_the_others_share_all_of_the_weight() -> None:
    documents = Documents.of([[(0, 10), (10, 20), (20, 30), (35, 35)]])
    logits = rows_of(documents)
    logits[..., 0, 10:20] = -torch.inf  # the first of two rows does not see document 1
    logits[..., 0, 20:24] = -torch.inf  # and only a part of document 2
    alpha = log_alpha(torch.tensor([[0.1, 0.9, 0.3, 5.0]]), 0.5, documents.num_tokens)
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    log_c = log_rescale(alpha[:, None, None], log_mass, documents.num_tokens[:, None, None])
    assert not log_c.isnan().any()
    assert (log_c[..., 0, 1] == 0).all()
    assert (log_c[..., 3] == 0).all()
    before, after = logits.softmax(dim=-1), calibrate(logits, documents, alpha)
    assert_close(after.sum(dim=-1), torch.ones(1, 3, 2, dtype=torch.float64), 1e-12)
    assert_close(after[..., :30].sum(dim=-1), before[..., :30].sum(dim=-1), 1e-12)
    assert_close(after[..., 30:], before[..., 30:], 1e-12)
    attention = mean_weight(after, documents)
    wanted = (alpha[0, 2] - alpha[0, 0]).exp().double()
    assert_close(attention[..., 2] / attention[..., 0], wanted.expand(1, 3, 2), 1e-6)
    assert_close(calibrated_weights(before, documents, alpha.exp()), after, 1e-6)


def test_rows_without_any_visible_document_are_left_alone() -> None:
    documents = Documents.of([[(0, 10), (12, 20)], []])
    logits = rows_of(documents)
    logits[0, :, :, :20] = -torch.inf
    alpha = log_alpha(torch.tensor([[1.0, 2.0], [0.0, 0.0]]), 0.5, documents.num_tokens)
    assert (alpha[1] == -torch.inf).all()
    assert torch.equal(calibrate(logits, documents, alpha), logits.softmax(dim=-1))
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    attention = document_attention(log_mass, logits.logsumexp(dim=-1), documents.num_tokens[:, None, None])
    assert (attention == 0).all()


def test_prompts_without_documents_have_nothing_to_calibrate() -> None:
    documents = Documents.of([[], []])
    logits = rows_of(documents)
    assert torch.equal(calibrate(logits, documents, torch.zeros(2, 0)), logits.softmax(dim=-1))
    assert mean_weight(logits.softmax(dim=-1), documents).shape == (2, 3, 2, 0)


def test_a_document_whose_weight_underflows_still_gets_its_share() -> None:
    documents = Documents.of([[(0, 10), (10, 20)]])
    logits = rows_of(documents).float()
    logits[..., 10:20] -= 500
    assert (logits.softmax(dim=-1)[..., 10:20] == 0).all()
    weights = calibrate(logits, documents, log_alpha(torch.zeros(1, 2), 1.0, documents.num_tokens))
    assert_close(weights[..., 10:20].sum(dim=-1), weights[..., :10].sum(dim=-1), 1e-4)
    assert_close(weights.sum(dim=-1), torch.ones(1, 3, 2), 1e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-7), (torch.float32, 1e-5)])
def test_rescaling_in_place_is_rescaling_by_logits(dtype: torch.dtype, tolerance: float) -> None:
    documents = Documents.of(UNEQUAL)
    logits = rows_of(documents).to(dtype)
    for shape in [(1, 3), (6, 3)]:
        rel = torch.randn(4, *shape, generator=torch.Generator().manual_seed(1))
        alpha = log_alpha(rel, 0.3, documents.num_tokens[:, None])
        weights = logits.softmax(dim=-1).flatten(1, 2)
        assert calibrate_weights_(weights, documents, alpha)
        by_row = alpha.expand(4, 6, 3).reshape(4, 3, 2, 3)
        log_mass = document_log_mass(logits, documents.index, documents.mask)
        change = spread(log_rescale(by_row, log_mass, documents.num_tokens[:, None, None]), documents)
        biased = logits.clone()
        biased[..., : change.shape[-1]] += change
        assert_close(weights.view(4, 3, 2, 40), biased.softmax(dim=-1), tolerance)


def test_weights_that_cannot_be_rescaled_in_place_are_left_as_they_are() -> None:
    documents = Documents.of([[(0, 10), (10, 20)]])
    unseen, faint = rows_of(documents).float(), rows_of(documents).float()
    unseen[..., 0, 10:20] = -torch.inf
    faint[..., 0, 10:20] -= 90
    for logits in (unseen, faint):
        weights = logits.softmax(dim=-1).flatten(1, 2)
        before = weights.clone()
        assert not calibrate_weights_(weights, documents, torch.zeros(1, 1, 2))
        assert torch.equal(weights, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype: torch.dtype) -> None:
    documents = Documents.of([[(0, 1000), (1000, 3000)]])
    weights = torch.full((1, 2, 1, 3000), 1 / 3000).to(dtype)
    exact = weights[0, 0, 0, 0].item()
    attention = mean_weight(weights, documents)
    assert attention.dtype == torch.float32
    # a running sum of the same thousands of numbers in their own precision would be off by far more
    assert_close(attention, torch.full((1, 2, 1, 2), exact), 1e-5)
    logits = torch.zeros(1, 2, 1, 3000, dtype=dtype)
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    assert log_mass.dtype == torch.float32
    assert_close(log_mass.exp()[0, 0, 0], torch.tensor([1000.0, 2000.0]), 1e-4)
    rel = relevance(torch.zeros(2, 3, 2, dtype=dtype), torch.ones(2, 3, 2, dtype=dtype))
    assert rel.dtype == log_alpha(rel.to(dtype), 1.0, documents.num_tokens[0]).dtype == torch.float32


def test_relevance_counts_the_chosen_layers_alone() -> None:
    attention, dummy = torch.rand(2, 5, 4, 3, 6, generator=torch.Generator().manual_seed(0)).unbind(0)
    difference = attention - dummy
    assert_close(relevance(attention, dummy), difference.mean(dim=(1, 2)), 1e-6)
    assert_close(relevance(attention, dummy, layers=[1, 3]), difference[:, [1, 3]].mean(dim=(1, 2)), 1e-6)
    per_head = relevance(attention, dummy, layers=[3, 1], scope="per_head")
    assert_close(per_head, difference[:, [3, 1]], 0)


def test_of_equally_relevant_documents_the_earlier_ranks_first() -> None:
    rel = torch.tensor([0.1, 0.5, 0.1, 0.5, 0.9])
    assert rank(rel).tolist() == [4, 1, 3, 0, 2]
    assert rank(torch.zeros(40)).tolist() == list(range(40))


def test_the_input_is_not_written_to() -> None:
    documents = Documents.of(UNEQUAL)
    logits = rows_of(documents)
    weights = logits.softmax(dim=-1)
    copies = logits.clone(), weights.clone()
    alpha = log_alpha(torch.zeros(4, 3), 1.0, documents.num_tokens)
    log_mass = document_log_mass(logits, documents.index, documents.mask)
    kept = alpha.clone(), log_mass.clone()
    log_rescale(alpha[:, None, None], log_mass, documents.num_tokens[:, None, None])
    mean_weight(weights, documents)
    calibrated_weights(weights, documents, alpha.exp())
    assert all(map(torch.equal, (logits, weights, alpha, log_mass), (*copies, *kept)))


@pytest.mark.parametrize("span", [(-1, 3), (5, 4)])
def test_spans_that_are_not_of_tokens_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="not a span of tokens"):
        Documents.of([[(0, 2)], [span]])


def test_documents_lose_their_first_tokens_with_the_window_and_keep_their_length() -> None:
    documents = Documents.of([[(0, 4), (4, 9), (9, 12)]])
    later = without_first(documents, 6)
    weights = torch.rand(1, 2, 14, generator=torch.Generator().manual_seed(0))
    weights[..., :6] = 0
    assert_close(mean_weight(weights[..., 6:], later), mean_weight(weights, documents), 1e-6)
    assert later.num_tokens.tolist() == [[4, 5, 3]]
    assert later.document_of_token.tolist() == [[1, 1, 1, 2, 2, 2]]
