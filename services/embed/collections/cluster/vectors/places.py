"""Places of vectors in Milvus, by name, and the dropping of what nobody needs any more."""

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.embed.collections.cluster.vectors.milvus import TIMEOUT_S, MilvusVectors, VectorsMissing

Rows = NDArray[np.int64]

NAME = re.compile(r"[0-9A-Za-z_]{1,100}")
COLLECTION = re.compile(r"fovea_(\d+)_([0-9A-Za-z_]+)")
PARTITION = re.compile(r"condition_([0-9A-Za-z_]+)")
# A primary key is a row below 31 bits of its condition's name.
ROW_BITS = 32
MAX_ROW = (1 << ROW_BITS) - 1


@dataclass(frozen=True)
class Place:
    """The vectors of one condition in one of Fovea's collections, by one checkpoint: a partition in Milvus.

    The partitions of a checkpoint make up a Milvus collection, so vectors of two checkpoints are never together.
    """

    collection: int
    checkpoint: str
    condition: str

    def __post_init__(self) -> None:
        if not (NAME.fullmatch(self.checkpoint) and NAME.fullmatch(self.condition)):
            raise ValueError(f"names must be 1 to 100 letters, digits and _: {self.checkpoint!r}, {self.condition!r}")

    @property
    def milvus_collection(self) -> str:
        return f"fovea_{self.collection}_{self.checkpoint}"

    @property
    def partition(self) -> str:
        return f"condition_{self.condition}"

    def keys(self, rows: Rows) -> Rows:
        """Return the primary keys of rows (R,). Milvus wants them to be unique in a collection, also across partitions.

        Two conditions whose names have the same checksum share keys; nothing here depends on this not happening.
        """
        if len(rows) and not 0 <= rows.min() <= rows.max() <= MAX_ROW:
            raise ValueError(f"rows must be from 0 to {MAX_ROW}, not {rows.min()} to {rows.max()}")
        return rows + self._first_key

    def rows(self, keys: Rows) -> Rows:
        """Return the rows of primary keys (R,)."""
        return keys & MAX_ROW

    @property
    def _first_key(self) -> int:
        return (zlib.crc32(self.condition.encode()) >> 1) << ROW_BITS


def places(vectors: MilvusVectors) -> list[Place]:
    """List everything that Milvus has for Fovea, in no order. What is dropped meanwhile may be among it."""
    return [place for name in _collections(vectors) for place in _places_in(vectors, name)]


def drop(vectors: MilvusVectors, place: Place) -> None:
    """Drop the vectors of a condition; no error if there are none."""
    name, partition = place.milvus_collection, place.partition
    try:
        # one that is loaded can't be dropped
        vectors.run("release vectors", lambda milvus: milvus.release_partitions(name, [partition], timeout=TIMEOUT_S))
        vectors.run("drop vectors", lambda milvus: milvus.drop_partition(name, partition, timeout=TIMEOUT_S))
    except VectorsMissing:
        return


def drop_checkpoint(vectors: MilvusVectors, collection: int, checkpoint: str) -> None:
    """Drop the vectors of all conditions by one checkpoint; no error if there are none."""
    _drop_collection(vectors, Place(collection, checkpoint, "any").milvus_collection)


def drop_collection(vectors: MilvusVectors, collection: int) -> None:
    """Drop all vectors of one of Fovea's collections; no error if there are none."""
    for name in _collections(vectors):
        if name.startswith(f"fovea_{collection}_"):
            _drop_collection(vectors, name)


def _collections(vectors: MilvusVectors) -> list[str]:
    names: list[str] = vectors.run("list vectors", lambda milvus: milvus.list_collections(timeout=TIMEOUT_S))
    return [name for name in names if COLLECTION.fullmatch(name)]


def _places_in(vectors: MilvusVectors, name: str) -> Iterator[Place]:
    found = COLLECTION.fullmatch(name)
    assert found is not None, "only names of this form are listed"
    try:
        partitions = vectors.run("list vectors", lambda milvus: milvus.list_partitions(name, timeout=TIMEOUT_S))
    except VectorsMissing:
        return
    for partition in partitions:
        if condition := PARTITION.fullmatch(partition):
            yield Place(int(found[1]), found[2], condition[1])


def _drop_collection(vectors: MilvusVectors, name: str) -> None:
    vectors.run("drop vectors", lambda milvus: milvus.drop_collection(name, timeout=TIMEOUT_S))
