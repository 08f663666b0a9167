"""Image states on disk, within a budget: they save encoding an image again, and may be lost at any time.

Nothing is synced, so states may be missing, but those found are correct. The file begins with a header that identifies
the states, followed by groups: a page of entries, then their records.

        entry     row int64, CRC-32 of row and record, 1 if the record exists and 0 if the slot is free
    record    the state, `record_bytes` long

A record is written before its entry, and an entry is cleared before its slot is reused, so a process killed at any
point leaves a free slot. A power failure may keep one write and lose an earlier one; the checksum detects this.
"""

import contextlib
import errno
import hashlib
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

State = np.ndarray[Any, np.dtype[np.uint8]]

PAGE_BYTES = 4096
ENTRY = struct.Struct("<qII")
SLOTS_PER_GROUP = PAGE_BYTES // ENTRY.size
FREE = bytes(ENTRY.size)
MAGIC = b"fovea states 1\n\0"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class _Layout:
    """Offsets in a file with records of `record_bytes`; all in bytes."""

    record_bytes: int

    @property
    def _group_bytes(self) -> int:
        return PAGE_BYTES + SLOTS_PER_GROUP * self.record_bytes

    def page(self, group: int) -> int:
        return PAGE_BYTES + group * self._group_bytes

    def entry(self, slot: int) -> int:
        return self.page(slot // SLOTS_PER_GROUP) + slot % SLOTS_PER_GROUP * ENTRY.size

    def record(self, slot: int) -> int:
        return self.page(slot // SLOTS_PER_GROUP) + PAGE_BYTES + slot % SLOTS_PER_GROUP * self.record_bytes

    def num_groups(self, num_bytes: int) -> int:
        """Count the groups whose entry page is within a file of `num_bytes`."""
        return max(0, num_bytes - 2 * PAGE_BYTES + self._group_bytes) // self._group_bytes

    def num_slots(self, num_bytes: int) -> int:
        """Count the slots that fit completely into `num_bytes`."""
        groups, rest = divmod(max(0, num_bytes - PAGE_BYTES), self._group_bytes)
        return groups * SLOTS_PER_GROUP + max(0, rest - PAGE_BYTES) // self.record_bytes


@dataclass(frozen=True)
class _Place:
    slot: int
    checksum: int


class StateCache:
    """States by row. Thread-safe; calls after `close` find and store nothing."""

    def __init__(self, descriptor: int | None, *, record_bytes: int, max_bytes: int) -> None:
        """Use `open`."""
        self.record_bytes = record_bytes
        self.max_bytes = max_bytes
        self._layout = _Layout(record_bytes)
        self._descriptor = descriptor
        self._max_slots = self._layout.num_slots(max_bytes) if descriptor is not None else 0
        self._changed = threading.Condition()
        self._num_users = 0
        self._places: dict[int, _Place] = {}
        self._coming: set[int] = set()
        self._free: list[int] = []
        self._num_slots = 0

    @classmethod
    def open(cls, path: Path, *, record_bytes: int, max_bytes: int, identity: str) -> "StateCache":
        """Open the states at `path` of `identity` in records of this size, cut to the budget; remove any other file.

        Stores nothing if the budget is smaller than a record or the disk is full. Raises OSError for an unusable path,
        ValueError for a record of no bytes.
        """
        if record_bytes < 1:
            raise ValueError(f"record_bytes is {record_bytes}: a state has at least one byte")
        if _Layout(record_bytes).num_slots(max_bytes) == 0:
            path.unlink(missing_ok=True)
            return cls(None, record_bytes=record_bytes, max_bytes=max_bytes)
        header = MAGIC + struct.pack("<Q", record_bytes) + hashlib.sha256(identity.encode()).digest()
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        cache = cls(descriptor, record_bytes=record_bytes, max_bytes=max_bytes)
        try:
            if os.pread(descriptor, len(header), 0) != header:
                os.ftruncate(descriptor, 0)
                _write(descriptor, header, 0)
            cache._scan(descriptor)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in DISK_FULL:
                raise
            return cls(None, record_bytes=record_bytes, max_bytes=max_bytes)
        return cache

    def close(self) -> None:
        """Close the file once the current calls have finished."""
        with self._changed:
            descriptor, self._descriptor = self._descriptor, None
            self._changed.wait_for(lambda: self._num_users == 0)
        if descriptor is not None:
            os.close(descriptor)

    @property
    def num_images(self) -> int:
        return len(self._places)

    @property
    def num_bytes(self) -> int:
        """Size of the file, including slots that are free at the moment."""
        with self._in_use() as descriptor:
            return os.fstat(descriptor).st_size if descriptor is not None else 0

    @property
    def has_room(self) -> bool:
        """Whether the budget allows another state."""
        return self._descriptor is not None and (bool(self._free) or self._num_slots < self._max_slots)

    def rows(self) -> list[int]:
        """List the rows that have a state, ascending."""
        with self._changed:
            return sorted(self._places)

    def has(self, rows: Sequence[int]) -> set[int]:
        """Return those of `rows` that have a state."""
        return {row for row in rows if row in self._places}

    def put(self, rows: Sequence[int], states: Sequence[State]) -> None:
        """Store states (record_bytes,) uint8, as long as budget and disk allow it; existing ones are kept.

        Raises ValueError for a state of another size.
        """
        with self._in_use() as descriptor:
            for row, state in zip(rows, states, strict=True):
                if state.shape != (self.record_bytes,):
                    raise ValueError(f"a state of the shape {list(state.shape)} is no record of {self.record_bytes} B")
                if descriptor is not None:
                    self._put(descriptor, row, np.ascontiguousarray(state))

    def get(self, rows: Sequence[int]) -> dict[int, State]:
        """Return the states of those rows that have one. A damaged record is left out and deleted."""
        with self._in_use() as descriptor:
            if descriptor is None:
                return {}
            found = {row: self._get(descriptor, row) for row in rows}
        return {row: state for row, state in found.items() if state is not None}

    def delete(self, row: int) -> None:
        """Delete a state; no error if there is none."""
        with self._in_use() as descriptor:
            if descriptor is not None:
                self._drop(descriptor, row, self._places.get(row))

    def give_back(self) -> None:
        """Move records from the end of the file to free slots before them and truncate the file after the last, if at
        least half of it is free. Concurrent reads and writes go on; a read may miss a record that is being moved."""
        with self._in_use() as descriptor:
            if descriptor is None or 2 * len(self._free) < self._num_slots:
                return
            with self._changed:
                self._free.sort(reverse=True)  # the lowest is taken first, here and by a concurrent `put`
                last_first = sorted(self._places.items(), key=lambda item: -item[1].slot)
            for row, place in last_first:
                if not self._move_down(descriptor, row, place):
                    break
            self._cut_off(descriptor)

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[int | None]:
        """Keep the file open until the block ends; None if it is closed."""
        with self._changed:
            descriptor = self._descriptor
            self._num_users += 1
        try:
            yield descriptor
        finally:
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    def _put(self, descriptor: int, row: int, state: State) -> None:
        slot = self._take_slot(row)
        if slot is None:
            return
        checksum = _checksum(row, state)
        try:
            _write(descriptor, state.data, self._layout.record(slot))
            _write(descriptor, ENTRY.pack(row, checksum, 1), self._layout.entry(slot))
        except OSError:  # usually a full disk; the cost is encoding this image again
            with self._changed:
                self._coming.discard(row)
                self._free.append(slot)
            return
        with self._changed:
            self._coming.discard(row)
            self._places[row] = _Place(slot, checksum)

    def _take_slot(self, row: int) -> int | None:
        with self._changed:
            if row in self._places or row in self._coming or not self.has_room:
                return None
            self._coming.add(row)
            if self._free:
                return self._free.pop()
            self._num_slots += 1
            return self._num_slots - 1

    def _get(self, descriptor: int, row: int) -> State | None:
        place = self._places.get(row)
        if place is None:
            return None
        state = np.empty(self.record_bytes, np.uint8)
        with contextlib.suppress(OSError):
            if _read(descriptor, state, self._layout.record(place.slot)) and _checksum(row, state) == place.checksum:
                return state
        self._drop(descriptor, row, place)
        return None

    def _drop(self, descriptor: int, row: int, place: _Place | None) -> None:
        """Free the slot of a row, unless it was already dropped; if the disk rejects that, abandon the slot."""
        with self._changed:
            if place is None or self._places.get(row) is not place:
                return
            del self._places[row]
            with contextlib.suppress(OSError):
                _write(descriptor, FREE, self._layout.entry(place.slot))
                self._free.append(place.slot)

    def _move_down(self, descriptor: int, row: int, place: _Place) -> bool:
        """Move a record to a free slot; False if none is before its own, or the disk rejects the write."""
        with self._changed:
            if self._places.get(row) is not place:
                return True
            if not self._free or self._free[-1] >= place.slot:
                return False
            slot = self._free[-1]
            state = np.empty(self.record_bytes, np.uint8)
            try:
                if not _read(descriptor, state, self._layout.record(place.slot)):
                    return True
                _write(descriptor, state.data, self._layout.record(slot))
                _write(descriptor, ENTRY.pack(row, place.checksum, 1), self._layout.entry(slot))
                _write(descriptor, FREE, self._layout.entry(place.slot))
            except OSError:
                return False
            self._free.pop()
            self._free.insert(0, place.slot)
            self._places[row] = _Place(slot, place.checksum)
            return True

    def _cut_off(self, descriptor: int) -> None:
        """Truncate the file after the last record, unless one is about to be written."""
        with self._changed:
            if self._coming:
                return
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, self._count_slots())

    def _count_slots(self) -> int:
        """Count the slots up to the last record, list the free ones, and return where the file then ends."""
        used = {place.slot for place in self._places.values()}
        self._num_slots = max(used, default=-1) + 1
        self._free = [slot for slot in range(self._num_slots) if slot not in used]
        return self._layout.record(self._num_slots - 1) + self.record_bytes if used else PAGE_BYTES

    def _scan(self, descriptor: int) -> None:
        """Find the records, and truncate the file after the last of them or at the budget."""
        size = os.fstat(descriptor).st_size
        num_slots = min(self._layout.num_slots(size), self._max_slots)
        for group in range(self._layout.num_groups(size)):
            page = os.pread(descriptor, PAGE_BYTES, self._layout.page(group))
            page = page[: len(page) // ENTRY.size * ENTRY.size]
            for place, (row, checksum, is_used) in enumerate(ENTRY.iter_unpack(page)):
                slot = group * SLOTS_PER_GROUP + place
                if is_used == 1 and slot < num_slots:
                    self._places[row] = _Place(slot, checksum)
        os.ftruncate(descriptor, self._count_slots())


def _checksum(row: int, state: State) -> int:
    return zlib.crc32(state.data, zlib.crc32(struct.pack("<q", row)))


def _write(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the data. Raises OSError, e.g. on a full disk, possibly after writing a part."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _read(descriptor: int, state: State, offset: int) -> bool:
    """Fill `state`; False if the file ends before it is full."""
    rest = state.data
    while rest:
        read = os.preadv(descriptor, [rest], offset)
        if read == 0:
            return False
        rest, offset = rest[read:], offset + read
    return True
