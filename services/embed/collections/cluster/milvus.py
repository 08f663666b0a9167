"""The connection to Milvus, its errors as those of the service, and the partitions in which it has vectors."""

import logging
import re
import threading
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import grpc
import structlog
from pymilvus import MilvusClient, MilvusException

from services.core.errors import Overloaded
from services.core.printable import first_line
from services.embed.collections.cluster.vectors import VectorsLost
from services.embed.collections.index.vector_table import Rows

# Longest wait for an answer, unless a call needs more: shorter than a request's deadline, so that the answer says what
# is missing.
TIMEOUT_S = 10.0
OPEN_TIMEOUT_S = 5.0
RETRY_AFTER_S = 2.0
# Milvus's codes of a collection and of a partition that do not exist. Some calls have no code for it, only the words.
MISSING = (100, 200)
MISSING_WORDS = "not found"
# What it says while its parts look for each other and vectors are loaded, after a restart or where a node is gone. Its
# bare "unrecoverable error" is what remains of a load that was given to a node that is gone.
UNSETTLED = re.compile(
    r"not (fully )?loaded|\b(node|channel|segment|replica|leader|server)s? [^.:\[]*not (found|available|ready)"
    r"|^unrecoverable error$"
)
# What pymilvus calls a server that it can't connect to, and grpc's codes for one that does not answer.
CONNECT_FAILED = 2
NOT_ANSWERING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)

Result = TypeVar("Result")

# It logs each failed call with its traceback; what is worth a line is logged here.
logging.getLogger("pymilvus").setLevel(logging.CRITICAL)

NAME = re.compile(r"[0-9A-Za-z_]{1,100}")
COLLECTION = re.compile(r"fovea_(\d+)_([0-9A-Za-z_]+)")
PARTITION = re.compile(r"condition_([0-9A-Za-z_]+)")
# A primary key is a row below 31 bits of its condition's name.
ROW_BITS = 32
MAX_ROW = (1 << ROW_BITS) - 1


class VectorsUnreachable(Overloaded):
    """Milvus can't be reached, or can't answer at the moment. A change may have been made, so it is to be repeated."""

    def __init__(self) -> None:
        super().__init__(
            "The vectors of the collections currently can't be reached.",
            code="vectors_unreachable",
            retry_after_s=RETRY_AFTER_S,
        )


class VectorsRefused(Overloaded):
    """Milvus refused an operation, for example because of a limit or of rights that the token lacks."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"The vector database refused to {operation}.", code="vectors_refused", retry_after_s=RETRY_AFTER_S
        )


def reason_of(error: BaseException) -> str:
    """Return what Milvus, or the connection to it, says first; grpc tells all of a call."""
    details = error.details() if isinstance(error, grpc.RpcError) and hasattr(error, "details") else None
    text = error.message if isinstance(error, MilvusException) else details or first_line(error)
    return " ".join(next(iter(str(text).splitlines()), type(error).__name__).split())


class MilvusVectors:
    """A thread-safe connection, opened when it is first used. Methods raise VectorsUnreachable, VectorsLost and
    VectorsRefused, and RuntimeError once it is closed."""

    def __init__(self, url: str) -> None:
        """`url` is http(s)://host:port; a user and a password in it are sent as Milvus's token."""
        parts = urlsplit(url)
        self._url = urlunsplit(parts._replace(netloc=address_of(url)))
        self._token = f"{unquote(parts.username)}:{unquote(parts.password or '')}" if parts.username else ""
        self._opening = threading.Lock()
        self._client: MilvusClient | None = None
        self._is_closed = False

    def close(self) -> None:
        """Close the connection. Closing again has no effect."""
        with self._opening:
            self._is_closed = True
            if self._client is not None:
                self._client.close()
                self._client = None

    def run(self, operation: str, call: Callable[[MilvusClient], Result]) -> Result:
        """Return what `call` returns for the client. `operation`, a verb and its object, is what a refusal names.

        Each call has to set a timeout, as pymilvus repeats some calls until then and would wait for others for ever.
        """
        try:
            return call(self._open())
        except MilvusException as error:
            if UNSETTLED.search(error.message):
                raise VectorsUnreachable from error
            if error.code in MISSING or MISSING_WORDS in error.message:
                raise VectorsLost from error
            if error.code == CONNECT_FAILED or error.code in NOT_ANSWERING:
                raise VectorsUnreachable from error
            structlog.get_logger(__name__).warning("refused by Milvus", operation=operation, reason=error.message)
            raise VectorsRefused(operation) from error
        except grpc.RpcError as error:
            raise VectorsUnreachable from error
        except ValueError as error:
            # grpc's word for a connection that another thread has replaced meanwhile
            if "closed channel" not in str(error):
                raise
            raise VectorsUnreachable from error

    def _open(self) -> MilvusClient:
        if (client := self._client) is not None:
            return client
        with self._opening:
            if self._is_closed:
                raise RuntimeError("The vectors are closed.")
            if self._client is None:
                self._client = MilvusClient(self._url, token=self._token, timeout=OPEN_TIMEOUT_S, dedicated=True)
            return self._client


def address_of(url: str) -> str:
    """Return the host with its port, without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


@dataclass(frozen=True)
class Partition:
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
    def name(self) -> str:
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


def partitions(vectors: MilvusVectors) -> list[Partition]:
    """List everything that Milvus has for Fovea, in no order. What is dropped meanwhile may be among it."""
    found = []
    for name in vectors.run("list vectors", lambda milvus: milvus.list_collections(timeout=TIMEOUT_S)):
        if collection := COLLECTION.fullmatch(name):
            with suppress(VectorsLost):
                listed = partial(MilvusClient.list_partitions, collection_name=name, timeout=TIMEOUT_S)
                conditions = [PARTITION.fullmatch(own) for own in vectors.run("list vectors", listed)]
                found += [Partition(int(collection[1]), collection[2], one[1]) for one in conditions if one]
    return found


def drop(vectors: MilvusVectors, partition: Partition) -> None:
    """Drop the vectors of a condition; no error if there are none."""
    collection, name = partition.milvus_collection, partition.name
    with suppress(VectorsLost):
        # one that is loaded can't be dropped
        vectors.run("release vectors", lambda milvus: milvus.release_partitions(collection, [name], timeout=TIMEOUT_S))
        vectors.run("drop vectors", lambda milvus: milvus.drop_partition(collection, name, timeout=TIMEOUT_S))


def drop_checkpoint(vectors: MilvusVectors, collection: int, checkpoint: str) -> None:
    """Drop the vectors of all conditions by one checkpoint; no error if there are none."""
    name = Partition(collection, checkpoint, "any").milvus_collection
    vectors.run("drop vectors", lambda milvus: milvus.drop_collection(name, timeout=TIMEOUT_S))
