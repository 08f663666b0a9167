"""What crosses between host and device: calls that copy or wait on a GPU, seen on a CPU too."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, cast

import torch
from torch.overrides import TorchFunctionMode

READS = ("cpu", "item", "tolist", "__int__", "__float__", "__bool__")


class Copies(TorchFunctionMode):
    """Notes, inside its block, each copy to a device and each tensor that is read on the host, with its size."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name, options = getattr(func, "__name__", ""), dict(kwargs or {})
        if name in READS or (
            name in ("tensor", "to") and any(isinstance(one, torch.device) for one in _of(args, options))
        ):
            self.seen.append((name, args[0].numel() if isinstance(args[0], torch.Tensor) else 0))
        return func(*args, **options)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.seen]

    @property
    def most_read(self) -> int:
        """The numbers of the largest tensor that was read on the host."""
        return max((size for name, size in self.seen if name in READS), default=0)

    @classmethod
    def of(cls, run: Callable[..., object], *args: object) -> Self:
        """Note those of a call."""
        with cls() as copies:
            run(*args)
        return cast(Self, copies)


def _of(args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
    return [*args, *options.values()]
