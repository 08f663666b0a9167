"""The boundaries of a request: it has one reading, whatever its form and however it is split."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from services.core.http.protocol import MAX_HEAD_BYTES, MAX_PIPELINED, MAX_UNREAD_BYTES, BoundedHeadProtocol
from tests.gateway.raw_client import RawConnection, connected
from tests.gateway.servers import gone, read_body, serving

GET = b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n"
CHUNKED = b"POST /%b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Recorder:
    """Answers with the path; `/early` before it reads, `/wait` when it is told to, `/leave` when its client is gone."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.was_left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        self.asked.set()
        if scope["path"] == "/leave":
            await gone(receive)
            self.was_left.set()
            return
        if scope["path"] == "/wait":
            await self.may_answer.wait()
        if scope["path"] != "/early":
            self.bodies.append(await read_body(receive))
        body = scope["path"].encode()
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    @property
    def paths(self) -> list[str]:
        return [scope["path"] for scope in self.scopes]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def connection(recorder: Recorder) -> AsyncIterator[RawConnection]:
    async with serving(recorder, lifespan="off", http=BoundedHeadProtocol) as url, connected(url) as connection:
        yield connection


async def bodies_until_the_end(connection: RawConnection) -> list[tuple[int, bytes]]:
    answers = []
    while (answer := await connection.answer("GET")) is not None:
        answers.append((answer.status, answer.body))
    return answers


def head_of(num_bytes: int, before: bytes = b"GET /h HTTP/1.1\r\nHost: a\r\n") -> bytes:
    """Return a head of exactly this number of bytes."""
    end = b"\r\n\r\n"
    fill = num_bytes - len(before) - len(b"X-A: ") - len(end)
    return before + b"X-A: " + b"a" * fill + end


@pytest.mark.parametrize(
    "before",
    [
        b"",
        GET % b"1",
        CHUNKED % b"1" + b"0\r\n\r\n",
        b"POST /1 HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    ],
    ids=["first", "behind a GET", "behind chunks", "behind a body"],
)
@pytest.mark.parametrize("piece_bytes", [2**20, 60_000, 1000])
async def test_a_head_may_have_exactly_the_limit_however_it_is_cut(
    connection: RawConnection, before: bytes, piece_bytes: int
) -> None:
    async def send(wire: bytes) -> None:
        for start in range(0, len(wire), piece_bytes):
            connection.write(wire[start : start + piece_bytes])
            await asyncio.sleep(0)

    await send(before + head_of(MAX_HEAD_BYTES) + before + head_of(MAX_HEAD_BYTES + 1))
    statuses = [status for status, _ in await bodies_until_the_end(connection)]
    assert statuses == [200, 200, 200, 431] if before else [200, 431]


async def test_a_head_of_400_kb_in_one_piece_is_refused(connection: RawConnection, recorder: Recorder) -> None:
    connection.write(head_of(400_000))
    assert [status for status, _ in await bodies_until_the_end(connection)] == [431]
    assert recorder.scopes == []


async def test_white_space_counts_as_part_of_a_head(connection: RawConnection) -> None:
    connection.write(b"GET /h HTTP/1.1\r\nHost: a\r\nX-A:" + b" " * MAX_HEAD_BYTES + b"a\r\n\r\n")
    assert [status for status, _ in await bodies_until_the_end(connection)] == [431]


@pytest.mark.parametrize("piece_bytes", [2**20, 1000])
async def test_trailers_have_a_limit_however_they_are_cut(connection: RawConnection, piece_bytes: int) -> None:
    wire = CHUNKED % b"t" + b"1\r\na\r\n0\r\n" + (b"X-T: " + b"a" * 1000 + b"\r\n") * 20 + b"\r\n"
    for start in range(0, len(wire), piece_bytes):
        connection.write(wire[start : start + piece_bytes])
        await asyncio.sleep(0)
    assert [status for status, _ in await bodies_until_the_end(connection)] == [413]


async def test_chunk_extensions_have_a_limit(connection: RawConnection) -> None:
    connection.write(CHUNKED % b"e")
    for _ in range(MAX_UNREAD_BYTES // 1000 + 1):
        connection.write(b"1;" + b"a" * 1000 + b"\r\na\r\n")
        await asyncio.sleep(0)
    ((status, body),) = await bodies_until_the_end(connection)
    assert status == 413
    assert str(MAX_UNREAD_BYTES) in json.loads(body)["error"]["message"]


async def test_one_chunk_extension_without_end_is_refused(connection: RawConnection) -> None:
    connection.write(CHUNKED % b"e" + b"1;")
    reading = asyncio.create_task(bodies_until_the_end(connection))
    while not reading.done():
        connection.write(b"a" * 1000)
        await asyncio.wait([reading], timeout=0.001)
    assert [status for status, _ in await reading] == [413]


async def test_many_small_chunks_are_no_extensions(connection: RawConnection, recorder: Recorder) -> None:
    num_chunks = MAX_UNREAD_BYTES
    connection.write(CHUNKED % b"c" + b"1;a\r\na\r\n" * num_chunks + b"0\r\n\r\n")
    answer = await connection.answer()
    assert answer is not None
    assert answer.status == 200
    assert recorder.bodies == [b"a" * num_chunks]


async def test_a_trailer_never_becomes_a_header(connection: RawConnection, recorder: Recorder) -> None:
    connection.write(CHUNKED % b"t" + b"1\r\na\r\n0\r\nAuthorization: Bearer forged\r\nX-T: 1\r\n\r\n" + GET % b"next")
    assert await connection.answer()
    assert await connection.answer()
    names = {name for scope in recorder.scopes for name, _ in scope["headers"]}
    assert names == {b"host", b"transfer-encoding"}
    assert recorder.bodies == [b"a", b""]


async def test_a_connection_that_is_closed_by_a_trailer_hangs_nobody(connection: RawConnection) -> None:
    connection.write(CHUNKED % b"t" + b"0\r\nConnection: close\r\n\r\n" + GET % b"hidden")
    assert await bodies_until_the_end(connection) == [(200, b"/t")]


@pytest.mark.parametrize("later", [b"", GET % b"hidden", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 100])
async def test_an_upgrade_is_answered_as_if_it_was_none_and_what_follows_is_read_by_nobody(
    connection: RawConnection, recorder: Recorder, later: bytes
) -> None:
    upgrade = b"GET /up HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    connection.write(upgrade + later)
    await asyncio.sleep(0)
    connection.write(later)
    assert await bodies_until_the_end(connection) == [(200, b"/up")]
    assert recorder.paths == ["/up"]


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT"),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/2.0"),
        (b"GET /\r\n\r\n", "HTTP/0.9"),
        (b"GET / HTTP/1.1\r\n\r\n", "Host"),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "Host"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", "Transfer-Encoding"),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "http://"),
        (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: a\r\n\r\n", "percent-encoded"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", "Content-Length"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", "Content-Length"),
        (b"GET / HTTP/1.1\nHost: a\n\n", "CRLF"),
    ],
)
async def test_what_could_be_read_in_two_ways_is_refused_by_name_and_asks_nobody(
    connection: RawConnection, recorder: Recorder, request_: bytes, reason: str
) -> None:
    connection.write(request_ + GET % b"hidden")
    ((status, body),) = await bodies_until_the_end(connection)
    assert status == 400
    assert reason in json.loads(body)["error"]["message"]
    assert recorder.scopes == []


async def test_a_refusal_waits_for_the_answers_before_it(connection: RawConnection, recorder: Recorder) -> None:
    connection.write(GET % b"wait" + GET % b"second" + b"nonsense\r\n\r\n" + GET % b"hidden")
    reading = asyncio.create_task(bodies_until_the_end(connection))
    await asyncio.sleep(0.1)
    recorder.may_answer.set()
    assert [status for status, _ in await reading] == [200, 200, 400]
    assert recorder.paths == ["/wait", "/second"]


async def test_a_body_that_breaks_its_framing_gets_one_answer(connection: RawConnection, recorder: Recorder) -> None:
    connection.write(CHUNKED % b"bad")
    await recorder.asked.wait()
    connection.write(b"zz\r\n")
    assert [status for status, _ in await bodies_until_the_end(connection)] == [400]


async def test_a_queued_request_whose_body_breaks_its_framing_is_not_asked(
    connection: RawConnection, recorder: Recorder
) -> None:
    connection.write(GET % b"wait" + CHUNKED % b"bad" + b"zz\r\n")
    reading = asyncio.create_task(bodies_until_the_end(connection))
    await asyncio.sleep(0.1)
    recorder.may_answer.set()
    assert [status for status, _ in await reading] == [200, 400]
    assert recorder.paths == ["/wait"]


async def test_the_rest_of_a_body_that_was_answered_early_is_no_request(
    connection: RawConnection, recorder: Recorder
) -> None:
    connection.write(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n" + GET % b"hidden")
    answer = await connection.answer()
    assert answer is not None
    assert answer.body == b"/early"
    assert answer.headers["connection"] == "close"
    connection.write(*[(GET % b"hidden") * 1000] * 10)  # none of which resets the connection
    assert await connection.rest() == b""
    assert recorder.paths == ["/early"]


async def test_an_early_answer_reaches_a_client_that_still_sends(connection: RawConnection) -> None:
    num_bytes = 16 * 2**20
    connection.write(b"POST /early HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % num_bytes)
    connection.write(bytes(num_bytes))
    await connection.writer.drain()
    answer = await connection.answer()
    assert answer is not None
    assert answer.body == b"/early"


async def test_a_client_that_leaves_is_noticed_also_when_it_has_sent_another_request(
    connection: RawConnection, recorder: Recorder
) -> None:
    connection.write(GET % b"leave" + GET % b"second")
    await recorder.asked.wait()
    connection.writer.transport.abort()
    await recorder.was_left.wait()


async def test_a_connection_that_is_sent_too_many_requests_at_once_is_closed_after_those_it_took(
    connection: RawConnection, recorder: Recorder
) -> None:
    connection.write(GET % b"wait" + (GET % b"more") * (3 * MAX_PIPELINED))
    await recorder.asked.wait()
    recorder.may_answer.set()
    answers = await bodies_until_the_end(connection)
    assert answers == [(200, b"/wait")] + [(200, b"/more")] * MAX_PIPELINED
    assert len(recorder.scopes) == len(answers)


async def test_a_url_that_names_its_host_is_read_as_its_path_and_that_host(
    connection: RawConnection, recorder: Recorder
) -> None:
    connection.write(b"GET http://b.example:81/p?q=1 HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await connection.answer()
    connection.write(b"GET http://b.example HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await connection.answer()
    assert [(scope["raw_path"], scope["query_string"]) for scope in recorder.scopes] == [(b"/p", b"q=1"), (b"/", b"")]
    assert [dict(scope["headers"])[b"host"] for scope in recorder.scopes] == [b"b.example:81", b"b.example"]


async def test_a_stream_for_http_1_0_is_not_chunked_and_ends_with_the_connection() -> None:
    first_arrived = asyncio.Event()

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await first_arrived.wait()
        await send({"type": "http.response.body", "body": b"data: 22\n\n", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with (
        serving(stream, lifespan="off", http=BoundedHeadProtocol) as url,
        connected(url) as connection,
    ):
        connection.write(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        head = (await connection.reader.readuntil(b"\r\n\r\n")).lower()
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        assert await connection.reader.readexactly(9) == b"data: 1\n\n"
        first_arrived.set()
        assert await connection.rest() == b"data: 22\n\n"


async def test_an_answer_of_known_length_has_it_for_http_1_0_too(connection: RawConnection) -> None:
    connection.write(b"GET /1 HTTP/1.0\r\n\r\n")
    answer = await connection.answer()
    assert answer is not None
    assert (answer.body, answer.headers["content-length"]) == (b"/1", "2")
    assert await connection.rest() == b""


@pytest.mark.parametrize(
    "request_",
    [
        b"POST / HTTP/1.0\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\na",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nExpect: 100-continue\r\n\r\n",
    ],
    ids=["HTTP/1.0", "no body"],
)
async def test_nobody_is_told_to_continue_who_does_not_wait_for_it(connection: RawConnection, request_: bytes) -> None:
    connection.write(request_)
    assert (await connection.rest()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_broken_chunk_of_a_client_that_waits_to_continue_is_its_fault_alone(
    connection: RawConnection, recorder: Recorder
) -> None:
    head = (CHUNKED % b"leave").replace(b"Host: a", b"Host: a\r\nExpect: 100-continue")
    connection.write(head + b"ZZ\r\n")
    answer = await connection.answer()
    assert answer is not None
    assert answer.status == 400
    async with asyncio.timeout(60):
        await recorder.was_left.wait()  # the application reads on without an error
