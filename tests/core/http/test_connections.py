"""Limits on a process's connections, in all and for one client, and its reports when it runs out of descriptors."""

import asyncio
import resource
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest

from services.core.exchange import client_network
from services.core.http.protocol import most_connections
from tests.core.served_process import ServedProcess, until

Serve = Callable[..., ServedProcess]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[..., Awaitable[Connection]]

# What is open stays open; nothing can be added.
FEWER_THAN_OPEN = 3
PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
SLOW = b"GET /slow?seconds=3600 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens connections to a process, from an address of this machine; all are closed in the end."""
    writers: list[asyncio.StreamWriter] = []

    async def open_one(served: ServedProcess, request: bytes = b"", source: str = "127.0.0.1") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port, local_addr=(source, 0))
        writers.append(writer)
        writer.write(request)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def ping(connection: Connection) -> bytes:
    """The answer's head and body; empty where the connection was closed."""
    reader, writer = connection
    writer.write(PING)
    try:
        return await reader.readuntil(b"true}")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""


async def until_begun(connection: Connection, number: int) -> None:
    """Wait until this number of slow requests is in progress, asked over a connection that is open already."""
    reader, writer = connection
    while True:
        writer.write(b"GET /counts HTTP/1.1\r\nHost: localhost\r\n\r\n")
        if b'" started":%d' % number in await reader.readuntil(b"}"):
            return


def warnings(served: ServedProcess, message: str) -> list[dict[str, object]]:
    return [line for line in served.log() if line["message"] == message]


@pytest.mark.slow
async def test_at_the_bound_the_connection_that_is_idle_for_longest_makes_room(serve: Serve, connect: Connect) -> None:
    served = serve(max_connections=3)
    await served.started()
    first, second, third = [await connect(served) for _ in range(3)]
    for connection in (first, second, third, first):
        assert await ping(connection)
    assert await ping(await connect(served))
    assert await second[0].read() == b""
    assert await ping(first)
    assert await ping(third)
    assert not warnings(served, "connections_refused")


@pytest.mark.slow
async def test_where_no_connection_is_idle_a_new_one_is_told_so_and_the_log_once(
    serve: Serve, connect: Connect
) -> None:
    served = serve(max_connections=3)
    await served.started()
    asking = await connect(served)
    for _ in range(2):
        await connect(served, SLOW)
    await until_begun(asking, 2)
    await connect(served, SLOW)  # takes the place of the one that asked
    for _ in range(3):
        reader, _ = await connect(served)
        refusal = await reader.read()
        assert refusal.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: " in refusal
        assert b"too_many_connections" in refusal
    assert len(warnings(served, "connections_refused")) == 1


@pytest.mark.slow
async def test_one_client_takes_its_share_and_leaves_the_rest_to_others(serve: Serve, connect: Connect) -> None:
    served = serve(max_connections=6, client_share=0.5)
    await served.started()
    asking = await connect(served, source="127.0.0.2")
    for _ in range(3):
        await connect(served, SLOW)
    await until_begun(asking, 3)
    reader, _ = await connect(served)
    assert b"too_many_connections" in await reader.read()
    assert await ping(await connect(served, source="127.0.0.2"))
    assert await ping(asking)


def test_an_ipv6_client_is_counted_by_its_network() -> None:
    assert client_network("2001:db8:1:2::1") == client_network("2001:db8:1:2:ffff::9") == "2001:db8:1:2::/64"
    assert client_network("::ffff:10.0.0.7") == client_network("10.0.0.7") == "10.0.0.7"


def test_connections_leave_descriptors_for_what_their_requests_need() -> None:
    assert most_connections(8192, 2**20) == 8192
    assert most_connections(8192, 1024) == 448
    assert most_connections(8192, 64) == 1


@pytest.mark.slow
async def test_the_limit_of_open_files_is_raised_to_the_highest_allowed(serve: Serve) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, hard), hard))
    try:
        served = serve()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await served.started()
    assert resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 2**20)


@pytest.mark.slow
async def test_a_process_without_descriptors_says_so_once_and_serves_on_when_it_has_some(
    serve: Serve, connect: Connect
) -> None:
    served = serve()
    await served.started()
    connection = await connect(served)
    assert await ping(connection)
    limits = resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, (FEWER_THAN_OPEN, limits[1]))
    await until(lambda: bool(warnings(served, "file_descriptors_exhausted")))
    assert await ping(connection)
    await asyncio.sleep(2.5)  # as many looks
    assert len(warnings(served, "file_descriptors_exhausted")) == 1
    resource.prlimit(served.process.pid, resource.RLIMIT_NOFILE, limits)
    assert await ping(await connect(served))
