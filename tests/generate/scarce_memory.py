"""Memory that runs out where a test wants it to."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class ScarceMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, torch's operator of this name succeeds `num_successes` times and then finds no memory."""

    def __init__(self, operator: str, num_successes: int = 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operator = f"aten::{operator}"
        self._num_left = num_successes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run: Callable[..., Any] = func
        if func.name().split(".")[0] == self._operator:
            if not self._num_left:
                raise torch.OutOfMemoryError("CUDA out of memory")
            self._num_left -= 1
        return run(*args, **(kwargs or {}))
