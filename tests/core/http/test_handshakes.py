"""Clients of a listener that is about to close."""

import asyncio
import socket
import sys

import pytest

from services.core.http.handshakes import begin_no_more

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system knows no filter of packets")


async def test_a_connection_that_waits_to_be_accepted_is_kept_and_one_that_comes_later_is_refused() -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        begin_no_more(listener)
        late = asyncio.create_task(asyncio.open_connection(*listener.getsockname()))
        await asyncio.sleep(0.1)  # on its own machine a handshake takes less than a thousandth of it
        accepted, _ = await loop.sock_accept(listener)
        with pytest.raises(BlockingIOError):
            listener.accept()
    with accepted:
        writer.write(b"anybody there?")
        assert await loop.sock_recv(accepted, 100) == b"anybody there?"
        await loop.sock_sendall(accepted, b"yes")
    assert await reader.read() == b"yes"
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await late
