"""The indexes of a collection that any number of processes fill and search.

Which conditions are indexed is read from PostgreSQL before each use; only states are this process's own.
"""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from services.core.errors import FoveaError, Overloaded
from services.embed.call import ServedEmbed
from services.embed.collections.cluster.connections import Connections, alone
from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.cluster.leases import LEASE_ROWS, IndexWork, Lease, Progress
from services.embed.collections.cluster.vectors import SAMPLE_SIZE, SharedVectors, store_vectors
from services.embed.collections.indexes import (
    Changes,
    CheckpointIndexes,
    OpenIndex,
    Step,
    key_of,
    make_folder,
    prepared,
)
from services.embed.collections.reader import Read
from services.embed.collections.serving import Serving
from services.nn.clip_texts import Text

# Uses of an index are noted for the other processes at most so often.
NOTE_USE_EVERY_S = 60.0
# Any number, the same in all replicas.
TUNING_LOCK = 0x0F0FEC


@dataclass(frozen=True)
class Sharing:
    """The parts that all shared collections of a process have in common; `holder` names it in the database."""

    connections: Connections
    serving: Serving
    holder: str
    max_state_bytes: int

    @property
    def lease_s(self) -> float:
        """Another process takes what this one was indexing so long after its last sign of life."""
        return self.serving.settings.collection_lease_s

    def vectors(self, number: int | None, width: int) -> SharedVectors:
        return SharedVectors(self.connections, number, width, self.serving.index_options)


@dataclass(eq=False)
class SharedIndex(OpenIndex):
    """An index; `noted` is the use of it that is stored."""

    vectors: SharedVectors
    noted: float = 0.0


@dataclass(frozen=True, eq=False)
class LeasedStep(Step[SharedIndex]):
    """Images that this process has leased."""

    lease: Lease


class SharedIndexes(CheckpointIndexes[SharedIndex, LeasedStep]):
    """The indexes of one checkpoint as all processes see them."""

    def __init__(
        self, store: PostgresImageStore, folder: Path, served: ServedEmbed, *, sharing: Sharing, changes: Changes
    ) -> None:
        """Open this process's states, and learn how far the indexes are. Raises NotFound, Overloaded."""
        super().__init__(store, folder, served, sharing.serving.fresh)
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
        self._tuning = threading.Thread()
        if sharing.max_state_bytes > 0:
            make_folder(folder)
            self._open_states(served.engine.state_bytes, sharing.max_state_bytes, store.rows())
        self._refresh()

    async def refresh(self) -> None:
        await asyncio.to_thread(self._refresh)

    def start(self, text: Text) -> SharedIndex:
        """Return the index of a condition; other processes learn of it when the condition is stored."""
        if key_of(text) not in self._indexes:
            index = SharedIndex(text, self._sharing.vectors(None, self._width))
            self._indexes = {**self._indexes, key_of(text): index}
        return self._indexes[key_of(text)]

    def drop(self, index: OpenIndex) -> None:
        """Forget an index; its progress and vectors are removed by `tidy`, once its condition is not stored either."""
        key = key_of(index.text)
        self._indexes = {own: other for own, other in self._indexes.items() if own != key}

    def next_step(self) -> LeasedStep | None:
        self._refresh()
        if new := [key for key, index in self._indexes.items() if index.vectors.number is None]:
            for key in new:
                self._work.start_index(key, self._width)
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
            vectors = {
                index.vectors.number: np.stack([read.vectors[place] for read in reads])
                for place, index in enumerate(step.group)
                if index.vectors.number is not None
            }
            store_vectors(self._sharing.connections, self._images.collection, rows, vectors)
        self._work.renew(step.lease, self._sharing.lease_s)

    def finish(self, step: LeasedStep) -> None:
        self._work.finish(step.lease)
        self._refresh()

    def give_up(self, step: LeasedStep) -> None:
        """Let others take a lease. If they can't be told, it expires."""
        try:
            self._work.renew(step.lease, 0.0)
        except Overloaded as error:
            self._log().warning("lease not given up", reason=error.message)

    def delete(self, row: int) -> None:
        """Remove an image's states; its vectors went with it."""
        if self.states is not None:
            self.states.delete(row)

    def tidy(self) -> None:
        """Tell others which indexes are used, remove those that were dropped, and measure those that have grown."""
        self._note_uses()
        self._remove_dropped()
        self._start_tuning()

    def save(self) -> None:
        """Do nothing: all that is to be kept is stored."""

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
        number = reached.number if reached is not None else None
        if index is None or index.vectors.number != number:
            used = 0.0 if index is None else index.used
            index = SharedIndex(text, self._sharing.vectors(number, self._width), used=used)
        if reached is not None:
            num_vectors = max(0, progress.num_images - reached.num_waiting)
            index.vectors.take_over(reached.through, num_vectors, reached.tuning)
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

    def _start_tuning(self) -> None:
        """Measure how indexes that have grown are best searched. The database takes minutes for it, during which images
        are indexed, and for which nobody who stops waits."""
        due = [index.vectors for index in self if self._is_to_tune(index.vectors)]
        if due and not self._tuning.is_alive():
            self._tuning = threading.Thread(target=self._tune, args=(due,), name="tuning", daemon=True)
            self._tuning.start()

    def _is_to_tune(self, vectors: SharedVectors) -> bool:
        is_complete = vectors.number is not None and vectors.through >= self._changes.last_row
        return is_complete and vectors.needs_tuning

    def _tune(self, due: Sequence[SharedVectors]) -> None:
        try:
            for vectors in due:
                if vectors.number is not None:
                    self._tune_one(vectors.number, vectors)
        except FoveaError as error:  # the next time `tidy` is called it is tried again
            self._log().warning("searches not measured", reason=error.message)
        except RuntimeError:
            return  # the collections were closed meanwhile

    def _tune_one(self, number: int, vectors: SharedVectors) -> None:
        """Measure one index, unless another process does so."""
        with alone(self._sharing.connections, TUNING_LOCK, number) as is_alone:
            if is_alone and vectors.needs_tuning:
                rows = self._images.rows()
                sample = np.random.default_rng().choice(rows, min(SAMPLE_SIZE, len(rows)), replace=False)
                self._work.note_tuning(number, vectors.tune(np.sort(sample)))

    def _log(self) -> structlog.stdlib.BoundLogger:
        logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
        return logger.bind(collection=self._images.info.name)
