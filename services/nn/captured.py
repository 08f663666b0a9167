"""Functions of tensors that a GPU runs as captured graphs.

For a few images the host takes longer to start a tower's operations, one by one, than the GPU to run them. A graph is
started as one, but only for the shapes and the memory that it was captured with.
"""

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, NamedTuple

import structlog
import torch
from torch import Tensor

# More rows than this keep a GPU busy for longer than the host takes to start them.
MAX_ROWS = 16
# Graphs of one function: each holds its outputs, and a few kilobytes for each of its operations.
MAX_GRAPHS = 128

Outputs = tuple[Tensor, ...]
Inputs = tuple[Tensor | None, ...]


class Graph(NamedTuple):
    """A captured graph: `replay` reads `inputs` and overwrites `outputs`, all of which stay where they are.

    Others may be captured in the same `memory` if outputs are copied before another one is replayed.
    """

    replay: Callable[[], None]
    inputs: Inputs
    outputs: Outputs
    memory: Any = None


class Graphs:
    """Graphs by what they were captured for, in shared memory: one of them runs at a time, on one thread."""

    def __init__(self) -> None:
        self._captured: dict[Hashable, Graph] = {}
        self._memory: Any = None
        self._fails = False

    def get(self, key: Hashable, run: Callable[..., Outputs], inputs: Callable[[], Inputs]) -> Graph | None:
        """Return the graph for `key`, captured from `run` with these inputs if there is none.

        None if there are too many, and from the first time on that a capture fails.
        """
        if key in self._captured or self._fails or len(self._captured) >= MAX_GRAPHS:
            return self._captured.get(key)
        try:
            graph = self._captured[key] = capture(run, inputs(), self._memory)
        except RuntimeError as error:
            self._fails = True
            structlog.get_logger(__name__).warning("CUDA graphs are off", error=str(error))
            return None
        self._memory = graph.memory
        return graph


class Captured:
    """Runs `run`, on CUDA as a captured graph for each set of shapes that comes.

    `run` copies nothing from or to the host, and depends on nothing but its inputs: tensors of the same dtypes in each
    call, or None. On one thread at a time, under torch.inference_mode.
    """

    def __init__(self, run: Callable[..., Outputs]) -> None:
        self._run = run
        self._graphs = Graphs()

    def __call__(self, first: Tensor, *others: Tensor | None) -> Outputs:
        """Run with inputs on one device, `first` (B, …); outputs are the caller's own. Raises what `run` raises."""
        inputs = (first, *others)
        if not first.is_cuda or len(first) > MAX_ROWS:
            return self._run(*inputs)
        shapes = tuple(None if x is None else x.shape for x in inputs)
        graph = self._graphs.get(shapes, self._run, lambda: tuple(None if x is None else x.clone() for x in inputs))
        if graph is None:
            return self._run(*inputs)
        for kept, x in zip(graph.inputs, inputs, strict=True):
            if kept is not None and x is not None:
                kept.copy_(x)
        graph.replay()
        return tuple(x.clone() for x in graph.outputs)


_capturing = Lock()  # torch captures one graph at a time


def capture(run: Callable[..., Outputs], inputs: Inputs, memory: Any) -> Graph:
    """Capture `run` with these inputs, in memory of its own if `memory` is None.

    Raises RuntimeError if it does what no graph can hold.
    """
    device = next(x.device for x in inputs if x is not None)
    current = torch.cuda.current_stream(device)
    pool, stream = memory or (torch.cuda.graph_pool_handle(), torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
    graph = torch.cuda.CUDAGraph()
    # torch's own context does not restore the stream if a capture fails
    with _capturing, torch.cuda.device(device), torch.cuda.stream(stream):
        stream.wait_stream(current)
        run(*inputs)  # libraries allocate their workspaces
        # what other threads do meanwhile, such as allocating page-locked memory, is neither captured nor refused
        with torch.cuda.graph(graph, pool, stream, capture_error_mode="thread_local"):
            outputs = run(*inputs)
    current.wait_stream(stream)
    return Graph(graph.replay, inputs, outputs, (pool, stream))
