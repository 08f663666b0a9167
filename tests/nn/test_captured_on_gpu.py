"""Captured graphs on a GPU, beside what else the process does there."""

import gc
from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch
from torch import Tensor

from services.nn import captured
from services.nn.captured import Captured, Graphs
from services.nn.device_copies import to_device, to_host

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

WIDTH = 1024


def layers(seed: int) -> Callable[[Tensor], tuple[Tensor]]:
    """Make a function of several matrix products, for which cuBLAS needs a workspace."""
    torch.manual_seed(seed)
    weights = [torch.randn(WIDTH, WIDTH, device="cuda", dtype=torch.bfloat16) / WIDTH**0.5 for _ in range(8)]

    def run(x: Tensor) -> tuple[Tensor]:
        for weight in weights:
            x = (x @ weight).relu()
        return (x,)

    return run


def inputs(num: int) -> Tensor:
    return torch.randn(num, WIDTH, device="cuda", dtype=torch.bfloat16)


def assert_right(run: Captured, function: Callable[[Tensor], tuple[Tensor]]) -> None:
    for num in (1, 4, 16) * 3:
        x = inputs(num)
        torch.testing.assert_close(run(x, num_rows=num)[0], function(x)[0], atol=0.05, rtol=0.05)


@torch.inference_mode()
def test_graphs_compute_what_the_function_does(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []
    capture = captured.capture

    def noted(*arguments: object) -> captured.Graph:
        graphs.append(capture(*arguments))  # type: ignore[arg-type]
        return graphs[-1]

    monkeypatch.setattr(captured, "capture", noted)
    assert_right(Captured(function := layers(0)), function)
    assert len(graphs) == 3


@torch.inference_mode()
def test_graphs_outlive_those_of_another_model() -> None:
    functions = [layers(seed) for seed in range(2)]
    first, second = map(Captured, functions)
    assert_right(first, functions[0])
    assert_right(second, functions[1])
    del first
    gc.collect()
    torch.cuda.empty_cache()
    others = [inputs(4096) for _ in range(16)]
    assert_right(second, functions[1])
    assert all(bool(one.isfinite().all()) for one in others)


@torch.inference_mode()
def test_a_failed_capture_harms_neither_earlier_graphs_nor_later_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Graphs, "_fails", False)
    function, waits = layers(0), False

    def run(x: Tensor) -> tuple[Tensor]:
        if waits and float(x.sum()) > 0:  # the host may not wait while it captures
            return (x,)
        return function(x)

    kept, failing = Captured(function), Captured(run)
    assert_right(kept, function)
    waits = True
    for _ in range(3):
        x = -inputs(2).abs()
        torch.testing.assert_close(failing(x, num_rows=2)[0], function(x)[0], atol=0.05, rtol=0.05)
    torch.cuda.empty_cache()
    assert_right(kept, function)


@torch.inference_mode()
def test_copies_of_other_threads_are_not_captured() -> None:
    ends, errors = Event(), []

    def copy() -> None:
        with torch.inference_mode():
            while not ends.is_set():
                sent = torch.randn(256, 256)
                found = to_host(to_device(sent, torch.device("cuda")) + 1)
                if not torch.equal(torch.from_numpy(found), sent + 1):
                    errors.append(found)

    threads = [Thread(target=copy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for seed in range(5):
            assert_right(Captured(function := layers(seed)), function)
    finally:
        ends.set()
        for thread in threads:
            thread.join()
    assert not errors
