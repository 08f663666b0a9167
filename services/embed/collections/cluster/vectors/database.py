"""The vectors of all shared collections in one Milvus, as the collections use them."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from services.core.errors import Overloaded
from services.embed.collections.answers import IndexKind
from services.embed.collections.cluster.shared_vectors import VectorsLost
from services.embed.collections.cluster.vectors.address import connection_to
from services.embed.collections.cluster.vectors.milvus import TIMEOUT_S, MilvusVectors, VectorsMissing, reason_of
from services.embed.collections.cluster.vectors.milvus_index import MilvusIndex
from services.embed.collections.cluster.vectors.places import Place, drop_checkpoint, places
from services.embed.collections.cluster.vectors.tuning import Tuning
from services.embed.collections.index.vector_index import Found, IndexOptions
from services.embed.model.items import Embeddings

Rows = NDArray[np.int64]

# Part of the database's identity by which its vectors are told from those of others in the same Milvus.
IDENTITY_CHARACTERS = 12


class MilvusDatabase:
    """A VectorDatabase; `identity` is that of the database to which the vectors belong."""

    def __init__(self, url: str, identity: str, options: IndexOptions) -> None:
        """`url` may have a user and a password, which are sent as Milvus's token."""
        self._vectors = connection_to(url)
        self._prefix = f"{identity[:IDENTITY_CHARACTERS]}_"
        self._options = options

    def problem(self) -> str:
        try:
            self._vectors.run("list collections", lambda milvus: milvus.list_collections(timeout=TIMEOUT_S))
        except Overloaded as error:
            return reason_of(error.__cause__ or error)
        except (OSError, ValueError) as error:
            return reason_of(error)
        return ""

    def index(self, collection: int, checkpoint: str, number: int, width: int = 0) -> "MilvusIndexOfCondition":
        place = Place(collection, self._prefix + checkpoint, str(number))
        return MilvusIndexOfCondition(self._vectors, MilvusIndex(self._vectors, place, width, self._options))

    def stored(self) -> Iterable[tuple[int, str, int]]:
        return [
            (place.collection, place.checkpoint.removeprefix(self._prefix), int(place.condition))
            for place in places(self._vectors)
            if place.checkpoint.startswith(self._prefix) and place.condition.isdecimal()
        ]

    def drop_checkpoint(self, collection: int, checkpoint: str) -> None:
        drop_checkpoint(self._vectors, collection, self._prefix + checkpoint)

    def close(self) -> None:
        self._vectors.close()


class MilvusIndexOfCondition:
    """StoredVectors in a partition of Milvus."""

    def __init__(self, vectors: MilvusVectors, index: MilvusIndex) -> None:
        self._vectors = vectors
        self._index = index

    @property
    def is_there(self) -> bool:
        place = self._index.place
        try:
            return bool(
                self._vectors.run(
                    "look for vectors",
                    lambda milvus: milvus.has_partition(place.milvus_collection, place.partition, timeout=TIMEOUT_S),
                )
            )
        except VectorsMissing:
            return False

    @property
    def num_vectors(self) -> int:
        return self._index.num_vectors

    @property
    def kind(self) -> IndexKind:
        return self._index.kind

    @property
    def is_exact(self) -> bool:
        return self._index.is_exact

    @property
    def recall_at_10(self) -> float | None:
        return self._index.recall_at_10

    def take_over(self, written: int, tuning: str | None) -> None:
        self._index.follow(written)
        self._index.tuning = None if tuning is None else Tuning.from_json(json.loads(tuning))

    def needs_tuning(self, num_vectors: int) -> bool:
        return self._index.needs_tuning(num_vectors)

    def tune(self, sample: Rows, num_vectors: int) -> str:
        with _losing():
            return json.dumps(self._index.tune(sample).to_json())

    def create(self) -> None:
        self._index.create()

    def upsert(self, rows: Rows, vectors: Embeddings) -> int:
        with _losing():
            return self._index.upsert(rows, vectors)

    def delete(self, rows: Rows) -> None:
        try:
            self._index.delete(rows)
        except VectorsMissing:
            return

    def search(self, queries: Embeddings, k: int, *, among: Rows | None = None) -> Found:
        with _losing():
            return self._index.search(queries, k, among=among)

    def rows(self, first: int, last: int) -> Rows:
        with _losing():
            return self._index.rows(first, last)

    def vectors(self, rows: Rows) -> tuple[Embeddings, NDArray[np.bool_]]:
        with _losing():
            return self._index.vectors(rows)

    def drop(self) -> None:
        self._index.drop()


@contextmanager
def _losing() -> Iterator[None]:
    try:
        yield
    except VectorsMissing as error:
        raise VectorsLost from error
