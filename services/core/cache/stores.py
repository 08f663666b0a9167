"""Stores of results: in this process here, and in Redis in `redis_store`."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

# The memory of an entry besides its value: the key, the table's slot, object headers.
ENTRY_OVERHEAD_BYTES = 400


@dataclass(frozen=True)
class Found:
    """The values that a store found for some keys; `num_failed` keys it could not look up, or held damaged."""

    values: Mapping[str, bytes]
    num_failed: int = 0


class ResultStore(Protocol):
    """A store of results. No method raises for a fault of the store itself."""

    async def get_many(self, keys: Sequence[str]) -> Found: ...

    def put_many(self, values: Mapping[str, bytes]) -> None:
        """Store values in the background; each may be found from now on, later, or never."""

    async def close(self) -> None: ...


class LruStore:
    """Results in this process, the least recently used dropped first.

    All entries together, overhead included, take at most `max_bytes`; a value that alone is larger is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._values: OrderedDict[str, bytes] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    async def get_many(self, keys: Sequence[str]) -> Found:
        found = {key: self._values[key] for key in keys if key in self._values}
        for key in found:
            self._values.move_to_end(key)
        return Found(found)

    def put_many(self, values: Mapping[str, bytes]) -> None:
        for key, value in values.items():
            if key in self._values:
                self._num_bytes -= len(self._values.pop(key)) + ENTRY_OVERHEAD_BYTES
            cost = len(value) + ENTRY_OVERHEAD_BYTES
            if cost > self._max_bytes:
                continue
            self._values[key] = value
            self._num_bytes += cost
            while self._num_bytes > self._max_bytes:
                _, dropped = self._values.popitem(last=False)
                self._num_bytes -= len(dropped) + ENTRY_OVERHEAD_BYTES

    async def close(self) -> None:
        self._values.clear()
        self._num_bytes = 0
