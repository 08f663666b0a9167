"""Arrays as flax serialises them: MessagePack, with an extension for arrays. Nothing of a file is run."""

from collections.abc import Iterator
from typing import Any

import msgpack
import torch
from torch import Tensor

from services.jobs.released_weights import UnusableWeights

# flax's extensions for an array and for a number that was one of numpy's.
ARRAY, NUMBER = 1, 3
DAMAGED = (AttributeError, msgpack.exceptions.UnpackException, RuntimeError, TypeError, ValueError)


def read_arrays(data: bytes) -> dict[str, Tensor]:
    """Read nested maps of arrays, by their paths: `params/clip/logit_scale`. Raises UnusableWeights."""
    try:
        content = msgpack.unpackb(data, ext_hook=_array)
        if not isinstance(content, dict):
            raise ValueError("it is no map")
        return dict(_paths(content))
    except DAMAGED as error:
        raise UnusableWeights(f"these are no arrays that flax serialised: {error!r}") from error


def _paths(content: dict[str, Any], above: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in content.items():
        path = f"{above}{name}"
        if isinstance(value, dict):
            yield from _paths(value, f"{path}/")
        elif isinstance(value, Tensor):
            yield path, value
        else:
            raise ValueError(f"{path} is a {type(value).__name__}")


def _array(kind: int, data: bytes) -> Tensor:
    if kind not in (ARRAY, NUMBER):
        raise ValueError(f"extension {kind} is none of arrays")
    shape, dtype, buffer = msgpack.unpackb(data)
    known = getattr(torch, str(dtype))
    if not isinstance(known, torch.dtype):
        raise ValueError(f"{dtype!r} is no type of numbers")
    if not buffer:
        return torch.empty(shape, dtype=known)
    return torch.frombuffer(bytearray(buffer), dtype=known).reshape(shape)  # torch warns of memory that is only read
