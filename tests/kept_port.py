"""A port that is nobody else's, however many processes look for one."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kept_port() -> Iterator[int]:
    """Nobody listens on it, and the system gives it to no one; a server that asks for it by number may listen on it,
    if it may reuse addresses as most do."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
