"""The interface of a vector database that all processes share.

The database is a cache: it may lack vectors, and may still have those of deleted images. How far an index is and which
images exist is asked of PostgreSQL.
"""

from collections.abc import Iterable
from typing import Protocol

from services.core.errors import Overloaded
from services.embed.collections.index.vector_index import SearchedVectors
from services.embed.collections.index.vector_table import Rows, Vectors


class VectorsLost(Overloaded):
    """The database has no place for the vectors of an index, which it had before."""

    def __init__(self) -> None:
        super().__init__("The index was lost and is made again.", code="index_lost")


class StoredVectors(SearchedVectors, Protocol):
    """The unit vectors of one index, by row. Thread-safe; every method may block and raise Overloaded.

    `num_vectors` is 0 if there is no place for them. Methods that add or find vectors raise VectorsLost if the place
    for them was not created, or was lost.
    """

    @property
    def is_there(self) -> bool:
        """Whether there is a place for the vectors."""
        ...

    def take_over(self, written: int, tuning: str | None) -> None:
        """Let searches find all that was written up to a moment, and search as was measured."""

    def needs_tuning(self, num_vectors: int) -> bool:
        """Whether so many vectors could be searched faster after `tune`."""
        ...

    def tune(self, sample: Rows) -> str:
        """Measure with some rows how the vectors are best searched, which `take_over` takes. Takes seconds or more."""
        ...

    def create(self) -> None:
        """Make the place for the vectors; no error if there is one."""

    def upsert(self, rows: Rows, vectors: Vectors) -> int:
        """Add vectors (R, E) of rows (R,), or replace them. Returns the moment that `take_over` takes."""
        ...

    def delete(self, rows: Rows) -> int:
        """Remove rows; no error for missing ones, or if all are lost. Returns the moment that `take_over` takes."""
        ...

    def rows(self, first: int, last: int) -> Rows:
        """Return the rows from `first` to `last` that have a vector, ascending, int64 (R,)."""
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
