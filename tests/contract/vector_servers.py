"""The vector database of processes that share collections: a server of the tests, or Milvus.

The tests' own starts at once and loses everything when it is killed. `FOVEA_TEST_VECTORS=milvus` selects Milvus, which
takes seconds for each new collection.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tests.core.milvus_server import milvus_server
from tests.embed.collections.vector_server import VectorServer
from tests.kept_port import kept_port

IN_MILVUS = os.environ.get("FOVEA_TEST_VECTORS") == "milvus"
# The program of the embed service that uses it.
EMBED = "services.embed" if IN_MILVUS else "tests.contract.embed_with_vector_server"


class Killable(Protocol):
    """A server that is there again after `start`."""

    url: str

    def start(self) -> None: ...

    def kill(self) -> None: ...


@contextmanager
def vector_database() -> Iterator[Killable]:
    """Run the server; it is killed at the end."""
    if IN_MILVUS:
        with milvus_server() as milvus:
            yield milvus
        return
    with kept_port() as port:
        server = VectorServer(port)
        server.start()
        try:
            yield server
        finally:
            server.kill()
