"""Functions that run as captured graphs, which keep their inputs and outputs in one place."""

import pytest
import torch
from torch import Tensor

from services.nn import captured
from services.nn.captured import MAX_BYTES, MAX_GRAPHS, MAX_ROWS, Captured, Graphs
from tests.nn.eager_graphs import eager_graphs


def sums(x: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
    return x + (0 if y is None else y), x.sum(dim=1)


def sum_of(run: Captured, *numbers: float) -> list[float]:
    found: list[float] = run(torch.tensor([numbers]), num_rows=1)[1].tolist()
    return found


def test_results_are_those_of_the_function_and_outlive_later_calls() -> None:
    run = Captured(sums)
    with eager_graphs() as graphs:
        calls = [(torch.randn(2, 3), y) for y in (torch.randn(2, 3), None) * 4]
        found = [run(*inputs, num_rows=2) for inputs in calls]
    assert len(graphs) == 2  # with `y` and without
    for inputs, outputs in zip(calls, found, strict=True):
        for output, expected in zip(outputs, sums(*inputs), strict=True):
            assert torch.equal(output, expected)


def test_inputs_are_copied_and_stay_the_callers() -> None:
    run, x = Captured(sums), torch.zeros(1, 2)
    with eager_graphs():
        for added in (0, 0, 1):
            x += added
            assert run(x, num_rows=1)[1].item() == 2 * added
        assert sum_of(run, 7, 7) == [14]
    assert x.tolist() == [[1, 1]]


def test_a_shape_that_comes_once_is_not_captured() -> None:
    run = Captured(sums)
    with eager_graphs() as graphs:
        assert [sum_of(run, *[1] * width) for width in (1, 2, 3)] == [[1], [2], [3]]
        assert not graphs
        assert sum_of(run, 4, 5) == [9]
        assert len(graphs) == 1


def test_large_batches_and_processors_run_without_graphs() -> None:
    run = Captured(sums)
    assert [sum_of(run, 1, 1) for _ in range(3)] == [[2]] * 3
    with eager_graphs() as graphs:
        for num_rows in (MAX_ROWS + 1, MAX_ROWS) * 2:
            assert len(run(torch.ones(num_rows, 2), num_rows=num_rows)[1]) == num_rows
    assert len(graphs) == 1


def test_shapes_beyond_the_maximum_run_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Captured(sums)
    monkeypatch.setattr(captured, "MAX_SEEN", 10)
    with eager_graphs() as graphs:
        for width in range(MAX_GRAPHS + 5):
            assert [sum_of(run, *[1.0] * width) for _ in range(3)] == [[width]] * 3
    assert len(graphs) == MAX_GRAPHS


def test_graphs_that_hold_much_memory_are_the_last() -> None:
    run = Captured(lambda x: (x,))
    many = MAX_BYTES // 4
    with eager_graphs() as graphs:
        for width in (10, many, 20, 30, 10):
            for _ in range(2):
                assert run(torch.ones(1, width), num_rows=1)[0].sum() == width
    assert [graph.inputs[0].numel() for graph in graphs if graph.inputs[0] is not None] == [10, many]


@pytest.mark.parametrize(("error", "num_tries"), [(RuntimeError, 1), (torch.OutOfMemoryError, 2)])
def test_a_function_that_cannot_be_captured_still_runs(
    error: type[Exception], num_tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried again where memory was short."""
    tried = []

    def fail(*_: object) -> None:
        tried.append(1)
        raise error("cannot be captured")

    monkeypatch.setattr(Graphs, "_fails", False)
    run, other = Captured(sums), Captured(sums)
    with eager_graphs():
        monkeypatch.setattr(captured, "capture", fail)
        assert [sum_of(run, 1, 1) for _ in range(5)] == [[2]] * 5
        assert len(tried) == num_tries
        assert [sum_of(other, 1, 1) for _ in range(2)] == [[2]] * 2
    assert len(tried) == num_tries + (error is not RuntimeError)
