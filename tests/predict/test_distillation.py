"""The losses are those of the released training, whole or in parts, and nothing where there is nothing to learn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from services.predict.distillation import (
    IGNORED,
    alpha_of,
    multi_task_loss,
    target_loss,
)

GOLDENS = Path(__file__).parents[1] / "goldens"
ARRAYS = np.load(GOLDENS / "distill_loss.npz")
CASES = json.loads((GOLDENS / "distill_loss.json").read_text())["cases"]
TOLERANCES = [(torch.float64, 1e-9), (torch.float32, 1e-6)]
cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])


def golden(case: dict[str, Any], asked: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    logits, labels = (torch.from_numpy(ARRAYS[f"{case['case']}/{asked}/{name}"]) for name in ("logits", "labels"))
    return logits.to(dtype), labels


@cases
@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES, ids=["float64", "float32"])
def test_losses_are_the_released_ones(case: dict[str, Any], dtype: torch.dtype, tolerance: float) -> None:
    label_loss = target_loss(*golden(case, "pred", dtype))
    rationale_loss = target_loss(*golden(case, "expl", dtype))
    assert label_loss.dtype == dtype
    assert label_loss.item() == pytest.approx(case["pred_loss"], rel=tolerance)
    assert rationale_loss.item() == pytest.approx(case["expl_loss"], rel=tolerance)
    loss = multi_task_loss(label_loss, rationale_loss, case["alpha"])
    assert loss.item() == pytest.approx(case["loss"], rel=tolerance)


@cases
def test_as_many_tokens_count_as_were_published(case: dict[str, Any]) -> None:
    assert (golden(case, "pred")[1] != IGNORED).sum() == case["n_label_tokens"]
    assert (golden(case, "expl")[1] != IGNORED).sum() == case["n_rationale_tokens"]


@cases
def test_the_parts_of_a_batch_add_up_to_the_whole(case: dict[str, Any]) -> None:
    logits, labels = golden(case, "expl")
    whole = target_loss(logits, labels)
    total = (labels != IGNORED).sum()
    parts = [target_loss(logits[i : i + 1], labels[i : i + 1], num_targets=total) for i in range(2)]
    parts.append(target_loss(logits[2:], labels[2:], num_targets=int(total)))
    torch.testing.assert_close(torch.stack(parts).sum(), whole)


def test_an_example_without_a_target_changes_nothing() -> None:
    logits, labels = golden(CASES[1], "expl")
    emptied = labels.clone()
    emptied[0] = IGNORED
    expected = target_loss(logits[1:], labels[1:])
    torch.testing.assert_close(target_loss(logits, emptied), expected)


def test_a_batch_without_targets_has_no_loss_and_no_gradient() -> None:
    logits = torch.randn(2, 3, 5, requires_grad=True)
    loss = target_loss(logits, torch.full((2, 3), IGNORED))
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert logits.grad is not None
    assert not logits.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_single(dtype: torch.dtype) -> None:
    logits, labels = golden(CASES[1], "expl")
    loss = target_loss(logits.to(dtype), labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, target_loss(logits.to(dtype).float(), labels))


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.9, 1.0])
def test_both_forms_differ_by_a_factor(alpha: float) -> None:
    label_loss, rationale_loss = torch.tensor(2.0), torch.tensor(3.0)
    weight = (1 - alpha) / alpha
    weighted = label_loss + weight * rationale_loss
    torch.testing.assert_close(alpha * weighted, multi_task_loss(label_loss, rationale_loss, alpha))
    assert alpha_of(weight) == pytest.approx(alpha)


def test_equal_weights_are_the_default() -> None:
    label_loss, rationale_loss = torch.tensor(2.0), torch.tensor(3.0)
    assert multi_task_loss(label_loss, rationale_loss).item() == 2.5


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_is_a_share(alpha: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        multi_task_loss(torch.tensor(1.0), torch.tensor(1.0), alpha)


@pytest.mark.parametrize("weight", [-0.1, float("nan")])
def test_rationales_do_not_weigh_less_than_nothing(weight: float) -> None:
    with pytest.raises(ValueError, match="at least 0"):
        alpha_of(weight)
