"""Functions of tensors that a GPU runs as captured graphs.

For a few images the host takes longer to start a tower's operations, one by one, than the GPU to run them. A graph is
started as one, but only for the shapes and the memory that it was captured with.
"""

import functools
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import structlog
import torch
from torch import Tensor

# More rows than this keep a GPU busy for longer than the host takes to start them.
MAX_ROWS = 16
# Of one function: graphs, and the bytes of their inputs and outputs, at which no further one is captured.
MAX_GRAPHS = 128
MAX_BYTES = 2**28
# Shapes that came once are remembered up to this many.
MAX_SEEN = 1024

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

    # of the process, since before torch 2.13 a capture that fails leaves its allocator as if it went on
    _fails: ClassVar[bool] = False

    def __init__(self) -> None:
        self._captured: dict[Hashable, Graph] = {}
        self._seen: set[Hashable] = set()
        self._bytes_at: dict[int, int] = {}  # by address
        self._memory: Any = None

    def get(self, key: Hashable, run: Callable[..., Outputs], inputs: Callable[[], Inputs]) -> Graph | None:
        """Return the graph for `key`, captured from `run` with these inputs when the key comes the second time.

        None before that, once there are too many, and from the first time on that a capture fails in this process.
        """
        if (known := self._captured.get(key)) is not None:
            return known
        if self._fails or len(self._captured) >= MAX_GRAPHS or sum(self._bytes_at.values()) >= MAX_BYTES:
            return None
        if key not in self._seen:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen.add(key)
            return None
        self._seen.discard(key)
        try:
            graph = capture(run, inputs(), self._memory)
        except torch.OutOfMemoryError:
            return None  # another version of the model may leave soon
        except RuntimeError:
            Graphs._fails = True
            structlog.get_logger(__name__).warning("CUDA graphs are off", exc_info=True)
            return None
        self._captured[key], self._memory = graph, graph.memory
        storages = [x.untyped_storage() for x in (*graph.inputs, *graph.outputs) if x is not None]
        self._bytes_at |= {storage.data_ptr(): storage.nbytes() for storage in storages}
        return graph


class Captured:
    """Runs `run`, on CUDA as a captured graph for each set of shapes that comes more than once.

    `run` copies nothing from or to the host, and depends on nothing but its inputs: tensors of the same dtypes in each
    call, or None. On one thread at a time, under torch.inference_mode.
    """

    def __init__(self, run: Callable[..., Outputs]) -> None:
        self._run = run
        self._graphs = Graphs()

    def __call__(self, *inputs: Tensor | None, num_rows: int | None) -> Outputs:
        """Run with inputs on one device; outputs are the caller's own. Raises what `run` raises.

        There is no graph for more than MAX_ROWS rows together, nor for None.
        """
        is_on_gpu = any(x is not None and x.is_cuda for x in inputs)
        if not is_on_gpu or num_rows is None or num_rows > MAX_ROWS:
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
    pool, graph = memory or torch.cuda.graph_pool_handle(), torch.cuda.CUDAGraph()
    with _capturing, torch.cuda.device(device):
        run(*inputs)  # makes what is made once, such as constants
        with torch.cuda.stream(_stream(device)):
            # unlike with torch.cuda.graph, memory that other work will use again is not given back to the GPU; what
            # other threads do meanwhile, such as allocating page-locked memory, is neither captured nor refused
            graph.capture_begin(pool, capture_error_mode="thread_local")
            try:
                # so that cuBLAS has its workspace in the graph's memory: that of the stream is freed with any of the
                # stream's graphs
                torch._C._cuda_clearCublasWorkspaces()
                outputs = run(*inputs)
            finally:
                torch._C._cuda_clearCublasWorkspaces()
                graph.capture_end()
    return Graph(graph.replay, inputs, outputs, pool)


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Make the stream of captures: of another priority than those of copies, since torch gives streams out again."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
