"""Both kinds of index, empty, for the tests of what they promise alike; and Milvus's alone."""

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from services.embed.collections.index.vector_index import Found, IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Rows, Vectors
from tests.core.milvus_server import MilvusServer

if TYPE_CHECKING:
    from services.embed.collections.cluster.milvus import MilvusVectors

WIDTH = 24
NUMBERS = itertools.count(1)


class Index(Protocol):
    """Fixtures for the promises of both kinds of index."""

    @property
    def num_vectors(self) -> int: ...
    @property
    def is_exact(self) -> bool: ...
    def add(self, rows: Rows, vectors: Vectors) -> None: ...
    def delete(self, rows: list[int]) -> None: ...
    def search(self, queries: Vectors, k: int, *, among: Rows | None = None) -> Found: ...
    def vectors(self, rows: Rows) -> tuple[Vectors, NDArray[np.bool_]]: ...
    def rows(self) -> list[int]: ...


class LocalIndex:
    def __init__(self) -> None:
        self._index = VectorIndex(WIDTH, IndexOptions())
        self.search, self.vectors = self._index.search, self._index.vectors

    @property
    def num_vectors(self) -> int:
        return self._index.num_vectors

    @property
    def is_exact(self) -> bool:
        return self._index.is_exact

    def add(self, rows: Rows, vectors: Vectors) -> None:
        through = max(self._index.through, int(rows.max(initial=0)))
        self._index.append(rows, vectors, through=through)

    def delete(self, rows: list[int]) -> None:
        for row in rows:
            self._index.delete(row)

    def rows(self) -> list[int]:
        return [int(row) for row in self._index.rows]


class ClusterIndex:
    def __init__(self, server: MilvusServer) -> None:
        from services.embed.collections.cluster.milvus import MilvusVectors, Partition
        from services.embed.collections.cluster.milvus_index import MilvusIndex

        # a condition each in one collection, of which Milvus makes new ones only in seconds
        place = Partition(1, "contract", str(next(NUMBERS)))
        self.connection = MilvusVectors(server.url)
        self._index = MilvusIndex(self.connection, place, WIDTH, IndexOptions())
        self._index.create()
        self.search, self.vectors = self._index.search, self._index.vectors

    @property
    def num_vectors(self) -> int:
        return self._index.num_vectors

    @property
    def is_exact(self) -> bool:
        return self._index.is_exact

    def add(self, rows: Rows, vectors: Vectors) -> None:
        self._index.take_over(self._index.upsert(rows, vectors), None)

    def delete(self, rows: list[int]) -> None:
        self._index.take_over(self._index.delete(np.array(rows, np.int64)), None)

    def rows(self) -> list[int]:
        return [int(row) for row in self._index.rows(0, 60_000)]


@pytest.fixture(params=["local", pytest.param("milvus", marks=pytest.mark.process)])
def index(request: pytest.FixtureRequest) -> Iterator[Index]:
    if request.param == "local":
        yield LocalIndex()
        return
    index = ClusterIndex(request.getfixturevalue("milvus"))
    yield index
    index.connection.close()


@pytest.fixture
def number() -> int:
    """The number of a collection that no other test uses."""
    return 1000 + next(NUMBERS)


@pytest.fixture
def connect(milvus: MilvusServer) -> "Iterator[Callable[[], MilvusVectors]]":
    """The function that makes another connection, as another process would have one."""
    from services.embed.collections.cluster.milvus import MilvusVectors

    connections: list[MilvusVectors] = []

    def connect() -> MilvusVectors:
        connections.append(MilvusVectors(milvus.url))
        return connections[-1]

    yield connect
    for connection in connections:
        connection.close()
