"""Graphs of `Captured` without a GPU: a replay runs the function again, in the same memory."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from services.nn import captured
from services.nn.captured import Graph, Inputs, Outputs


@contextmanager
def eager_graphs(*, are_wrong: bool = False) -> Iterator[list[Graph]]:
    """Let tensors say that they are on CUDA, and yield the graphs that are captured meanwhile.

    Graphs that `are_wrong` change a number of each result.
    """
    graphs: list[Graph] = []

    def capture(run: Callable[..., Outputs], inputs: Inputs, memory: Any) -> Graph:
        outputs = tuple(x.clone() for x in run(*inputs))

        def replay() -> None:
            for kept, new in zip(outputs, run(*inputs), strict=True):
                kept.copy_(new)
                if are_wrong:
                    kept[..., -1] -= 100

        graphs.append(Graph(replay, inputs, outputs))
        return graphs[-1]

    real_capture, captured.capture = captured.capture, capture
    try:
        with _OnCuda():
            yield graphs
    finally:
        captured.capture = real_capture


class _OnCuda(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        return func(*args, **(kwargs or {}))
