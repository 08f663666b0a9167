"""Keys and values of prompts that were answered, for the next prompt that begins as one of them did.

What is kept is what the model computes by itself: rows that ran under calibration are never put here.

Shapes: T tokens.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.generate.kv_cache import KeyValues

TokenIds = np.ndarray[Any, np.dtype[np.int64]]

# Fewer tokens than these are not worth their copying.
MIN_REUSED_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Prefix:
    """A sequence's first T tokens: `input_ids` (T,) int64 and what the model cached for them."""

    input_ids: TokenIds
    key_values: KeyValues

    def first(self, num_tokens: int) -> KeyValues:
        """Of the first tokens alone."""
        return KeyValues(self.key_values.keys[:, :, :num_tokens], self.key_values.values[:, :, :num_tokens])


class PrefixCache:
    """Prefixes of at most `max_bytes` together; the one that was not used for longest goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._kept: OrderedDict[int, Prefix] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, input_ids: TokenIds) -> tuple[int, Prefix | None]:
        """How many of these tokens a kept prefix begins with, at most, and that prefix; 0 and None where none does."""
        found = ((num_shared(input_ids, one.input_ids), key) for key, one in self._kept.items())
        shared, best = max(found, default=(0, 0))
        if not shared:
            return 0, None
        self._kept.move_to_end(best)
        return shared, self._kept[best]

    def covers(self, input_ids: TokenIds) -> bool:
        """Whether a prefix that begins with all of these tokens is kept."""
        return self.longest(input_ids)[0] == len(input_ids)

    def put(self, prefix: Prefix) -> None:
        """Keep it instead of those that it begins with; one larger than the whole cache is not kept."""
        size = prefix.key_values.num_bytes
        if size > self.max_bytes:
            return
        for key, one in list(self._kept.items()):
            if num_shared(prefix.input_ids, one.input_ids) == len(one.input_ids):
                self._drop(key)
        while self.num_bytes + size > self.max_bytes:
            self._drop(next(iter(self._kept)))
        self._kept[id(prefix)] = prefix
        self.num_bytes += size

    def clear(self) -> None:
        """Let go of everything."""
        self._kept.clear()
        self.num_bytes = 0

    def _drop(self, key: int) -> None:
        self.num_bytes -= self._kept.pop(key).key_values.num_bytes


def as_token_ids(input_ids: Sequence[int]) -> TokenIds:
    """(T,) int64."""
    return np.array(input_ids, dtype=np.int64)


def num_shared(some: TokenIds, others: TokenIds) -> int:
    """Tokens that both sequences begin with."""
    length = min(len(some), len(others))
    differs = some[:length] != others[:length]
    return int(differs.argmax()) if differs.any() else length
