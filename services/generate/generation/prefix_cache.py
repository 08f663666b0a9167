"""Keys and values of answered prompts, for later prompts with the same beginning.

Only results of the plain model are kept, never rows that ran under calibration. Each tenant finds only its own prompts,
because the number of cached tokens is reported and would reveal what others have asked.

Shapes: T tokens.
"""

import bisect
import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.generate.model.kv_cache import KeyValues

TokenIds = np.ndarray[Any, np.dtype[np.int64]]

# Fewer tokens are not worth copying.
MIN_REUSED_TOKENS = 16


@dataclass(frozen=True, eq=False)
class Prefix:
    """A sequence's first T tokens: `input_ids` (T,) int64, their keys and values, and their tenant."""

    input_ids: TokenIds
    key_values: KeyValues
    tenant: str = ""

    def first(self, num_tokens: int) -> KeyValues:
        """Return the keys and values of the first tokens."""
        return KeyValues(self.key_values.keys[:, :, :num_tokens], self.key_values.values[:, :, :num_tokens])


class PrefixCache:
    """Prefixes of at most `max_bytes` in total; the least recently used is dropped first.

    Prefixes are sorted by tenant and by their tokens' bytes, so that sequences with the same beginning are neighbours:
    the one that shares most with given tokens is next to their insertion point, for any number of prefixes, even if all
    begin with one template. No prefix is the beginning of another of the same tenant.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._order: list[bytes] = []
        self._kept: OrderedDict[bytes, Prefix] = OrderedDict()  # by the same keys, the most recently used last

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, input_ids: TokenIds, tenant: str = "") -> tuple[int, Prefix | None]:
        """Find this tenant's prefix that shares the most first tokens with these, and count them; 0 and None without
        any."""
        place = bisect.bisect_left(self._order, _key(input_ids, tenant))
        neighbours = [self._kept[key] for key in self._order[max(0, place - 1) : place + 1]]
        own = (prefix for prefix in neighbours if prefix.tenant == tenant)
        found = ((num_shared(input_ids, prefix.input_ids), _key(prefix.input_ids, tenant)) for prefix in own)
        shared, best = max(found, default=(0, b""))
        if not shared:
            return 0, None
        self._kept.move_to_end(best)
        return shared, self._kept[best]

    def covers(self, input_ids: TokenIds, tenant: str = "") -> bool:
        """Whether a prefix of this tenant that begins with all of these tokens is kept."""
        return self.longest(input_ids, tenant)[0] == len(input_ids)

    def put(self, prefix: Prefix) -> None:
        """Keep a prefix, replacing those that it begins with.

        One that is already covered (see `covers`), or larger than the whole cache, changes nothing.
        """
        size = prefix.key_values.num_bytes
        if size > self.max_bytes or self.covers(prefix.input_ids, prefix.tenant):
            return
        key = _key(prefix.input_ids, prefix.tenant)
        # at most one, because any prefix between the two would begin with it as well
        before = bisect.bisect_left(self._order, key) - 1
        if before >= 0 and key.startswith(self._order[before]):
            self._drop(self._order[before])
        while self.num_bytes + size > self.max_bytes:
            self._drop(next(iter(self._kept)))
        bisect.insort(self._order, key)
        self._kept[key] = prefix
        self.num_bytes += size

    def clear(self) -> None:
        """Drop everything."""
        self._order.clear()
        self._kept.clear()
        self.num_bytes = 0

    def _drop(self, key: bytes) -> None:
        del self._order[bisect.bisect_left(self._order, key)]
        self.num_bytes -= self._kept.pop(key).key_values.num_bytes


def _key(input_ids: TokenIds, tenant: str) -> bytes:
    """Make a sort key; the tenant's part has a fixed length, so that no tenant's key begins with another's."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).digest() + input_ids.tobytes()


def as_token_ids(input_ids: Sequence[int]) -> TokenIds:
    """Convert token ids to (T,) int64."""
    return np.array(input_ids, dtype=np.int64)


def num_shared(some: TokenIds, others: TokenIds) -> int:
    """Count the first tokens that both sequences share."""
    length = min(len(some), len(others))
    differs = some[:length] != others[:length]
    return int(differs.argmax()) if differs.any() else length
