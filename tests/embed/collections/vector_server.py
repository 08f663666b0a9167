"""A vector database in a process of its own, which other processes reach and which forgets everything when it ends."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from services.core.errors import Overloaded
from services.embed.collections.cluster.vectors import VectorsLost
from services.embed.collections.index.vector_index import Found, IndexKind
from services.embed.model.items import Embeddings
from tests.embed.collections.vectors_in_memory import Rows, VectorsInMemory

Key = tuple[int, str, int]


def serve(port: int, ready: int) -> None:
    """Answer calls until the process is killed."""
    vectors = VectorsInMemory()

    def answer(connection: Connection) -> None:
        with connection:
            key, name, arguments = connection.recv()
            if key is None:
                connection.send(list(vectors.stored()))
                return
            try:
                found = getattr(vectors.index(*key), name)
                connection.send(found(*arguments) if callable(found) else found)
            except VectorsLost:
                connection.send("lost")

    with Listener(("127.0.0.1", port), backlog=64) as listener:
        os.write(ready, b"listening")
        os.close(ready)
        while True:
            threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()


@dataclass
class VectorServer:
    """The process, started again on the same port."""

    port: int
    process: "subprocess.Popen[bytes] | None" = None

    def __post_init__(self) -> None:
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "tests.embed.collections.vector_server", str(self.port), str(writing)]
        self.process = subprocess.Popen(command, pass_fds=[writing])
        os.close(writing)
        with os.fdopen(reading, "rb") as ready:
            assert ready.read() == b"listening"

    def kill(self) -> None:
        """Kill it; what it had is lost."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self.process = None


class RemoteVectors:
    """The database as one process sees it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)

    def call(self, key: Key | None, name: str, *arguments: Any) -> Any:
        try:
            with Client(self._address) as connection:
                connection.send((key, name, arguments))
                found = connection.recv()
        except (OSError, EOFError) as error:
            raise Overloaded("The vectors currently can't be reached.", code="vectors_unavailable") from error
        if isinstance(found, str):
            raise VectorsLost
        return found

    def problem(self) -> str:
        try:
            self.stored()
        except Overloaded as error:
            return error.message
        return ""

    def drop_checkpoint(self, collection: int, checkpoint: str) -> None:
        for key in self.stored():
            if key[:2] == (collection, checkpoint):
                self.call(key, "drop")

    def index(self, collection: int, checkpoint: str, number: int, width: int = 0) -> "RemoteIndex":
        return RemoteIndex(self, (collection, checkpoint, number))

    def stored(self) -> Iterable[Key]:
        found: list[Key] = self.call(None, "stored")
        return found

    def close(self) -> None:
        """Do nothing: each call has a connection of its own."""


@dataclass(frozen=True)
class RemoteIndex:
    """The vectors of one index."""

    database: RemoteVectors
    key: Key
    kind: IndexKind = "flat"
    is_exact: bool = True
    recall_at_10: float | None = None

    @property
    def is_there(self) -> bool:
        return bool(self.database.call(self.key, "is_there"))

    @property
    def num_vectors(self) -> int:
        return int(self.database.call(self.key, "num_vectors"))

    def create(self) -> None:
        self.database.call(self.key, "create")

    def take_over(self, written: int, tuning: str | None) -> None:
        """Do nothing: all that is written is found."""

    def needs_tuning(self, num_vectors: int) -> bool:
        return False

    def tune(self, sample: Rows) -> str:
        raise AssertionError("exact searches are not tuned")

    def upsert(self, rows: Rows, vectors: Embeddings) -> int:
        return int(self.database.call(self.key, "upsert", rows, vectors))

    def delete(self, rows: Rows) -> int:
        return int(self.database.call(self.key, "delete", rows))

    def search(self, queries: Embeddings, k: int, *, among: Rows | None = None) -> Found:
        found: Found = self.database.call(self.key, "searched", queries, k, among)
        return found

    def rows(self, first: int, last: int) -> Rows:
        found: Rows = self.database.call(self.key, "rows", first, last)
        return found

    def vectors(self, rows: Rows) -> tuple[Embeddings, np.ndarray[Any, np.dtype[np.bool_]]]:
        found: tuple[Embeddings, np.ndarray[Any, np.dtype[np.bool_]]] = self.database.call(self.key, "vectors", rows)
        return found

    def drop(self) -> None:
        self.database.call(self.key, "drop")


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
