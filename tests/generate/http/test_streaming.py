import asyncio
from collections.abc import AsyncGenerator

import pytest
from pydantic import BaseModel
from starlette.types import Message, Receive, Scope, Send

from services.core.errors import InternalError
from services.generate.http.streaming import DONE, EventStream, event

SCOPE: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}


class Source:
    """Yields what it is given to; remembers whether it was closed. Waits for ever at the end if it `hangs`."""

    def __init__(self, *pieces: bytes, error: Exception | None = None, hangs: bool = False) -> None:
        self.pieces = pieces
        self.error = error
        self.hangs = hangs
        self.is_closed = False
        self.hung = asyncio.Event()

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for piece in self.pieces:
                yield piece
            if self.error is not None:
                raise self.error
            if self.hangs:
                self.hung.set()
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


async def receive_nothing() -> Message:
    await asyncio.Event().wait()
    raise AssertionError("nothing is ever received")


def collecting(messages: list[Message]) -> tuple[Receive, Send]:
    async def send(message: Message) -> None:
        messages.append(message)

    return receive_nothing, send


async def test_events_are_sent_one_by_one_between_head_and_end() -> None:
    source = Source(b"a", b"b", DONE)
    messages: list[Message] = []
    stream = await EventStream.begin(source.events())
    await stream(SCOPE, *collecting(messages))

    head, *body, end = messages
    assert (head["type"], head["status"]) == ("http.response.start", 200)
    headers = dict(head["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert b"content-length" not in headers
    assert [(one["body"], one["more_body"]) for one in body] == [(b"a", True), (b"b", True), (DONE, True)]
    assert (end["body"], end["more_body"]) == (b"", False)
    assert source.is_closed


async def test_what_goes_wrong_before_the_first_event_is_raised_before_anything_is_sent() -> None:
    source = Source(error=InternalError("nothing came"))

    with pytest.raises(InternalError):
        await EventStream.begin(source.events())
    assert source.is_closed


async def test_a_stream_of_no_events_is_no_stream() -> None:
    with pytest.raises(ValueError, match="at least one"):
        await EventStream.begin(Source().events())


async def test_what_goes_wrong_later_is_raised_after_what_came_and_without_an_end() -> None:
    messages: list[Message] = []
    stream = await EventStream.begin(Source(b"a", b"b", error=InternalError("the third")).events())
    with pytest.raises(InternalError):
        await stream(SCOPE, *collecting(messages))

    assert [one.get("body") for one in messages] == [None, b"a", b"b"]


async def test_a_client_that_goes_closes_the_source() -> None:
    source = Source(b"a", hangs=True)
    stream = await EventStream.begin(source.events())
    sending = asyncio.create_task(stream(SCOPE, *collecting([])))
    await source.hung.wait()
    sending.cancel()  # as the middleware does that sees the client go
    with pytest.raises(asyncio.CancelledError):
        await sending

    assert source.is_closed


async def test_a_client_that_can_not_be_written_to_closes_the_source() -> None:
    source = Source(b"a", b"b", hangs=True)
    stream = await EventStream.begin(source.events())

    async def send(message: Message) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        await stream(SCOPE, receive_nothing, send)
    assert source.is_closed


def test_an_event_is_one_line_of_json_whatever_its_text() -> None:
    class Delta(BaseModel):
        delta: str
        extra: int | None = None

    text = 'two\nlines\r\n\n"quoted" \u2028 caf\u00e9 \U0001f600'
    for payload in (Delta(delta=text), {"delta": text, "extra": None}):
        sent = event(payload)
        assert sent.startswith(b"data: {")
        assert sent.endswith(b"}\n\n")
        assert sent.count(b"\n") == 2
        assert Delta.model_validate_json(sent.removeprefix(b"data: ")) == Delta(delta=text)
    assert event(Delta(delta="a"), exclude_none=True) == b'data: {"delta":"a"}\n\n'
