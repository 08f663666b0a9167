"""The indexes of a collection: one for each condition under each served checkpoint, and the images' states.

All of it is derived: it is recomputed from the stored images if it is lost, damaged, or from another checkpoint.
"""

import asyncio
import hashlib
import json
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import structlog
from numpy.typing import NDArray

from services.core.errors import FoveaError
from services.embed.call import EmbedModel, ServedEmbed
from services.embed.collections.index.vector_index import Found, IndexKind
from services.embed.collections.index.vector_table import Rows, Vectors
from services.embed.collections.reader import FreshPixels, Read, Source
from services.embed.collections.storage.database import has_room_beside
from services.embed.collections.storage.image_states import StateCache
from services.embed.collections.storage.image_store import ImageStore
from services.nn.clip_texts import Text

# Until this number of images was read in each way, states are assumed to be faster.
MIN_IMAGES = 256


PLAIN = "plain"
StepT = TypeVar("StepT", bound="Step[Any]")
# After this time no request that began under another checkpoint can still use its indexes.
RETIRE_AFTER_S = 120.0


class StateTiming:
    """Measures the seconds per image, from states and by encoding."""

    def __init__(self) -> None:
        self._images = {True: 0, False: 0}
        self._seconds = {True: 0.0, False: 0.0}

    def note(self, num_images: int, seconds: float, *, from_states: bool) -> None:
        self._images[from_states] += num_images
        self._seconds[from_states] += seconds

    @property
    def states_pay(self) -> bool:
        """Whether reading an image from its state is faster than encoding it, according to the measurements so far."""
        if min(self._images.values()) < MIN_IMAGES:
            return True
        return self._seconds[True] / self._images[True] < self._seconds[False] / self._images[False]


def key_of(text: Text | None) -> str:
    """Make a key that is equal for conditions that the model cannot distinguish."""
    return PLAIN if text is None else text.digest


def prepared(engine: EmbedModel, condition: str) -> Text | None:
    """Prepare a stored condition; None if this model can't: its context may be shorter, or it may be a plain CLIP."""
    try:
        return engine.prepare_condition(condition)
    except FoveaError as error:
        log = structlog.get_logger(__name__)
        log.warning("condition not indexed", condition=condition, error=error.message)
        return None


def identity_of(served: ServedEmbed) -> dict[str, str]:
    """Describe what the vectors of a checkpoint depend on."""
    return {"checkpoint": served.digest, "dtype": served.engine.dtype_name}


def stem_of(served: ServedEmbed) -> str:
    """Make a short name for the data of a checkpoint."""
    return hashlib.sha256(json.dumps(identity_of(served)).encode()).hexdigest()[:16]


class SearchableVectors(Protocol):
    """The vectors of one condition. Properties are read at once; methods may block."""

    @property
    def through(self) -> int:
        """The row up to which it has every image; further ones may be in it."""
        ...

    @property
    def num_bytes(self) -> int: ...
    @property
    def num_vectors(self) -> int: ...
    @property
    def kind(self) -> IndexKind: ...
    @property
    def is_exact(self) -> bool: ...
    @property
    def recall_at_10(self) -> float | None: ...

    def search(self, queries: Vectors, k: int, *, among: Rows | None = None) -> Found:
        """Find the k nearest rows to unit vectors (Q, E), of all or of `among` (R,), ascending."""
        ...

    def vectors(self, rows: Rows) -> tuple[Vectors, NDArray[np.bool_]]:
        """Return vectors (R, E) of rows (R,), zeros for missing rows, and which rows exist, bool (R,)."""
        ...


@dataclass(eq=False)
class OpenIndex:
    """The index of one condition, None being the unconditional embedding; `used` is Unix time in seconds."""

    text: Text | None
    vectors: SearchableVectors
    is_pinned: bool = False
    used: float = field(default_factory=time.time)

    @property
    def condition(self) -> str | None:
        return None if self.text is None else self.text.text


IndexT = TypeVar("IndexT", bound=OpenIndex)


@dataclass(frozen=True, eq=False)
class Step(Generic[IndexT]):
    """Images that the indexes of `group` lack, ascending, to be read under the conditions of these; with them the
    indexes have all images up to row `through`."""

    rows: Sequence[int]
    group: Sequence[IndexT]
    through: int

    @property
    def conditions(self) -> list[Text | None]:
        return [index.text for index in self.group]


@dataclass(eq=False)
class Changes:
    """Changes of a collection that this process knows of: the newest row, and rows deleted lately."""

    last_row: int = 0
    deleted: set[int] = field(default_factory=set)

    def note_rows(self, rows: Iterable[int]) -> None:
        self.last_row = max(self.last_row, *rows, 0)

    def forget_deleted(self, through: int) -> None:
        """Forget deletions up to a row."""
        self.deleted = {row for row in self.deleted if row > through}


class CheckpointIndexes(ABC, Generic[IndexT, StepT]):
    """The indexes and states of one checkpoint for one collection.

    `folder` holds this process's files of the collection. Opened, saved and closed on a worker thread.
    """

    _indexes: Mapping[str, IndexT]

    def __init__(self, store: ImageStore, folder: Path, served: ServedEmbed, fresh: FreshPixels) -> None:
        self._store = store
        self._folder = folder
        self._fresh = fresh
        self.digest = served.digest
        self._identity = identity_of(served)
        self._stem = stem_of(served)
        self._width = served.engine.embedding_width
        self.states: StateCache | None = None
        self.pace = StateTiming()

    def __iter__(self) -> Iterator[IndexT]:
        return iter(list(self._indexes.values()))

    def get(self, text: Text | None) -> IndexT | None:
        """Return the index of a condition, if there is one."""
        return self._indexes.get(key_of(text))

    @abstractmethod
    async def refresh(self) -> None:
        """Learn what other processes have changed: indexes, their progress, and the collection's newest row."""

    @abstractmethod
    def start(self, text: Text) -> IndexT:
        """Return the index of a condition, creating an empty one if it has none of its own."""

    @abstractmethod
    def drop(self, index: OpenIndex) -> None:
        """Remove an index."""

    @abstractmethod
    def next_step(self) -> StepT | None:
        """Return what is to be indexed next; None if there is nothing at the moment. Blocks."""

    @abstractmethod
    def append(self, step: StepT, reads: Sequence[Read], *, through: int) -> None:
        """Add images that were read; those up to `through` that are not among them are left out. Blocks."""

    @abstractmethod
    def finish(self, step: StepT) -> None:
        """Note that all images of a step are in the indexes. Blocks."""

    def give_up(self, step: StepT) -> None:
        """Leave what is not done to a later step: the next one begins where the indexes are. Blocks."""

    @abstractmethod
    def delete(self, row: int) -> None:
        """Remove an image from indexes and states; no error if it is in none. Blocks."""

    @abstractmethod
    def tidy(self) -> None:
        """Do what keeps the indexes fast and small; searches continue meanwhile. Blocks."""

    @abstractmethod
    def save(self) -> None:
        """Write what has changed, if this process keeps it. Blocks."""

    def remove_files_of_others(self) -> None:
        """Remove this process's files of other checkpoints, as far as the disk allows it. Blocks."""
        for part in ("indexes", "states"):
            with suppress(OSError):
                for path in (self._folder / part).iterdir():
                    if not path.name.startswith(self._stem):
                        path.unlink(missing_ok=True)

    def close(self) -> None:
        if self.states is not None:
            self.states.close()

    @property
    def keeps_states(self) -> bool:
        """Whether states of further images would be kept and useful."""
        return self.states is not None and self.states.has_room and self.pace.states_pay

    def sources(self, rows: Sequence[int]) -> list[Source]:
        """Return the cheapest source of each of these images; deleted ones are left out."""
        states = self.states.get(rows) if self.states is not None and self.pace.states_pay else {}
        digests = self._store.digests_by_rows(rows)
        others = {row: digest for row, digest in digests.items() if row not in states}
        pixels = {row: self._fresh.take(self.digest, digest) for row, digest in others.items()}
        data = self._store.data_by_rows([row for row, found in pixels.items() if found is None])
        return [
            Source(row, digests[row], states.get(row), pixels.get(row), data.get(row))
            for row in rows
            if row in digests and (row in states or pixels[row] is not None or row in data)
        ]

    def _keep_states(self, reads: Sequence[Read]) -> None:
        new = {read.row: read.state for read in reads if read.state is not None}
        num_bytes = sum(state.nbytes for state in new.values())
        if new and self.states is not None and has_room_beside(self._folder, num_bytes):
            self.states.put(list(new), list(new.values()))

    def _open_states(self, record_bytes: int | None, max_bytes: int, live: Rows) -> None:
        """Open the cache of states, without those of deleted images; there is none if the disk allows no file."""
        make_folder(self._folder / "states")
        if record_bytes is None or max_bytes <= 0:
            return
        path = self._folder / "states" / f"{self._stem}.states"
        for _ in range(2):
            try:
                self.states = StateCache.open(path, record_bytes=record_bytes, max_bytes=max_bytes, identity=self._stem)
                break
            except OSError as error:
                structlog.get_logger(__name__).warning("image states are not kept", reason=str(error))
                clear_away(path)
        for row in missing(np.array(self.states.rows() if self.states else [], np.int64), live):
            self.delete(row)


AnyIndexes = CheckpointIndexes[Any, Any]
# Opens the indexes of a checkpoint on a worker thread.
OpenCheckpoint = Callable[[ServedEmbed], AnyIndexes]


def make_folder(folder: Path) -> None:
    """Make a folder for recomputable data, replacing anything else. If the disk rejects it, nothing is stored."""
    try:
        if not folder.is_dir():
            clear_away(folder)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        structlog.get_logger(__name__).warning("indexes and states are not kept", reason=str(error))


def clear_away(path: Path) -> None:
    """Remove a file or a folder, as far as the disk allows it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def missing(rows: Rows, live: Rows) -> Iterable[int]:
    """List the rows that are no longer live."""
    gone: list[int] = np.setdiff1d(rows, live, assume_unique=True).tolist()
    return gone


class OpenIndexes:
    """Opens a checkpoint's indexes when it is first used."""

    def __init__(self, open_checkpoint: OpenCheckpoint) -> None:
        self._open_checkpoint = open_checkpoint
        self._open: dict[str, AnyIndexes] = {}
        self._retired: list[tuple[float, AnyIndexes]] = []
        self._opening = asyncio.Lock()

    def __iter__(self) -> Iterator[AnyIndexes]:
        return iter([*self._open.values(), *(indexes for _, indexes in self._retired)])

    @property
    def newest(self) -> AnyIndexes | None:
        """Indexes of the most recent checkpoint; None before the first."""
        return next(reversed(self._open.values()), None)

    async def of(self, served: ServedEmbed) -> AnyIndexes:
        async with self._opening:
            if served.digest not in self._open:
                self._open[served.digest] = await asyncio.to_thread(self._open_checkpoint, served)
            return self._open[served.digest]

    async def delete(self, row: int) -> None:
        """Remove an image from all indexes, including those that are just being opened."""
        async with self._opening:
            for indexes in self:
                await asyncio.to_thread(indexes.delete, row)

    async def retire_others(self, current: AnyIndexes) -> None:
        """Drop the indexes of other checkpoints once they can't be in use any more."""
        now = time.monotonic()
        for digest in [digest for digest in self._open if digest != current.digest]:
            self._retired.append((now, self._open.pop(digest)))
        for retired in [one for one in self._retired if now - one[0] > RETIRE_AFTER_S]:
            self._retired.remove(retired)
            await asyncio.to_thread(retired[1].close)
            await asyncio.to_thread(current.remove_files_of_others)

    async def close(self, *, is_saving: bool) -> None:
        """Close all; save them unless the collection's folder must not be written to any more."""
        for indexes in self:
            if is_saving:
                await asyncio.to_thread(indexes.save)
            await asyncio.to_thread(indexes.close)
        self._open.clear()
        self._retired.clear()
