"""Bodies compressed with gzip: read as if they were plain, under the limit of plain ones."""

import gzip
import tracemalloc
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from services.core.admission.bodies import PIECE_BYTES, BodyLimit
from services.core.errors import TooLarge
from services.core.metrics import Metrics
from services.core.settings import ProcessSettings
from tests.core.served_app import create
from tests.gateway.servers import Service, echo, gateway, serving

GZIP = {"content-encoding": "gzip"}
MEBIBYTE = 2**20


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = create(ProcessSettings(port=0, max_body_bytes=MEBIBYTE))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize("num_bytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, MEBIBYTE])
@pytest.mark.parametrize("name", ["gzip", "GZIP", "x-gzip"])
def test_a_compressed_body_is_read_as_if_it_were_plain(client: TestClient, num_bytes: int, name: str) -> None:
    body = gzip.compress(bytes(index % 251 for index in range(num_bytes)))
    assert client.post("/bytes", content=body, headers={"content-encoding": name}).json() == {"size": num_bytes}


def test_a_body_that_decompresses_beyond_the_limit_is_refused(client: TestClient) -> None:
    response = client.post("/bytes", content=gzip.compress(bytes(MEBIBYTE + 1)), headers=GZIP)
    assert response.status_code == 413
    error = response.json()["error"]
    assert error["code"] == "body_too_large"
    assert (
        f"decompresses to at least {MEBIBYTE + 1} bytes; the limit is {MEBIBYTE} (FOVEA_MAX_BODY_BYTES)"
        in error["message"]
    )


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"x", "not valid gzip"),
        (gzip.compress(b"hello", mtime=0)[:-1], "truncated"),
        (gzip.compress(b"hello", mtime=0) + b"x", "something follows"),
        (gzip.compress(b"hello", mtime=0) + gzip.compress(b"hello", mtime=0), "something follows"),
    ],
)
def test_what_is_no_gzip_is_refused_saying_why(client: TestClient, body: bytes, reason: str) -> None:
    response = client.post("/bytes", content=body, headers=GZIP)
    assert response.status_code == 400
    assert reason in response.json()["error"]["message"]


def test_an_encoding_without_a_body_is_no_fault(client: TestClient) -> None:
    assert client.get("/readyz", headers=GZIP).status_code == 200


async def test_a_bomb_is_never_held_decompressed() -> None:
    """A body that would grow a thousandfold is decompressed in pieces, and no further than the limit."""
    bomb = gzip.compress(bytes(256 * MEBIBYTE), compresslevel=1)
    sizes: list[int] = []

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            sizes.append(len((await receive())["body"]))

    async def receive() -> Message:
        return {"type": "http.request", "body": bomb, "more_body": False}

    async def send(message: Message) -> None: ...

    scope: Scope = {"type": "http", "headers": [(b"content-encoding", b"gzip"), (b"content-length", b"1")]}
    settings = ProcessSettings(port=0, max_body_bytes=8 * MEBIBYTE)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            await BodyLimit(read, settings, Metrics("test"))(scope, receive, send)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(sizes) <= PIECE_BYTES
    assert sum(sizes) <= 8 * MEBIBYTE
    assert peak_bytes < 4 * len(bomb)


async def test_the_gateway_sends_a_compressed_body_on_plain() -> None:
    service = Service(echo)
    body = gzip.compress(b"hello" * 100_000, mtime=0)
    async with serving(service) as url, gateway(embed_urls=url) as client:
        async with client.post("/embed", data=body, headers={"Content-Encoding": "gzip"}) as response:
            assert await response.read() == b"hello" * 100_000
        assert service.header("content-encoding") is None
        assert service.header("content-length") == "500000"
