"""Functions of tensors that a GPU runs as captured graphs.

For a few images the host takes longer to start a tower's operations, one by one, than the GPU to run them. A graph is
started as one, but only for the shapes and the memory that it was captured with.
"""

from collections.abc import Callable
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
Shapes = tuple[torch.Size | None, ...]


class Graph(NamedTuple):
    """A captured graph: `replay` reads `inputs` and overwrites `outputs`, all of which stay where they are.

    Others may be captured in the same `memory` if outputs are copied before another one is replayed.
    """

    replay: Callable[[], None]
    inputs: Inputs
    outputs: Outputs
    memory: Any = None


class Captured:
    """Runs `run`, on CUDA as a captured graph for each set of shapes that comes.

    `run` copies nothing from or to the host, and depends on nothing but its inputs: tensors of the same dtypes in each
    call, or None. On one thread at a time, under torch.inference_mode.
    """

    def __init__(self, run: Callable[..., Outputs]) -> None:
        self._run = run
        self._graphs: dict[Shapes, Graph] = {}
        self._memory: Any = None
        self._max_graphs = MAX_GRAPHS

    def __call__(self, *inputs: Tensor | None) -> Outputs:
        """Run with inputs on one device; outputs are the caller's own. Raises what `run` raises."""
        given = [x for x in inputs if x is not None]
        if not given[0].is_cuda or max(map(len, given)) > MAX_ROWS:
            return self._run(*inputs)
        shapes = tuple(None if x is None else x.shape for x in inputs)
        graph = self._graphs.get(shapes) or self._capture(shapes, inputs)
        if graph is None:
            return self._run(*inputs)
        for kept, x in zip(graph.inputs, inputs, strict=True):
            if kept is not None and x is not None:
                kept.copy_(x)
        graph.replay()
        return tuple(x.clone() for x in graph.outputs)

    def _capture(self, shapes: Shapes, inputs: Inputs) -> Graph | None:
        """Capture for these shapes; None if there are too many, and from the first time on that it fails."""
        if len(self._graphs) >= self._max_graphs:
            return None
        kept = tuple(None if x is None else x.clone() for x in inputs)
        try:
            graph = self._graphs[shapes] = capture(self._run, kept, self._memory)
        except RuntimeError as error:
            self._max_graphs = 0
            structlog.get_logger(__name__).warning("CUDA graphs are off", error=str(error))
            return None
        self._memory = graph.memory
        return graph


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
