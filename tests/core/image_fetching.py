"""A fetcher between two servers: one that it takes for the internet, and one that it must never reach."""

import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from services.core.errors import FoveaError
from services.core.images.fetch import Address, FetchLimits, ImageFetcher
from tests.core.hostile_server import HostileServer, NameServer, hostile_server, response

# Both are this machine; the guard is told that the first belongs to the internet.
PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.1"
IMAGE = b"\xff\xd8\xff image"


def is_allowed(address: Address) -> bool:
    return str(address) == PUBLIC


def port_free_on_both_addresses() -> int:
    """Below the ports that the system gives to outgoing connections, one of which may hold it on the other address."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket() as public, socket.socket() as private, suppress(OSError):
            public.bind((PUBLIC, port))
            private.bind((PRIVATE, port))
            return port


@asynccontextmanager
async def public_server() -> AsyncIterator[HostileServer]:
    async with hostile_server(PUBLIC, port_free_on_both_addresses()) as server:
        server.answers["/image"] = response(IMAGE)
        yield server


@asynccontextmanager
async def private_server(port: int) -> AsyncIterator[HostileServer]:
    """Run a server that must never be reached, on the same port of the private address."""
    async with hostile_server(PRIVATE, port) as secret:
        secret.answers["/image"] = response(b"secret")
        yield secret
        assert secret.num_connections == 0


def names() -> NameServer:
    return NameServer(images_example=[[PUBLIC]], private_example=[[PRIVATE]])


@asynccontextmanager
async def fetching(
    server: HostileServer,
    resolve: NameServer | None = None,
    *,
    max_image_bytes: int = 10_000,
    timeout_s: float = 30,
    allowed_hosts: frozenset[str] = frozenset(),
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncIterator[ImageFetcher]:
    limits = FetchLimits(
        max_image_bytes=max_image_bytes,
        timeout_s=timeout_s,
        stall_timeout_s=timeout_s,
        allowed_ports=frozenset({server.port}),
        allowed_hosts=allowed_hosts,
    )
    fetcher = ImageFetcher(limits, resolve=resolve or names(), is_allowed=is_allowed, ssl_context=ssl_context)
    yield fetcher
    await fetcher.close()


async def failure(fetcher: ImageFetcher, url: str) -> FoveaError:
    """The refusal of a URL, which tells nothing about the inside."""
    with pytest.raises(FoveaError) as refusal:
        await fetcher.fetch(url, param="images.0")
    error = refusal.value
    assert error.param == "images.0"
    for word in (PUBLIC, PRIVATE, "10.0.0.53", "secret", "Errno"):
        assert word not in error.message
    return error


def address_of(server: HostileServer, path: str = "/image") -> str:
    return f"http://images.example:{server.port}{path}"
