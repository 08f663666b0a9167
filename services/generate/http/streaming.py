"""Server-sent events: each is sent as soon as it exists, and their generator is always closed.

Starlette's own streaming response uses a separate task to wait for a disconnect of the client, which the core's
middleware already does.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Union

import orjson
from pydantic import BaseModel, TypeAdapter
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.core.http.bodies import inlined
from services.core.http.error_responses import ErrorEnvelope
from services.core.printable import json_line

# The end of a stream, for OpenAI's and compatible clients.
DONE = b"data: [DONE]\n\n"

# Without these headers, proxies that buffer a response would turn a stream into one late answer.
HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(payload: BaseModel | dict[str, Any], *, exclude_none: bool = False) -> bytes:
    """Render one event whose data is this object as JSON."""
    content = payload.model_dump(exclude_none=exclude_none) if isinstance(payload, BaseModel) else payload
    return b"data: " + json_line(orjson.dumps(content)) + b"\n"


def event_stream_content(
    *payloads: type[BaseModel], error: type[BaseModel] = ErrorEnvelope, has_done: bool = True
) -> dict[str, Any]:
    """OpenAPI `content` of a stream whose events contain one of these, or the error that ends it; `has_done` if the
    last event is `[DONE]`.

    As in OpenAPI 3.2 and FastAPI's own streams, `itemSchema` is that of one event. The schemas of the payloads are
    inlined, so that the content can be used in any document.
    """
    held: Any = Union[(*payloads, error)]
    schema = inlined(TypeAdapter(held).json_schema(mode="serialization", ref_template="{model}"))
    payload = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    data = {"anyOf": [{"type": "string", "const": "[DONE]"}, payload]} if has_done else payload
    return {"text/event-stream": {"itemSchema": {"type": "object", "properties": {"data": data}, "required": ["data"]}}}


class EventStream(Response):
    """Sends each item of `events` as one piece of the body.

    The error middleware turns an exception of `events` into the stream's last event. Create a stream with `begin`, so
    that errors before the first event get their own status.
    """

    media_type = "text/event-stream"

    def __init__(self, first: bytes, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers=HEADERS)
        # Starlette has set a length for the empty body.
        self.raw_headers = [header for header in self.raw_headers if header[0] != b"content-length"]
        self._first = first
        self._events = events

    @classmethod
    async def begin(cls, events: AsyncGenerator[bytes, None]) -> "EventStream":
        """Wait for the first event; raises what `events` raises before it.

        Everything in the response's head must be known by then. Raises ValueError for a stream without events.
        """
        first = await anext(events, None)
        if first is None:
            raise ValueError("a stream has at least one event")
        return cls(first, events)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": self._first, "more_body": True})
            async for piece in events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
