"""Functions that run as captured graphs, which keep their inputs and outputs in one place."""

import pytest
import torch
from torch import Tensor

from services.nn import captured
from services.nn.captured import MAX_GRAPHS, MAX_ROWS, Captured
from tests.nn.eager_graphs import eager_graphs


def sums(x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x + (0 if y is None else y), x.sum(dim=1)


def test_results_are_those_of_the_function_and_outlive_later_calls() -> None:
    run = Captured(sums)
    with eager_graphs() as graphs:
        calls = [(torch.randn(2, 3), y) for y in (torch.randn(2, 3), None, torch.randn(2, 3), None)]
        found = [run(*inputs) for inputs in calls]
    assert len(graphs) == 2  # with `y` and without
    for inputs, outputs in zip(calls, found, strict=True):
        for output, expected in zip(outputs, sums(*inputs), strict=True):
            assert torch.equal(output, expected)


def test_inputs_are_copied_and_stay_the_callers() -> None:
    run, x = Captured(sums), torch.zeros(1, 2)
    with eager_graphs():
        run(x)
        x += 1
        assert run(x)[1].item() == 2
        run(torch.full((1, 2), 7.0))
    assert x.tolist() == [[1, 1]]


def test_large_batches_and_processors_run_without_graphs() -> None:
    run = Captured(sums)
    assert run(torch.ones(1, 2))[1].tolist() == [2]
    with eager_graphs() as graphs:
        assert len(run(torch.ones(MAX_ROWS + 1, 2))[1]) == MAX_ROWS + 1
        assert len(run(torch.ones(MAX_ROWS, 2))[1]) == MAX_ROWS
        assert len(graphs) == 1


def test_shapes_beyond_the_maximum_run_without_graphs() -> None:
    run = Captured(sums)
    with eager_graphs() as graphs:
        for width in range(MAX_GRAPHS + 5):
            assert run(torch.ones(1, width))[1].tolist() == [width]
    assert len(graphs) == MAX_GRAPHS


def test_a_function_that_cannot_be_captured_still_runs_and_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    run = Captured(sums)
    with eager_graphs():
        monkeypatch.setattr(captured, "capture", fail)
        assert [run(torch.ones(rows, 2))[1].tolist() for rows in (1, 2, 1)] == [[2], [2, 2], [2]]
    assert len(tried) == 1
