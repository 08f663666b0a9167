"""Arrays as flax serialises them: MessagePack, with an extension for arrays.

Only what flax writes is read: maps, lists, texts, numbers, bytes and arrays. Nothing of a file is run.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from services.jobs.released_weights import UnusableWeights

# flax's extensions for an array and for a number that was one of numpy's.
ARRAY, NUMBER = 1, 3
# Formats of numbers and lengths by MessagePack's first byte.
FLOATS = {0xCA: ">f", 0xCB: ">d"}
INTEGERS = {
    **{0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"},
    **{0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"},
}
LENGTHS = ">B", ">H", ">I"
CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
DAMAGED = (AttributeError, IndexError, KeyError, RecursionError, RuntimeError, TypeError, ValueError, struct.error)


def read_arrays(data: bytes) -> dict[str, Tensor]:
    """Read nested maps of arrays, by their paths: `params/clip/logit_scale`. Raises UnusableWeights."""
    try:
        reader = _Reader(bytearray(data))
        content = reader.value()
        reader.check_end()
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


class _Reader:
    """Reads one value after the other; arrays share the memory of `data`."""

    def __init__(self, data: bytearray | memoryview) -> None:
        self._data = memoryview(data)
        self._place = 0

    def check_end(self) -> None:
        """Raises ValueError if something follows."""
        if self._place != len(self._data):
            raise ValueError(f"{len(self._data) - self._place} bytes follow")

    def value(self) -> Any:
        """Read the next value. Raises what DAMAGED names."""
        first = self._number(">B")
        if first in CONSTANTS:
            return CONSTANTS[first]
        if first < 0x80 or first >= 0xE0:
            return first if first < 0x80 else first - 0x100
        if first in INTEGERS or first in FLOATS:
            return self._number((INTEGERS | FLOATS)[first])
        return self._sized(first)

    def _sized(self, first: int) -> Any:
        """Read a value that begins with its length."""
        if first < 0xC0:
            short: list[tuple[int, Callable[[int], Any], int]]
            short = [(0x90, self._map, 0xF), (0xA0, self._list, 0xF), (0xC0, self._text, 0x1F)]
            return next(read(first & mask) for end, read, mask in short if first < end)
        if 0xD4 <= first <= 0xD8:
            return self._extension(2 ** (first - 0xD4))
        long: dict[int, tuple[Callable[[int], Any], int]] = {
            **{0xC4 + i: (self._bytes, i) for i in range(3)},
            **{0xC7 + i: (self._extension, i) for i in range(3)},
            **{0xD9 + i: (self._text, i) for i in range(3)},
            **{0xDC + i: (self._list, 1 + i) for i in range(2)},
            **{0xDE + i: (self._map, 1 + i) for i in range(2)},
        }
        read, size = long[first]
        return read(self._number(LENGTHS[size]))

    def _bytes(self, length: int) -> memoryview:
        found = self._data[self._place : self._place + length]
        if len(found) != length:
            raise ValueError("the file ends too early")
        self._place += length
        return found

    def _number(self, form: str) -> Any:
        (number,) = struct.unpack(form, self._bytes(struct.calcsize(form)))
        return number

    def _text(self, length: int) -> str:
        return str(self._bytes(length), "utf-8")

    def _list(self, length: int) -> list[Any]:
        return [self.value() for _ in range(length)]

    def _map(self, length: int) -> dict[str, Any]:
        found = {}
        for _ in range(length):
            name = self.value()
            if not isinstance(name, str) or name in found:
                raise ValueError(f"{name!r} is no name, or one of two")
            found[name] = self.value()
        return found

    def _extension(self, length: int) -> Tensor:
        kind = self._number(">b")
        if kind not in (ARRAY, NUMBER):
            raise ValueError(f"extension {kind} is none of arrays")
        reader = _Reader(self._bytes(length))
        shape, dtype, buffer = reader.value()
        reader.check_end()
        known = getattr(torch, str(dtype))
        if not isinstance(known, torch.dtype) or not isinstance(buffer, memoryview):
            raise ValueError(f"{dtype!r} is no type of numbers")
        return torch.frombuffer(buffer, dtype=known).reshape(shape) if len(buffer) else torch.empty(shape, dtype=known)
