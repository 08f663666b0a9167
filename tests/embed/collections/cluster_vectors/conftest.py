"""Both kinds of index, empty, for the tests of what they promise alike; and the shared one alone."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest
from numpy.typing import NDArray

from services.embed.collections.index.vector_index import Found, IndexOptions, VectorIndex
from services.embed.collections.index.vector_table import Rows, Vectors

if TYPE_CHECKING:
    from services.embed.collections.cluster.connections import Connections

WIDTH = 24


class Index(Protocol):
    """Fixtures for the promises of both kinds of index."""

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


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.process)])
def index(request: pytest.FixtureRequest) -> Index:
    if request.param == "local":
        return LocalIndex()
    connections = request.getfixturevalue("connections")
    from tests.embed.collections.shared_index import ClusterIndex

    return ClusterIndex(connections, WIDTH)


@pytest.fixture
def connections(empty_database_url: str) -> "Iterator[Connections]":
    from services.embed.collections.cluster.connections import Connections

    connections = Connections.open(empty_database_url)
    yield connections
    connections.close()
