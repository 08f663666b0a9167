"""A vector database in memory, for processes that are threads of the tests, with the bad days of a real one."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.core.errors import Overloaded
from services.embed.collections.cluster.vectors import VectorsLost
from services.embed.collections.index.vector_index import Found, IndexKind
from services.embed.model.items import Embeddings

Rows = NDArray[np.int64]


@dataclass
class VectorsInMemory:
    """`keeps_deleted`: deletions change nothing, as if they had been lost. `is_down`: nothing answers. `tuning`: how
    searches are measured, which is not necessary without."""

    indexes: dict[tuple[int, str, int], dict[int, Embeddings]] = field(default_factory=dict)
    keeps_deleted: bool = False
    is_down: bool = False
    tuning: Callable[[], str] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def problem(self) -> str:
        return "the server is down" if self.is_down else ""

    def drop_checkpoint(self, collection: int, checkpoint: str) -> None:
        self.check()
        with self.lock:
            for key in [key for key in self.indexes if key[:2] == (collection, checkpoint)]:
                del self.indexes[key]

    def index(self, collection: int, checkpoint: str, number: int, width: int = 0) -> "OneIndex":
        return OneIndex(self, (collection, checkpoint, number))

    def stored(self) -> Iterable[tuple[int, str, int]]:
        self.check()
        return list(self.indexes)

    def close(self) -> None:
        """Keep everything, for the next process."""

    def check(self) -> None:
        if self.is_down:
            raise Overloaded("The vectors currently can't be reached.", code="vectors_unavailable")


@dataclass(frozen=True)
class OneIndex:
    """The vectors of one index."""

    database: VectorsInMemory
    key: tuple[int, str, int]

    @property
    def is_there(self) -> bool:
        self.database.check()
        return self.key in self.database.indexes

    @property
    def num_vectors(self) -> int:
        self.database.check()
        return len(self.database.indexes.get(self.key, ()))

    kind: IndexKind = "flat"
    is_exact: bool = True
    recall_at_10: float | None = None

    def create(self) -> None:
        self.database.check()
        with self.database.lock:
            self.database.indexes.setdefault(self.key, {})

    def take_over(self, written: int, tuning: str | None) -> None:
        """Do nothing: all that is written is found."""

    def needs_tuning(self, num_vectors: int) -> bool:
        return self.database.tuning is not None

    def tune(self, sample: Rows) -> str:
        assert self.database.tuning is not None
        return self.database.tuning()

    def upsert(self, rows: Rows, vectors: Embeddings) -> int:
        self.database.check()
        with self.database.lock:
            self.found().update(zip(rows.tolist(), vectors, strict=True))
        return 1

    def delete(self, rows: Rows) -> int:
        self.database.check()
        with self.database.lock:
            for row in [] if self.database.keeps_deleted else rows.tolist():
                self.database.indexes.get(self.key, {}).pop(row, None)
        return 1

    def search(self, queries: Embeddings, k: int, *, among: Rows | None = None) -> Found:
        self.database.check()
        with self.database.lock:
            stored = dict(self.found())
        rows = np.array(sorted(stored.keys() & set(among.tolist()) if among is not None else stored), np.int64)
        found = Found(np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32))
        if len(rows):
            scores = queries @ np.stack([stored[row] for row in rows.tolist()]).T
            for place, own in enumerate(scores):
                best = np.lexsort((rows, -own))[:k]
                found.rows[place, : len(best)] = rows[best]
                found.scores[place, : len(best)] = own[best]
        return found

    def searched(self, queries: Embeddings, k: int, among: Rows | None) -> Found:
        return self.search(queries, k, among=among)

    def rows(self, first: int, last: int) -> Rows:
        self.database.check()
        return np.array(sorted(row for row in self.found() if first <= row <= last), np.int64)

    def vectors(self, rows: Rows) -> tuple[Embeddings, NDArray[np.bool_]]:
        self.database.check()
        stored = self.found()
        width = len(next(iter(stored.values()), ()))
        found = [stored.get(row, np.zeros(width, np.float32)) for row in rows.tolist()]
        return np.array(found, np.float32).reshape(len(rows), width), np.array([row in stored for row in rows.tolist()])

    def found(self) -> dict[int, Embeddings]:
        if self.key not in self.database.indexes:
            raise VectorsLost
        return self.database.indexes[self.key]

    def drop(self) -> None:
        self.database.check()
        with self.database.lock:
            self.database.indexes.pop(self.key, None)
