"""The work that a GPU would be given, counted without one: tensors on torch's meta device, which computes nothing.

Inside the block of a `CountedGPU`, tensors on `GPU` say that they are on CUDA, the host reads zeros from them, and one
of float64, which Apple's GPUs lack, raises TypeError. What runs must be in inference mode, as all that serves is:
elsewhere some operations are seen as the several that they are made of. A captured graph is one operation, `graph`;
what is captured must neither copy to the GPU nor read from it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from services.nn import captured
from services.nn.captured import Graph, Inputs, Outputs

GPU = torch.device("meta")
READS = ("item", "tolist", "__int__", "__float__", "__bool__", "__index__")
CREATIONS = ("tensor", "as_tensor", "new_tensor")
# Operations that start nothing: memory from a pool, numbers that travel as arguments, marks for training.
FREE = ("empty", "new_empty", "empty_like", "empty_strided", "scalar_tensor", "detach_", "lift_fresh")


class CountedGPU(TorchFunctionMode):
    """Counts operations on the GPU by name, and the numbers in each copy to it and in each read by the host.

    A read waits for everything that the GPU was given before.
    """

    _counting: ClassVar[list["CountedGPU"]] = []

    def __init__(self) -> None:
        super().__init__()
        self.operations: Counter[str] = Counter()
        self.uploads: list[int] = []
        self.reads: list[int] = []
        self._below = _Operations(self)

    @property
    def num_operations(self) -> int:
        return self.operations.total()

    @property
    def crossings(self) -> tuple[int, int]:
        """Number of copies to the GPU, and of reads."""
        return len(self.uploads), len(self.reads)

    @classmethod
    def of(cls, run: Callable[..., object], *args: object) -> Self:
        """Count those of a call."""
        with torch.inference_mode(), cls() as counted:
            run(*args)
        return counted

    def __enter__(self) -> Self:
        self._counting.append(self)
        self._real_capture, captured.capture = captured.capture, _capture
        self._below.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._below.__exit__(*error)  # type: ignore[no-untyped-call]
        captured.capture = self._real_capture
        self._counting.pop()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        if func == Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return _is_on_gpu(args[0])
        if name in READS and _is_on_gpu(args[0]):
            self.reads.append(args[0].numel())
            zeros = torch.zeros(args[0].shape, dtype=args[0].dtype)
            return getattr(zeros, name)()
        if name in ("__getitem__", "__setitem__") and _is_on_gpu(args[0]):
            args = (args[0], self._uploaded(args[1]), *args[2:])
        found = func(*args, **options)
        if name in CREATIONS and _is_on_gpu(found):
            self.uploads.append(found.numel())
        return found

    def _uploaded(self, index: Any) -> Any:
        """Copy the lists in an index, as torch does."""
        parts = index if isinstance(index, tuple) else (index,)
        if not any(isinstance(part, list) for part in parts):
            return index
        self.uploads += [len(part) for part in parts if isinstance(part, list)]
        return tuple(
            torch.empty(len(part), dtype=torch.int64, device=GPU) if isinstance(part, list) else part for part in parts
        )


def _capture(run: Callable[..., Outputs], inputs: Inputs, memory: Any) -> Graph:
    """Run as `captured.capture` does, and replay by counting."""
    run(*inputs)
    counted = CountedGPU._counting[-1]
    before = counted.crossings
    outputs = run(*inputs)
    assert counted.crossings == before, "a graph cannot copy from or to the host"

    def replay() -> None:
        CountedGPU._counting[-1].operations["graph"] += 1

    return Graph(replay, inputs, outputs)


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, counted: CountedGPU) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted = counted

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        name = func._schema.name.split("::")[-1]
        given = [one for one in tree_leaves((args, options)) if isinstance(one, Tensor)]
        if name in ("cpu", "to", "_to_copy") and _is_on_gpu(args[0]) and _goes_to_host(args, options):
            self._counted.reads.append(args[0].numel())
            return torch.zeros(args[0].shape, dtype=options.get("dtype") or args[0].dtype)
        found = func(*args, **options)
        made = [one for one in tree_leaves(found) if isinstance(one, Tensor)]
        if any(_is_on_gpu(one) and one.dtype == torch.float64 for one in made):
            raise TypeError("Apple's GPUs have no float64")
        if any(map(_is_on_gpu, made)):
            if any(one.device.type == "cpu" and one.dim() for one in given):
                self._counted.uploads.append(max(one.numel() for one in given if one.device.type == "cpu"))
            elif name not in FREE and (func._schema.is_mutable or not _are_views(made, given)):
                self._counted.operations[name] += 1
        return found


def _is_on_gpu(x: Any) -> bool:
    return isinstance(x, Tensor) and x.device == GPU


def _goes_to_host(args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Whether one of the arguments is the host's device, or a tensor on it."""
    devices = [one.device if isinstance(one, Tensor) else one for one in (*args[1:], *options.values())]
    return torch.device("cpu") in [one for one in devices if isinstance(one, torch.device)]


def _are_views(made: Iterable[Tensor], given: Iterable[Tensor]) -> bool:
    memories = {one.untyped_storage()._cdata for one in given}
    return all(one.untyped_storage()._cdata in memories for one in made)
