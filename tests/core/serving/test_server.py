"""The start and the end of a process, with real signals and sockets."""

import asyncio
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from tests.core.served_process import POLL_S, ServedProcess, until

Serve = Callable[..., ServedProcess]

# A grace for clients in a test's process, which may itself be kept waiting for its CPU.
BUSY_S = 60
DRAIN_DELAY_S = 5


async def status_of(url: str) -> int | None:
    """By a connection of its own; None where none is accepted any more."""
    connector = aiohttp.TCPConnector(force_close=True)
    try:
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as response:
            return response.status
    except aiohttp.ClientConnectorError:
        return None


async def until_unready(served: ServedProcess) -> None:
    while await status_of(f"{served.url}/readyz") == 200:  # noqa: ASYNC110 it happens in another process
        await asyncio.sleep(POLL_S)


async def ask_slowly(served: ServedProcess, seconds: float) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"{served.url}/slow?seconds={seconds}") as response:
        return response.status, await response.text()


async def keep_asking(served: ServedProcess) -> tuple[int, bool]:
    """One client, one kept-alive connection, until the server asks to close it: requests answered, and all well."""
    answered = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session:
        while True:
            async with session.post(f"{served.url}/slow?seconds=0.02", data=b"body") as response:
                await response.read()
                answered += 1
                if response.status != 200:
                    return answered, False
                if response.headers.get("connection") == "close":
                    return answered, True


async def test_a_termination_under_load_loses_no_request(serve: Serve) -> None:
    served = serve(idle_grace_s=BUSY_S)
    await served.started()
    clients = [asyncio.create_task(keep_asking(served)) for _ in range(20)]
    await served.until_count(" finished", 60)
    served.terminate()
    outcomes = await asyncio.gather(*clients)
    assert all(is_well for _, is_well in outcomes)
    assert await served.exit_status() == 0
    logged = [line for line in served.log() if line.get("path") == "/slow"]
    assert len(logged) == sum(answered for answered, _ in outcomes)


async def test_clients_that_connect_anew_are_answered_or_refused_but_not_cut_off(serve: Serve) -> None:
    served = serve(idle_grace_s=BUSY_S)
    await served.started()
    ends = Counter[str]()

    async def connect_again_and_again() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
            while True:
                try:
                    async with session.post(f"{served.url}/bytes", data=b"body") as response:
                        await response.read()
                except aiohttp.ClientConnectorError:
                    ends["refused"] += 1
                    return
                except aiohttp.ClientError:
                    ends["cut off"] += 1
                    return

    clients = [asyncio.create_task(connect_again_and_again()) for _ in range(50)]
    await asyncio.sleep(1)  # well into their stride
    served.terminate()
    await asyncio.gather(*clients)
    assert await served.exit_status() == 0
    assert ends["refused"] + ends["cut off"] == len(clients)
    # Handshakes that meet in the last place of the listener's queue may be cut off.
    assert ends["cut off"] <= 2


async def test_a_request_on_an_idle_connection_is_answered_although_the_drain_has_begun(serve: Serve) -> None:
    served = serve(idle_grace_s=BUSY_S)
    await served.started()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"true}")
    served.terminate()
    await until(lambda: '"draining"' in served.text())
    writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
    response = await reader.read()
    assert response.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in response.lower()
    writer.close()
    assert await served.exit_status() == 0


async def test_a_connection_that_waits_while_a_draining_process_is_starved_is_answered(serve: Serve) -> None:
    served = serve(drain_delay_s=DRAIN_DELAY_S)
    await served.started()
    served.terminate()
    await until(lambda: '"draining"' in served.text())
    served.process.send_signal(signal.SIGSTOP)
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await asyncio.sleep(DRAIN_DELAY_S)  # it is over when the process goes on
    served.process.send_signal(signal.SIGCONT)
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
    writer.close()
    assert await served.exit_status() == 0


async def test_while_it_waits_to_be_taken_out_of_rotation_it_is_unready_but_serves_new_connections(
    serve: Serve,
) -> None:
    served = serve(drain_delay_s=DRAIN_DELAY_S)
    await served.started()
    assert await status_of(f"{served.url}/readyz") == 200
    served.terminate()
    await until(lambda: '"draining"' in served.text())
    assert await status_of(f"{served.url}/readyz") == 503
    assert await status_of(f"{served.url}/ping") == 200
    assert await served.exit_status() == 0


async def test_a_request_in_flight_is_finished(serve: Serve) -> None:
    served = serve()
    await served.started()
    request = asyncio.create_task(ask_slowly(served, 1.5))
    await served.until_count(" started")
    served.terminate()
    assert (await request)[0] == 200
    assert await served.exit_status() == 0


async def test_a_request_longer_than_the_drain_is_told_so(serve: Serve) -> None:
    served = serve(drain_timeout_s=1)
    await served.started()
    request = asyncio.create_task(ask_slowly(served, 3600))
    await served.until_count(" started")
    served.terminate()
    status, body = await request
    assert status == 503
    assert "overloaded_error" in body
    assert await served.exit_status() == 0


async def test_a_second_signal_ends_it_at_once(serve: Serve) -> None:
    served = serve(drain_timeout_s=3600)
    await served.started()
    request = asyncio.create_task(ask_slowly(served, 3600))
    await served.until_count(" started")
    served.terminate()
    await until_unready(served)
    served.terminate()
    assert await served.exit_status() == 128 + signal.SIGTERM
    with pytest.raises(aiohttp.ClientError):
        await request


async def test_a_process_whose_compute_thread_hangs_ends_with_a_failure_that_names_it(serve: Serve) -> None:
    served = serve(is_stuck=True, drain_timeout_s=1, exit_grace_s=1)
    await served.started()
    served.terminate()
    assert await served.exit_status() == 1
    [line] = [line for line in served.log() if line["message"] == "ended by force"]
    assert "stuck" in line["threads"]


async def test_a_process_whose_new_version_hangs_ends_well(serve: Serve) -> None:
    served = serve(warm_up="hangs", exit_grace_s=BUSY_S)
    await served.started()
    served.terminate()
    assert await served.exit_status() == 0
    assert served.log()[-1]["message"] == "stopped"


async def test_a_process_that_cannot_warm_up_ends_with_a_failure(serve: Serve) -> None:
    served = serve(warm_up="fails")
    assert await served.exit_status() == 1
    assert "no checkpoint" in served.text()


async def test_a_taken_port_is_told_with_the_setting_that_chooses_another(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        served = serve(port=port)
        assert await served.exit_status() == 1
    assert f"127.0.0.1:{port}" in served.text()
    assert "FOVEA_PORT" in served.text()
    assert "Traceback" not in served.text()


async def test_a_body_announced_as_too_large_is_refused_before_any_of_it_arrives(serve: Serve) -> None:
    served = serve(max_body_bytes=2000)
    await served.started()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"POST /bytes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2001\r\n\r\n")
    assert b" 413 " in await reader.readline()
    writer.close()


async def test_a_body_of_unknown_length_is_refused_once_it_is_too_large(serve: Serve) -> None:
    served = serve(max_body_bytes=2000)
    await served.started()

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b"x" * 500
            await asyncio.sleep(0.02)  # so that they arrive apart

    async with aiohttp.ClientSession() as session, session.post(f"{served.url}/bytes", data=pieces()) as response:
        assert response.status == 413
        assert "2000" in (await response.json())["error"]["message"]
