"""A service that does nothing, to measure proxies in front of it: `python -m benchmarks.raw_service PORT`."""

import asyncio
import sys

import uvicorn
from starlette.types import Receive, Scope, Send

ANSWER = b'{"data": "' + b"x" * 2000 + b'"}'
NUM_EVENTS = 20


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer 2 KB of JSON at `/embed`, a stream of 20 events at `/generate`; in plain ASGI, to cost next to nothing."""
    if scope["type"] != "http":
        raise NotImplementedError
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/generate":
        await _send_events(send)
        return
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ANSWER})


async def _send_events(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    for number in range(NUM_EVENTS):
        event = b'data: {"delta": "token %d"}\n\n' % number
        await send({"type": "http.response.body", "body": event, "more_body": True})
        # Without an iteration of the loop in between the events would be sent in one packet.
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), access_log=False, log_level="error")
