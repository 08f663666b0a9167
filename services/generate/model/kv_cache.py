"""Keys and values of the sequences that run, one slot each.

All slots of a layer are in one tensor, side by side from slot 0 on, so that a batch of decoding sequences reads its
keys through a view. Closing a slot moves the last one into the hole. Numbers past a slot's length stay finite, for a
batch reads as far as its longest sequence and then masks: stale numbers must not turn another's answer into NaN.

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
    """A stretch of a sequence, for keeping: `keys` and `values` (L, Hkv, T, hd), position embeddings applied."""

    keys: Tensor
    values: Tensor

    @property
    def num_tokens(self) -> int:
        """T."""
        return int(self.keys.shape[2])

    @property
    def num_bytes(self) -> int:
        """Memory that both take."""
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
    """Room for at most `max_tokens`, slots times the longest slot's capacity. Memory is taken as slots need it.

    `keys[layer]` and `values[layer]` are (S, Hkv, C, hd); slots in use are the first `num_open`. Where `open` or
    `grow` runs out of memory part-way, the layers differ in S and C until the next one; each has the contents of the
    open slots.
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
        """Slots in use."""
        return len(self._slots)

    def can_open(self, capacity: int) -> bool:
        """Whether a slot of this many tokens fits beside those in use."""
        return (self.num_open + 1) * self._longest(capacity) <= self.max_tokens

    def open(self, capacity: int) -> Slot:
        """An empty slot. Raises ValueError where `can_open` is false, and what torch does where memory runs out: the
        slots that are open lose nothing then."""
        if not self.can_open(capacity):
            raise ValueError(
                f"a slot of {capacity} tokens does not fit beside {self.num_open} others in {self.max_tokens} tokens"
            )
        self._make_room(self.num_open + 1, capacity)
        self._slots.append(Slot(self, index=self.num_open, capacity=capacity))
        return self._slots[-1]

    def grow(self, slot: Slot, capacity: int) -> None:
        """Let an open slot hold more tokens. Raises ValueError where they do not fit, and what torch does where
        memory runs out: no slot loses anything then."""
        if self.num_open * self._longest(capacity) > self.max_tokens:
            raise ValueError(f"{self.num_open} slots of {capacity} tokens do not fit in {self.max_tokens} tokens")
        self._make_room(self.num_open, capacity)
        slot.capacity = capacity

    def close(self, slot: Slot) -> None:
        """Give a slot back; the last slot takes its index. Raises ValueError for one that is closed already."""
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
        """The first tokens of a slot, for keeping. Raises ValueError for more than it holds."""
        if not 0 <= num_tokens <= slot.length:
            raise ValueError(f"the slot holds {slot.length} tokens, not {num_tokens}")
        keys, values = (
            torch.stack([layer[slot.index, :, :num_tokens] for layer in layers]) for layers in (self.keys, self.values)
        )
        return KeyValues(keys, values)

    def copy_in(self, slot: Slot, key_values: KeyValues) -> None:
        """Begin an empty slot with tokens that were copied out. Raises ValueError where they do not fit."""
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

        A side that must grow is doubled where that fits, so that growing costs little in all.
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
                # asked of each: another try may have run out of memory between two of them
                if (old.shape[0], old.shape[2]) != (num_slots, length):
                    layers[layer] = self._moved(old, num_slots, length)
        self._num_slots, self._length = num_slots, length

    def _moved(self, old: Tensor, num_slots: int, length: int) -> Tensor:
        new = old.new_zeros(num_slots, self.shape.num_kv_heads, length, self.shape.head_dim)
        for slot in self._slots:
            new[slot.index, :, : slot.length] = old[slot.index, :, : slot.length]
        return new
