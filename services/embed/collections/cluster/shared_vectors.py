"""The vectors of one condition in a vector database that all processes share.

The database is a cache: it may lack vectors, and may still have those of deleted images. How far an index is and which
images exist is asked of PostgreSQL.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.core.errors import Overloaded
from services.embed.collections.answers import IndexKind
from services.embed.collections.cluster.claims import IndexProgress
from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.index.vector_index import Found
from services.embed.model.items import Embeddings

Rows = NDArray[np.int64]

# A search whose results are deleted images is repeated with more results, at most so often.
MAX_REPEATS = 8


class VectorsLost(Overloaded):
    """The database has no place for the vectors of an index, which it had before."""

    def __init__(self) -> None:
        super().__init__("The index was lost and is made again.", code="index_lost")


class StoredVectors(Protocol):
    """The unit vectors of one index, by row. Thread-safe; every method may block and raise Overloaded.

    Those that add or find vectors raise VectorsLost if the place for them was not created, or was lost.
    """

    @property
    def is_there(self) -> bool:
        """Whether there is a place for the vectors."""
        ...

    @property
    def num_vectors(self) -> int:
        """Ask for the number of vectors; 0 if there is no place for them."""
        ...

    @property
    def kind(self) -> IndexKind: ...
    @property
    def is_exact(self) -> bool: ...
    @property
    def recall_at_10(self) -> float | None: ...

    def take_over(self, written: int, tuning: str | None) -> None:
        """Let searches find all that was written up to a moment, and search as was measured."""

    def needs_tuning(self, num_vectors: int) -> bool:
        """Whether so many vectors could be searched faster after `tune`."""
        ...

    def tune(self, sample: Rows, num_vectors: int) -> str:
        """Measure with some rows how the vectors are best searched, which `take_over` takes. Takes seconds or more."""
        ...

    def create(self) -> None:
        """Make the place for the vectors; no error if there is one."""

    def upsert(self, rows: Rows, vectors: Embeddings) -> int:
        """Add vectors (R, E) of rows (R,), or replace them. Returns the moment that `take_over` takes."""
        ...

    def delete(self, rows: Rows) -> None:
        """Remove rows; no error for missing ones, or if all are lost."""

    def search(self, queries: Embeddings, k: int, *, among: Rows | None = None) -> Found:
        """Find the k nearest rows to unit vectors (Q, E), of all or of `among` (R,), ascending."""
        ...

    def rows(self, first: int, last: int) -> Rows:
        """Return the rows from `first` to `last` that have a vector, ascending, int64 (R,)."""
        ...

    def vectors(self, rows: Rows) -> tuple[Embeddings, NDArray[np.bool_]]:
        """Return vectors (R, E) of rows (R,), zeros for missing rows, and which rows exist, bool (R,)."""
        ...

    def drop(self) -> None:
        """Remove all vectors; no error if there are none."""


class VectorDatabase(Protocol):
    """The vectors of all indexes. Thread-safe; methods may block and raise Overloaded."""

    def problem(self) -> str:
        """Look once, and tell why the vectors can't be reached; empty if they can. Raises nothing."""
        ...

    def index(self, collection: int, checkpoint: str, number: int, width: int = 0) -> StoredVectors:
        """Return the vectors of an index, for which there is a place once it is created.

        `width` is needed for everything but deletion.
        """
        ...

    def stored(self) -> Iterable[tuple[int, str, int]]:
        """List collection, checkpoint and number of all indexes for whose vectors there is a place."""
        ...

    def drop_checkpoint(self, collection: int, checkpoint: str) -> None:
        """Remove the vectors of all indexes of a checkpoint; no error if there are none."""

    def close(self) -> None: ...


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
            return _padded([[]] * len(queries), [[]] * len(queries), k)
        wanted = k
        for _ in range(MAX_REPEATS):
            with self._noticing_loss():
                found = self.stored.search(queries, wanted, among=among)
            there = [
                (rows[rows >= 0], scores[rows >= 0]) for rows, scores in zip(found.rows, found.scores, strict=True)
            ]
            live = self._store.live(np.unique(np.concatenate([rows for rows, _ in there])).tolist())
            kept = [[place for place, row in enumerate(rows.tolist()) if row in live][:k] for rows, _ in there]
            # what is not full and not all either lacks images behind the deleted ones
            if all(len(own) == k or len(rows) < wanted for own, (rows, _) in zip(kept, there, strict=True)):
                break
            wanted *= 2
        return _padded(
            [rows[own].tolist() for own, (rows, _) in zip(kept, there, strict=True)],
            [scores[own].tolist() for own, (_, scores) in zip(kept, there, strict=True)],
            k,
        )

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


def _padded(rows: Sequence[Sequence[int]], scores: Sequence[Sequence[float]], k: int) -> Found:
    found = Found(np.full((len(rows), k), -1, np.int64), np.full((len(rows), k), -np.inf, np.float32))
    for place, (own_rows, own_scores) in enumerate(zip(rows, scores, strict=True)):
        found.rows[place, : len(own_rows)] = own_rows
        found.scores[place, : len(own_scores)] = own_scores
    return found
