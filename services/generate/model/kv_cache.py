"""Keys and values of the running sequences, one slot each.

All slots of a layer are in one tensor, contiguous from slot 0, so that a batch of decoding sequences reads its keys
through a view. Closing a slot moves the last one into the gap. Numbers beyond a slot's length stay finite, because a
batch reads up to its longest sequence and then masks: stale numbers must not turn another's answer into NaN.

Shapes: L layers, Hkv key/value heads, S slots, C tokens that a slot has room for, T tokens, hd width of a head.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(eq=False)
class Slot:
    """One sequence in a cache: `length` tokens of at most `capacity` are at `index` now; −1 once it is closed."""

    cache: "KVCache"
    index: int
    capacity: int
    length: int = 0


@dataclass(frozen=True, eq=False)
class KeyValues:
    """A copy of part of a sequence: `keys` and `values` (L, Hkv, T, hd), position embeddings applied."""

    keys: Tensor
    values: Tensor

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.keys.shape[2])

    @property
    def num_bytes(self) -> int:
        """Memory of both."""
        return self.keys.nbytes + self.values.nbytes


@dataclass(frozen=True)
class CacheShape:
    """Size of a token: `num_layers` times keys and values of `num_kv_heads` × `head_dim` numbers."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    device: torch.device
    dtype: torch.dtype


class KVCache:
    """Room for at most `max_tokens`, slots times the longest slot's capacity. Memory is allocated as needed.

    `keys[layer]` and `values[layer]` are (S, Hkv, C, hd); slots in use are the first `num_open`. If `open` or `grow`
    runs out of memory part-way, the layers differ in S and C until the next call; each has the contents of the open
    slots.
    """

    def __init__(self, shape: CacheShape, max_tokens: int) -> None:
        self.shape = shape
        self.max_tokens = max_tokens
        empty = torch.empty(0, shape.num_kv_heads, 0, shape.head_dim, device=shape.device, dtype=shape.dtype)
        self.keys = [empty] * shape.num_layers
        self.values = [empty] * shape.num_layers
        self._slots: list[Slot] = []
        self._num_slots, self._length = 0, 0  # S and C, of every layer unless an `open` ran out of memory

    @property
    def num_open(self) -> int:
        """Number of slots in use."""
        return len(self._slots)

    @property
    def num_reserved(self) -> int:
        """Tokens for which the slots in use have room."""
        return self.num_open * self._longest(0)

    def can_open(self, capacity: int) -> bool:
        """Whether a slot of this many tokens fits beside those in use."""
        return (self.num_open + 1) * self._longest(capacity) <= self.max_tokens

    def open(self, capacity: int) -> Slot:
        """Open an empty slot. Raises ValueError if `can_open` is false, and torch's error if memory runs out; open
        slots lose nothing then."""
        if not self.can_open(capacity):
            raise ValueError(
                f"a slot of {capacity} tokens does not fit beside {self.num_open} others in {self.max_tokens} tokens"
            )
        self._make_room(self.num_open + 1, capacity)
        self._slots.append(Slot(self, index=self.num_open, capacity=capacity))
        return self._slots[-1]

    def grow(self, slot: Slot, capacity: int) -> None:
        """Enlarge an open slot. Raises ValueError if the tokens do not fit, and torch's error if memory runs out; no
        slot loses anything then."""
        if self.num_open * self._longest(capacity) > self.max_tokens:
            raise ValueError(f"{self.num_open} slots of {capacity} tokens do not fit in {self.max_tokens} tokens")
        self._make_room(self.num_open, capacity)
        slot.capacity = capacity

    def close(self, slot: Slot) -> None:
        """Close a slot; the last slot takes its index. Raises ValueError for a slot that is already closed."""
        if slot.index < 0:
            raise ValueError("the slot is closed already")
        last = self._slots.pop()
        for numbers in (*self.keys, *self.values):
            if last is not slot:
                numbers[slot.index, :, : last.length] = numbers[last.index, :, : last.length]
                numbers[slot.index, :, last.length : slot.length] = 0
            numbers[last.index, :, : last.length] = 0
        if last is not slot:
            self._slots[slot.index] = last
            last.index = slot.index
        slot.index = -1

    def copy_out(self, slot: Slot, num_tokens: int) -> KeyValues:
        """Copy the first tokens of a slot. Raises ValueError for more than it holds."""
        if not 0 <= num_tokens <= slot.length:
            raise ValueError(f"the slot holds {slot.length} tokens, not {num_tokens}")
        keys, values = (
            torch.stack([layer[slot.index, :, :num_tokens] for layer in layers]) for layers in (self.keys, self.values)
        )
        return KeyValues(keys, values)

    def copy_in(self, slot: Slot, key_values: KeyValues) -> None:
        """Fill an empty slot with copied tokens. Raises ValueError if they do not fit."""
        if slot.length or key_values.num_tokens > slot.capacity:
            raise ValueError(
                f"{key_values.num_tokens} tokens do not fit into a slot of {slot.capacity} that holds {slot.length}"
            )
        for layer, (keys, values) in enumerate(zip(key_values.keys, key_values.values, strict=True)):
            self.keys[layer][slot.index, :, : key_values.num_tokens] = keys
            self.values[layer][slot.index, :, : key_values.num_tokens] = values
        slot.length = key_values.num_tokens

    def _longest(self, capacity: int) -> int:
        return max(capacity, *(slot.capacity for slot in self._slots), 1)

    def _make_room(self, needed_slots: int, capacity: int) -> None:
        """Make room for `needed_slots` slots, one of them of this capacity.

        A dimension that must grow is doubled if that fits, so that growing costs little in total.
        """
        num_slots, length = self._num_slots, self._length
        needed_length = self._longest(capacity)
        if needed_length > length or needed_slots * length > self.max_tokens:
            doubled = 2 * length if needed_length > length else needed_length
            length = min(max(needed_length, doubled), self.max_tokens // needed_slots)
        if needed_slots > num_slots or num_slots * length > self.max_tokens:
            num_slots = min(max(needed_slots, 2 * num_slots), self.max_tokens // length)
        for layers in (self.keys, self.values):
            for layer, old in enumerate(layers):
                # checked for each layer, because an earlier attempt may have run out of memory between two layers
                if (old.shape[0], old.shape[2]) != (num_slots, length):
                    layers[layer] = self._moved(old, num_slots, length)
        self._num_slots, self._length = num_slots, length

    def _moved(self, old: Tensor, num_slots: int, length: int) -> Tensor:
        new = old.new_zeros(num_slots, self.shape.num_kv_heads, length, self.shape.head_dim)
        for slot in self._slots:
            new[slot.index, :, : slot.length] = old[slot.index, :, : slot.length]
        return new
