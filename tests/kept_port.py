"""A port that no other process gets, however many look for one."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """Reserve a port on which nothing listens and which the system does not assign; a server that asks for it by
    number can listen on it if it reuses addresses, as most do."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
