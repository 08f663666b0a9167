import asyncio
import gzip
import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.core.errors import TooLarge
from services.core.exchange import Caller, set_caller
from services.core.images.fetch import USER_AGENT, FetchLimits, ImageFetcher
from tests.core.hostile_server import Answer, HostileServer, NameServer, hostile_server, redirect, response
from tests.core.image_fetching import (
    IMAGE,
    PRIVATE,
    PUBLIC,
    address_of,
    failure,
    fetching,
    is_allowed,
    names,
    private_server,
    public_server,
)


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    async with public_server() as server:
        yield server


@pytest.fixture
async def secret(server: HostileServer) -> AsyncIterator[HostileServer]:
    async with private_server(server.port) as secret:
        yield secret


async def test_an_image_is_fetched_by_name_and_by_address(server: HostileServer) -> None:
    async with fetching(server) as fetcher:
        assert await fetcher.fetch(address_of(server)) == IMAGE
        assert await fetcher.fetch(f"http://{PUBLIC}:{server.port}/image") == IMAGE


async def test_the_request_tells_nothing_but_what_is_asked(server: HostileServer) -> None:
    server.answers["/cookie"] = response(status="302 Found", headers=("Location: /image", "Set-Cookie: a=b"))
    async with fetching(server) as fetcher:
        await fetcher.fetch(address_of(server, "/cookie"))
        await fetcher.fetch(address_of(server))
    for head in server.requests:
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines()[1:] if line)
        assert headers.pop("User-Agent") == USER_AGENT
        assert headers == {
            "Host": f"images.example:{server.port}",
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "Connection": "close",
        }


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
async def test_redirects_are_followed(server: HostileServer, status: str) -> None:
    server.answers["/relative"] = redirect("/absolute", status)
    server.answers["/absolute"] = redirect(address_of(server), status)
    async with fetching(server) as fetcher:
        assert await fetcher.fetch(address_of(server, "/relative")) == IMAGE


async def test_redirects_are_counted(server: HostileServer) -> None:
    server.answers["/loop"] = redirect("/loop")
    for step in range(3):
        server.answers[f"/{step}"] = redirect(f"/{step + 1}")
    server.answers["/3"] = response(IMAGE)
    async with fetching(server) as fetcher:
        assert await fetcher.fetch(address_of(server, "/0")) == IMAGE
        server.requests.clear()
        assert "redirects more than 3 times" in (await failure(fetcher, address_of(server, "/loop"))).message
    assert len(server.requests) == 4


async def test_hosts_can_be_limited_to_a_list(server: HostileServer) -> None:
    resolve = NameServer(images_example=[[PUBLIC]], cdn_images_example=[[PUBLIC]], badimages_example=[[PUBLIC]])
    for allowed, hosts in (
        (frozenset({"images.example"}), {"images.example"}),
        (frozenset({".images.example"}), {"cdn.images.example"}),
        (frozenset({"images.example", ".images.example"}), {"images.example", "cdn.images.example"}),
    ):
        async with fetching(server, resolve, allowed_hosts=allowed) as fetcher:
            for host in ("images.example", "cdn.images.example", "badimages.example", PUBLIC):
                url = f"http://{host}:{server.port}/image"
                if host in hosts:
                    assert await fetcher.fetch(url) == IMAGE
                else:
                    assert (await failure(fetcher, url)).code == "image_url_not_allowed"


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(response(length=1_000))
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.05)  # slower than any single read would time out


async def hang(writer: asyncio.StreamWriter) -> None:
    await writer.drain()
    await asyncio.Event().wait()


async def hang_in_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: ima")
    await hang(writer)


async def continue_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)  # not to starve the client


@pytest.mark.parametrize("answer", [drip, hang, hang_in_headers, continue_for_ever])
async def test_a_server_that_takes_its_time_is_left_after_the_time_cap(server: HostileServer, answer: Answer) -> None:
    server.answers["/slow"] = answer
    async with fetching(server, timeout_s=0.3) as fetcher:
        error = await failure(fetcher, address_of(server, "/slow"))
    assert (error.code, error.status) == ("image_fetch_failed", 400)


async def endless(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(bytes(1_000))
        await writer.drain()


async def endless_chunks(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"3e8\r\n" + bytes(1_000) + b"\r\n")
        await writer.drain()


async def endless_headers(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-Filler: " + b"x" * 100 + b"\r\n")
        await writer.drain()


async def test_size_is_capped_while_it_streams(server: HostileServer) -> None:
    server.answers["/endless"] = endless
    server.answers["/chunks"] = endless_chunks
    server.answers["/exact"] = response(bytes(10_000))
    server.answers["/over"] = response(bytes(10_001))
    server.answers["/announced"] = response(length=10**15)
    async with fetching(server) as fetcher:
        assert len(await fetcher.fetch(address_of(server, "/exact"))) == 10_000
        for path, message in (
            ("/endless", "more than 10000 bytes"),
            ("/chunks", "more than 10000 bytes"),
            ("/over", "10001 bytes; the limit is 10000 bytes"),
            ("/announced", "1000000000000000 bytes; the limit is 10000 bytes"),
        ):
            error = await failure(fetcher, address_of(server, path))
            assert isinstance(error, TooLarge)
            assert message in error.message


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\0" * 1_000,
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\nsecret",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nsecret",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nsecret",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nsecret",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nsec",
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: \xff\xfe\r\nContent-Length: 0\r\n\r\n",
        response(b"secret", length=100),
        response(b"secret", headers=("X: " + "x" * 100_000,)),
        response(status="204 No Content"),
        response(IMAGE, status="206 Partial Content"),
        response(b"secret", status="404 Not Found"),
        response(b"secret", status="500 Internal Server Error"),
        response(gzip.compress(bytes(5_000_000)), headers=("Content-Encoding: gzip",)),
        response(IMAGE, headers=("Content-Encoding: br",)),
        endless_headers,
    ],
)
async def test_an_answer_that_is_no_image_body_is_a_bad_request(server: HostileServer, answer: bytes | Answer) -> None:
    server.answers["/bad"] = answer
    async with fetching(server) as fetcher:
        error = await failure(fetcher, address_of(server, "/bad"))
    assert (error.code, error.status) == ("image_fetch_failed", 400)


async def test_the_status_of_the_answer_is_named(server: HostileServer) -> None:
    server.answers["/gone"] = response(b"secret", status="410 Gone secret")
    async with fetching(server) as fetcher:
        assert "status 410." in (await failure(fetcher, address_of(server, "/gone"))).message


async def test_a_claimed_type_is_ignored_for_the_decoder_knows_better(server: HostileServer) -> None:
    server.answers["/text"] = response(IMAGE, headers=("Content-Type: text/html; charset=klingon",))
    async with fetching(server) as fetcher:
        assert await fetcher.fetch(address_of(server, "/text")) == IMAGE


async def test_a_proxy_in_the_environment_is_not_used(
    server: HostileServer, secret: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{PRIVATE}:{server.port}")
    async with fetching(server) as fetcher:
        assert await fetcher.fetch(address_of(server)) == IMAGE


async def test_a_cancelled_fetch_frees_its_place(server: HostileServer) -> None:
    arrived = asyncio.Event()

    async def arrive_and_hang(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await hang(writer)

    server.answers["/hang"] = arrive_and_hang
    limits = FetchLimits(allowed_ports=frozenset({server.port}), max_fetches=1)
    fetcher = ImageFetcher(limits, resolve=names(), is_allowed=is_allowed)
    hanging = asyncio.create_task(fetcher.fetch(address_of(server, "/hang")))
    await arrived.wait()
    waiting = asyncio.create_task(fetcher.fetch(address_of(server)))
    hanging.cancel()
    assert await waiting == IMAGE
    await fetcher.close()


async def hanging_fetches(
    fetcher: ImageFetcher, urls: list[str], caller: Callable[[], Caller]
) -> list[asyncio.Task[bytes]]:
    async def fetch(url: str, caller: Caller) -> bytes:
        set_caller(caller)
        return await fetcher.fetch(url)

    tasks = [asyncio.create_task(fetch(url, caller())) for url in urls]
    await asyncio.sleep(0)
    return tasks


async def give_up(tasks: list[asyncio.Task[bytes]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


ONE_REQUEST = Caller("alice")


@pytest.mark.parametrize(
    ("num_hosts", "caller"),
    [
        pytest.param(1, lambda: Caller("alice"), id="one host, many requests"),
        pytest.param(40, lambda: ONE_REQUEST, id="many hosts, one request"),
        pytest.param(40, lambda: Caller("bob"), id="many hosts, another client"),
    ],
)
async def test_a_good_url_passes_forty_slow_ones(
    server: HostileServer, num_hosts: int, caller: Callable[[], Caller]
) -> None:
    server.answers["/slow"] = hang
    hosts = [f"slow{number}.example" for number in range(num_hosts)]
    resolve = NameServer(images_example=[[PUBLIC]], **{host.replace(".", "_"): [[PUBLIC]] for host in hosts})
    async with fetching(server, resolve) as fetcher:
        urls = [f"http://{hosts[number % num_hosts]}:{server.port}/slow" for number in range(40)]
        slow = await hanging_fetches(fetcher, urls, caller)
        async with asyncio.timeout(20):  # the slow ones hang for 30 s
            set_caller(Caller("alice"))
            assert await fetcher.fetch(address_of(server)) == IMAGE
        assert not any(task.done() for task in slow)
        await give_up(slow)


async def test_a_fetch_that_is_cancelled_while_it_waits_leaves_its_place(server: HostileServer) -> None:
    server.answers["/slow"] = hang
    limits = FetchLimits(allowed_ports=frozenset({server.port}), max_fetches_from_host=1)
    fetcher = ImageFetcher(limits, resolve=names(), is_allowed=is_allowed)
    running, waiting, last = await hanging_fetches(
        fetcher, [*[address_of(server, "/slow")] * 2, address_of(server)], lambda: ONE_REQUEST
    )
    await give_up([waiting])
    await give_up([running])
    assert await last == IMAGE
    await fetcher.close()


async def test_a_server_that_stalls_is_left_long_before_the_time_cap(server: HostileServer) -> None:
    server.answers["/slow"] = hang_in_headers
    limits = FetchLimits(allowed_ports=frozenset({server.port}), timeout_s=600, stall_timeout_s=0.2)
    fetcher = ImageFetcher(limits, resolve=names(), is_allowed=is_allowed)
    async with asyncio.timeout(60):
        error = await failure(fetcher, address_of(server, "/slow"))
    assert (error.code, error.status) == ("image_fetch_failed", 400)
    await fetcher.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_tls_verifies_the_name_in_the_url_although_an_address_is_dialled(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    process = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
        *("-subj", "/CN=images.example", "-addext", "subjectAltName=DNS:images.example"),
        *("-keyout", str(key), "-out", str(certificate)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await process.wait() == 0
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)
    trusting = ssl.create_default_context(cafile=str(certificate))
    resolve = NameServer(images_example=[[PUBLIC]], other_example=[[PUBLIC]])
    async with hostile_server(PUBLIC, tls=serving) as server:
        server.answers["/image"] = response(IMAGE)
        async with fetching(server, resolve, ssl_context=trusting) as fetcher:
            assert await fetcher.fetch(f"https://images.example:{server.port}/image") == IMAGE
            for host in ("other.example", PUBLIC):
                await failure(fetcher, f"https://{host}:{server.port}/image")
        async with fetching(server, resolve) as distrusting:
            await failure(distrusting, f"https://images.example:{server.port}/image")
    assert len(server.requests) == 1
