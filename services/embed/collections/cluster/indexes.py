"""The indexes of a collection that any number of processes fill and search: progress in PostgreSQL, vectors elsewhere.

Which conditions are indexed is read from PostgreSQL before each use; only states are this process's
own.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from services.core.errors import FoveaError, Overloaded
from services.embed.call import ServedEmbed
from services.embed.collections.cluster.connections import Connections, alone
from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.cluster.leases import LEASE_ROWS, IndexProgress, IndexWork, Lease, Progress
from services.embed.collections.cluster.vectors import StoredVectors, VectorDatabase, VectorsLost
from services.embed.collections.index.vector_index import Found, IndexKind
from services.embed.collections.index.vector_table import ordered
from services.embed.collections.indexes import (
    Changes,
    CheckpointIndexes,
    OpenIndex,
    Step,
    key_of,
    make_folder,
    prepared,
)
from services.embed.collections.reader import FreshPixels, Read
from services.embed.collections.storage.image_store import Rows
from services.embed.model.items import Embeddings
from services.nn.clip_texts import Text

# A search whose results are deleted images is repeated with more results, at most so often.
MAX_REPEATS = 8
# Uses of an index are noted for the other processes at most so often.
NOTE_USE_EVERY_S = 60.0
# Time between looks for vectors that the database has lost.
VERIFY_EVERY_S = 60.0
# Rows whose vectors are used to measure searches.
SAMPLE_SIZE = 64
# Any numbers, the same in all replicas.
TUNING_LOCK = 0x0F0FEC
REPAIR_LOCK = 0x0F0FED


class SharedVectors:
    """A condition's vectors with the progress of their index; None before it has a number."""

    def __init__(
        self,
        store: PostgresImageStore,
        stored: StoredVectors | None,
        width: int,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """Describe an index without images. `on_lost` is called, without effect if that is known, when its vectors
        turn out to be lost."""
        self._store = store
        self.stored = stored
        self._width = width
        self._on_lost = on_lost
        self.number: int | None = None
        self.through = 0
        self.num_vectors = 0

    def take_over(self, progress: IndexProgress, num_images: int) -> None:
        """Note the progress of the index in a collection of so many images."""
        self.number = progress.number
        self.through = progress.through
        self.num_vectors = max(0, num_images - progress.num_waiting)
        if self.stored is not None:
            self.stored.take_over(progress.written, progress.tuning)

    @property
    def num_bytes(self) -> int:
        return 4 * self._width * self.num_vectors

    @property
    def kind(self) -> IndexKind:
        return "flat" if self.stored is None else self.stored.kind

    @property
    def is_exact(self) -> bool:
        return self.stored is None or self.stored.is_exact

    @property
    def recall_at_10(self) -> float | None:
        return None if self.stored is None else self.stored.recall_at_10

    def search(self, queries: Embeddings, k: int, *, among: Rows | None = None) -> Found:
        """Find the k nearest rows of images that exist. Raises VectorsLost."""
        if self.stored is None or not self.num_vectors:
            return Found(np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32))
        wanted = k
        for _ in range(MAX_REPEATS):
            with self._noticing_loss():
                found = self.stored.search(queries, wanted, among=among)
            is_there = found.rows >= 0
            live = self._store.live(np.unique(found.rows[is_there]).tolist())
            is_live = is_there & np.isin(found.rows, list(live))
            # what is not full and not all either lacks images behind the deleted ones
            if ((is_live.sum(axis=1) >= k) | (is_there.sum(axis=1) < wanted)).all():
                break
            wanted *= 2
        best = ordered(np.where(is_live, found.rows, -1), found.scores.copy())
        return Found(best.positions[:, :k], best.scores[:, :k])

    def vectors(self, rows: Rows) -> tuple[Embeddings, NDArray[np.bool_]]:
        if self.stored is None or not self.num_vectors:
            return np.zeros((len(rows), self._width), np.float32), np.zeros(len(rows), np.bool_)
        with self._noticing_loss():
            return self.stored.vectors(rows)

    def upsert(self, rows: Rows, vectors: Embeddings) -> int:
        """Add vectors (R, E) of rows (R,), or replace them; return the moment. Raises VectorsLost."""
        if self.stored is None:
            return 0
        with self._noticing_loss():
            return self.stored.upsert(rows, vectors)

    def delete(self, rows: Sequence[int]) -> None:
        """Remove rows; no error for missing ones."""
        if self.stored is not None:
            self.stored.delete(np.array(rows, dtype=np.int64))

    def check(self) -> None:
        """Notice if the vectors are lost."""
        if self.stored is not None and not self.stored.is_there:
            self._on_lost()

    @contextmanager
    def _noticing_loss(self) -> Iterator[None]:
        try:
            yield
        except VectorsLost:
            self._on_lost()
            raise


class LostRows:
    """Rows that one index lacks. One that is still missing after it was read again is left out: its image can't be read
    any more."""

    def __init__(self) -> None:
        self._missing: set[int] = set()
        self._left_out: set[int] = set()

    def find(self, images: PostgresImageStore, stored: StoredVectors, through: int) -> Rows:
        """Return rows up to `through`, ascending, whose vectors are to be made again; none once they were returned.

        Every image up to `through` was indexed. Raises VectorsLost, Overloaded.
        """
        num_images, _ = images.size()  # counted first, as images deleted in the meantime have no vectors
        expected = num_images - len(images.live(self._left_out))
        num_vectors = stored.num_vectors
        if num_vectors > expected:  # deletions that did not reach the database would hide as many losses
            stored.delete(images.deleted_rows())
            num_vectors = stored.num_vectors
        if num_vectors >= expected:
            self._missing = self._left_out
            return np.zeros(0, np.int64)
        rows = images.rows()
        rows = rows[rows <= through]
        held = stored.rows(int(rows[0]), int(rows[-1])) if len(rows) else rows
        missing = images.live(np.setdiff1d(rows, held).tolist())
        self._left_out = missing & self._missing
        self._missing = missing
        return np.array(sorted(missing - self._left_out), np.int64)


def ranges(missing: Rows, rows: Rows, size: int) -> list[tuple[int, int]]:
    """Cover `missing` by ranges, first and last row, with at most `size` of all `rows` in each; both ascending."""
    found: list[tuple[int, int]] = []
    begins_at = 0
    for row, place in zip(missing.tolist(), np.searchsorted(rows, missing).tolist(), strict=True):
        if found and place < begins_at + size:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
            begins_at = place
    return found


@dataclass(frozen=True)
class Sharing:
    """The parts that all shared collections of a process have in common.

    `holder` names this process in the database. Another process takes what this one was indexing `lease_s` after its
    last sign of life.
    """

    connections: Connections
    vectors: VectorDatabase
    fresh: FreshPixels
    holder: str
    lease_s: float
    max_state_bytes: int


@dataclass(eq=False)
class SharedIndex(OpenIndex):
    """An index; `noted` is the use of it that is stored."""

    vectors: SharedVectors
    noted: float = 0.0
    lost: LostRows = field(default_factory=LostRows)


@dataclass(frozen=True, eq=False)
class LeasedStep(Step[SharedIndex]):
    """Images that this process has leased."""

    lease: Lease


class SharedIndexes(CheckpointIndexes[SharedIndex, LeasedStep]):
    """The indexes of one checkpoint as all processes see them."""

    def __init__(
        self, store: PostgresImageStore, folder: Path, served: ServedEmbed, sharing: Sharing, changes: Changes
    ) -> None:
        super().__init__(store, folder, served, sharing.fresh)
        self._images = store
        self._engine = served.engine
        self._sharing = sharing
        self._changes = changes
        self._work = IndexWork(sharing.connections, store.collection, self._stem, sharing.holder)
        self._indexes: dict[str, SharedIndex] = {}
        self._texts: dict[str, Text | None] = {}
        self._taking_over = threading.Lock()
        self._order = itertools.count(1)
        self._taken_over = 0
        self._written = 0
        self._verified = time.monotonic()
        self._tuning = threading.Thread()

    @classmethod
    def open(
        cls, store: PostgresImageStore, folder: Path, served: ServedEmbed, *, sharing: Sharing, changes: Changes
    ) -> "SharedIndexes":
        """Open this process's states, and learn how far the indexes are. Raises NotFound, Overloaded."""
        opened = cls(store, folder, served, sharing, changes)
        if sharing.max_state_bytes > 0:
            make_folder(folder)
            opened._open_states(served.engine.state_bytes, sharing.max_state_bytes, store.rows())
        opened._refresh()
        return opened

    async def refresh(self) -> None:
        await asyncio.to_thread(self._refresh)

    def start(self, text: Text) -> SharedIndex:
        """Return the index of a condition; other processes learn of it when the condition is stored."""
        if key_of(text) not in self._indexes:
            vectors = SharedVectors(self._images, None, self._width)
            self._indexes = {**self._indexes, key_of(text): SharedIndex(text, vectors)}
        return self._indexes[key_of(text)]

    def drop(self, index: OpenIndex) -> None:
        """Forget an index; its progress and vectors are removed by `tidy`, once its condition is not stored either."""
        key = key_of(index.text)
        self._indexes = {own: other for own, other in self._indexes.items() if own != key}

    def next_step(self) -> LeasedStep | None:
        self._refresh()
        if new := [key for key, index in self._indexes.items() if index.vectors.number is None]:
            for key in new:
                self._work.start_index(key, self._create)
            self._refresh()
        while (lease := self._work.take(self._sharing.lease_s)) is not None:
            if set(lease.indexes) - {index.vectors.number for index in self}:
                self._refresh()
            group = [index for index in self if index.vectors.number in lease.indexes]
            if group:
                rows = self._images.rows(after=lease.first_row - 1, limit=LEASE_ROWS)
                return LeasedStep(rows[rows <= lease.last_row].tolist(), group, lease.last_row, lease)
            self._work.finish(lease)  # all of its indexes were dropped
        return None

    def append(self, step: LeasedStep, reads: Sequence[Read], *, through: int) -> None:
        self._keep_states(reads)
        if reads:
            rows = np.array([read.row for read in reads], dtype=np.int64)
            for place, index in enumerate(step.group):
                moment = index.vectors.upsert(rows, np.stack([read.vectors[place] for read in reads]))
                self._written = max(self._written, moment)
        self._work.renew(step.lease, self._sharing.lease_s)

    def finish(self, step: LeasedStep) -> None:
        """End a lease, without the vectors of images that were deleted while they were read."""
        if deleted := self._work.deleted(step.lease):
            for index in step.group:
                index.vectors.delete(deleted)
        self._work.finish(step.lease, self._written)
        self._refresh()

    def give_up(self, step: LeasedStep) -> None:
        """Let others take a lease. If they can't be told, it expires."""
        try:
            self._work.give_up(step.lease)
        except Overloaded as error:
            self._log().warning("lease not given up", reason=error.message)

    def delete(self, row: int) -> None:
        """Remove an image's vectors. Where that fails they are not found either, and removed later."""
        if self.states is not None:
            self.states.delete(row)
        try:
            for index in self:
                index.vectors.delete([row])
        except Overloaded as error:
            self._log().warning("vectors of a deleted image remain for now", row=row, reason=error.message)

    def tidy(self) -> None:
        """Tell others which indexes are used, remove those that were dropped, and begin those that were lost again."""
        self._note_uses()
        self._remove_dropped()
        if time.monotonic() - self._verified >= VERIFY_EVERY_S:
            self._verified = time.monotonic()
            for index in self:
                index.vectors.check()
                self._read_lost_again(index)
        self._start_tuning()

    def save(self) -> None:
        """Do nothing: all that is to be kept is stored."""

    def remove_files_of_others(self) -> None:
        self._remove_files_of_others(("states",))

    def _refresh(self) -> None:
        order = next(self._order)
        progress = self._work.progress()
        with self._taking_over:
            if order > self._taken_over:  # what was asked later is newer
                self._taken_over = order
                self._take_over(progress)

    def _take_over(self, progress: Progress) -> None:
        self._changes.note_rows([progress.last_row])
        indexes = {key_of(None): self._taken(None, progress)}
        indexes[key_of(None)].is_pinned = True
        for stored in progress.conditions:
            text = self._text(stored.text)
            if text is None or key_of(text) in indexes:
                continue
            index = indexes[key_of(text)] = self._taken(text, progress)
            index.is_pinned, index.noted = stored.is_pinned, stored.used
            index.used = max(index.used, stored.used)
        self._indexes = indexes

    def _taken(self, text: Text | None, progress: Progress) -> SharedIndex:
        """Return an index with its progress; a new one if it was begun again."""
        key = key_of(text)
        index, reached = self._indexes.get(key), progress.indexes.get(key)
        if reached is not None and not reached.is_created:
            reached = None
        number = reached.number if reached is not None else None
        if index is None or index.vectors.number != number:
            stored = None
            if number is not None:
                stored = self._sharing.vectors.index(self._images.collection, self._stem, number, self._width)
            used = 0.0 if index is None else index.used
            vectors = SharedVectors(self._images, stored, self._width, partial(self._restart, text, number))
            index = SharedIndex(text, vectors, used=used)
        if reached is not None:
            index.vectors.take_over(reached, progress.num_images)
        return index

    def _text(self, condition: str) -> Text | None:
        """Prepare a condition; None if this model can't."""
        if condition not in self._texts:
            self._texts[condition] = prepared(self._engine, condition)
        return self._texts[condition]

    def _note_uses(self) -> None:
        self._work.note_use()
        for index in self:
            if index.condition is not None and index.used > index.noted + NOTE_USE_EVERY_S:
                self._images.note_use(index.condition, index.used)
                index.noted = index.used

    def _remove_dropped(self) -> None:
        progress = self._work.progress()
        texts = [self._text(stored.text) for stored in progress.conditions]
        kept = {key_of(None), *(key_of(text) for text in texts if text is not None)}
        for key in progress.indexes.keys() - kept:
            self._work.drop_index(key)
            number = progress.indexes[key].number
            self._sharing.vectors.index(self._images.collection, self._stem, number, self._width).drop()

    def _read_lost_again(self, index: SharedIndex) -> None:
        """Let the images be read again whose vectors are missing in an index that had them, unless another process does
        so."""
        number, stored, through = index.vectors.number, index.vectors.stored, index.vectors.through
        if number is None or stored is None or through < self._changes.last_row:
            return
        with alone(self._sharing.connections, REPAIR_LOCK, number) as is_alone:
            reached = self._work.progress().indexes.get(key_of(index.text))
            if not is_alone or reached is None or reached.number != number or reached.through < through:
                return
            if len(lost := index.lost.find(self._images, stored, through)):
                self._log().warning("images are indexed again", condition=index.condition, images=len(lost))
                self._work.lease_again(number, ranges(lost, self._images.rows(), LEASE_ROWS))

    def _start_tuning(self) -> None:
        """Measure how indexes that have grown are best searched. The database takes minutes for it, during which images
        are indexed, and for which nobody who stops waits."""
        due = [index.vectors for index in self if self._is_to_tune(index.vectors)]
        if due and not self._tuning.is_alive():
            self._tuning = threading.Thread(target=self._tune, args=(due,), name="tuning", daemon=True)
            self._tuning.start()

    def _is_to_tune(self, vectors: SharedVectors) -> bool:
        is_complete = vectors.number is not None and vectors.through >= self._changes.last_row
        return is_complete and vectors.stored is not None and vectors.stored.needs_tuning(vectors.num_vectors)

    def _tune(self, due: Sequence[SharedVectors]) -> None:
        try:
            for vectors in due:
                if vectors.number is not None and vectors.stored is not None:
                    self._tune_one(vectors.number, vectors.stored, vectors.num_vectors)
        except FoveaError as error:  # the next time `tidy` is called it is tried again
            self._log().warning("searches not measured", reason=error.message)
        except RuntimeError:
            return  # the collections were closed meanwhile

    def _tune_one(self, number: int, stored: StoredVectors, num_vectors: int) -> None:
        """Measure one index, unless another process does so."""
        with alone(self._sharing.connections, TUNING_LOCK, number) as is_alone:
            if is_alone and stored.needs_tuning(num_vectors):
                rows = self._images.rows()
                sample = np.random.default_rng().choice(rows, min(SAMPLE_SIZE, len(rows)), replace=False)
                self._work.note_tuning(number, stored.tune(np.sort(sample)))

    def _restart(self, text: Text | None, number: int | None) -> None:
        """Begin the index of this number again."""
        condition = None if text is None else text.text
        self._log().warning("index is made again", condition=condition, reason="its vectors are lost")
        if number is not None:
            self._work.restart_index(key_of(text), number, self._create)

    def _create(self, number: int) -> None:
        self._sharing.vectors.index(self._images.collection, self._stem, number, self._width).create()

    def _log(self) -> structlog.stdlib.BoundLogger:
        logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        return logger.bind(collection=self._images.info.name)
