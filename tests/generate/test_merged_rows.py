"""Calibrated rows merged from attention over each document alone are those of Eq. 3.5 with a weight for each token."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from services.generate.calibration import Documents, attend_calibrated, log_alpha, row_scores
from tests.generate.calibrated_weights import SPANS, alphas
from tests.generate.merged_parts import merge_parts

GOLDENS = Path(__file__).parents[1] / "goldens"
Spans = list[tuple[int, int]]


def rows(num_keys: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (4, 6, 2, 5) of two heads a group, keys and values (4, 3, S, 5)."""
    generator = torch.Generator().manual_seed(5)
    query = 2 * torch.randn(4, 6, 2, 5, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, 4, 3, num_keys, 5, generator=generator, dtype=torch.float64)
    return query, key, value


def parts_of(scores: Tensor, value: Tensor, spans: Spans, num_documents: int) -> tuple[Tensor, Tensor]:
    """Attend one row over each document alone and over the rest: (…, S), (…, S, D') → (…, K + 1, D'), (…, K + 1)."""
    num_keys = scores.shape[-1]
    outside = set(range(num_keys)).difference(*(range(*span) for span in spans))
    tokens = [list(range(*span)) for span in spans] + [[]] * (num_documents - len(spans)) + [sorted(outside)]
    log_mass = torch.stack([scores[..., part].logsumexp(dim=-1) for part in tokens], dim=-1)
    outputs = [(scores[..., part].softmax(dim=-1)[..., None] * value[..., part, :]).sum(dim=-2) for part in tokens]
    return torch.stack(outputs, dim=-2), log_mass


def merged(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, spans: list[Spans], log_alpha: Tensor
) -> Tensor:
    """Merge all rows of a batch, as `attend_calibrated` attends them; `log_alpha` (B, 1 or H, 1, K)."""
    scores = row_scores(query, key, 0.3, mask)
    values = value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)[:, :, None]
    num_tokens = Documents.of(spans).num_tokens
    together = []
    for row, own in enumerate(spans):
        outputs, log_mass = parts_of(scores[row], values[row], own, num_tokens.shape[1])
        together.append(merge_parts(outputs, log_mass, log_alpha[row], num_tokens[row]))
    return torch.stack(together)


@pytest.mark.parametrize("shape", [(), (6,)])
def test_grouped_rows_with_empty_and_unseen_documents_are_those_of_the_weights(shape: tuple[int, ...]) -> None:
    query, key, value = rows()
    mask = torch.ones(4, 2, 40, dtype=torch.bool)
    start, end = SPANS[0][0]
    mask[0, 0, start:end] = False
    mask[1, 0, :5] = False
    mask[:, 1, 38:] = False
    assert any(start == end for spans in SPANS for start, end in spans)
    alpha = alphas(*shape)
    expected = attend_calibrated(query, key, value, 0.3, mask, Documents.of(SPANS), alpha)
    actual = merged(query, key, value, mask, SPANS, alpha[:, None, None] if shape == () else alpha[:, :, None])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_a_vanishing_alpha_leaves_a_document_nothing_and_the_others_all() -> None:
    query, key, value = rows()
    spans = [[(0, 10), (10, 20), (25, 40)]] * 4
    for faint in (1e-3, 1e-30, 1e-300, 0.0):
        alpha = torch.tensor([[0.4, faint, 0.6]], dtype=torch.float64).expand(4, 3).log()
        expected = attend_calibrated(query, key, value, 0.3, None, Documents.of(spans), alpha)
        torch.testing.assert_close(
            merged(query, key, value, None, spans, alpha[:, None, None]), expected, rtol=0, atol=1e-12
        )
    outputs, log_mass = parts_of(row_scores(query, key, 0.3), value.repeat_interleave(2, 1)[:, :, None], spans[0], 3)
    num_tokens = torch.tensor([10, 10, 15])
    with_it = merge_parts(outputs, log_mass, torch.tensor([0.4, 0.0, 0.6], dtype=torch.float64).log(), num_tokens)
    outputs[..., 1, :] = 1e6
    without = merge_parts(outputs, log_mass, torch.tensor([0.4, 0.0, 0.6], dtype=torch.float64).log(), num_tokens)
    assert torch.equal(with_it, without)


def test_one_document_and_none_are_plain_attention() -> None:
    query, key, value = rows()
    plain = row_scores(query, key, 0.3).softmax(dim=-1) @ value.repeat_interleave(2, 1)
    one: list[Spans] = [[(4, 17)]] * 4
    none: list[Spans] = [[]] * 4
    for spans in (one, none):
        alpha = torch.zeros(4, 1, 1, len(spans[0]))
        torch.testing.assert_close(merged(query, key, value, None, spans, alpha), plain, rtol=0, atol=1e-12)


def test_rows_whose_documents_all_have_alpha_0_are_left_as_they_are() -> None:
    query, key, value = rows()
    plain = row_scores(query, key, 0.3).softmax(dim=-1) @ value.repeat_interleave(2, 1)
    alpha = torch.full((4, 1, 1, 5), -torch.inf)
    torch.testing.assert_close(merged(query, key, value, None, SPANS, alpha), plain, rtol=0, atol=1e-12)


def test_a_document_whose_weight_underflows_still_gets_its_share() -> None:
    outputs = torch.tensor([[1.0], [2.0], [0.0]])
    log_mass = torch.tensor([0.0, -500.0, -torch.inf])
    assert log_mass.softmax(dim=-1)[1] == 0
    row = merge_parts(outputs, log_mass, torch.tensor([0.5, 0.5]).log(), torch.tensor([10, 30]))
    torch.testing.assert_close(row, torch.tensor([1.75]))


@pytest.mark.parametrize("case", ["f0", "f1", "f2", "f3", "f4"])
def test_with_unit_vectors_as_values_the_goldens_weights_are_merged(case: str) -> None:
    golden = {name: array for name, array in np.load(GOLDENS / "fitm_calibration.npz").items() if f"{case}/" in name}
    (facts,) = [c for c in json.loads((GOLDENS / "fitm.json").read_text())["cases"] if c["case"] == case]
    layers = facts["intervened_layers"]
    logits = torch.from_numpy(golden[f"{case}/logits"]).double()[layers]
    spans = [(int(start), int(end)) for start, end in golden[f"{case}/spans"]]
    num_tokens = Documents.of([spans]).num_tokens[0]
    alpha = log_alpha(torch.from_numpy(golden[f"{case}/rel"]).double(), facts["t"], num_tokens)
    unit = torch.eye(logits.shape[-1], dtype=torch.float64)
    weights = merge_parts(*parts_of(logits, unit, spans, len(spans)), alpha, num_tokens)
    expected = torch.from_numpy(golden[f"{case}/calibrated"]).double()[layers]
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=1e-6)
