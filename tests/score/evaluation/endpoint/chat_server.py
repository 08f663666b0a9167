"""A small OpenAI-compatible chat endpoint over a real socket that looks at images, with the bad days of one."""

import asyncio
import base64
import io
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web
from PIL import Image

from tests.score.evaluation.stand_ins import PRIMARIES


def error(status: int, message: str, **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": "…", "param": None, "code": None}}
    return web.json_response(body, status=status, headers={name.replace("_", "-"): headers[name] for name in headers})


def color_of(body: dict[str, Any]) -> str:
    """The primary colour that the request's image has most of."""
    image, _ = body["messages"][0]["content"]
    header, content = image["image_url"]["url"].split(",")
    assert header == "data:image/png;base64"
    with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
        return PRIMARIES[int(np.asarray(picture).mean(axis=(0, 1)).argmax())]


def options_of(body: dict[str, Any]) -> dict[str, str]:
    """The captions that a request asks about, by number."""
    text = body["messages"][0]["content"][1]["text"]
    return dict(re.findall(r"^\((\d+)\) (.*)$", text, flags=re.MULTILINE))


def seeing(body: dict[str, Any]) -> str:
    """The option that names the colour of the image."""
    color = color_of(body)
    return next(f"({number})" for number, caption in options_of(body).items() if color in caption)


@dataclass
class ChatServer:
    """Answers as `says`, or with the log-probabilities of a `first_token` if a request asks for them.

    `faults` are had by one request each, first, None being a connection that breaks off. `bodies` are the requests that
    came with the right key.
    """

    says: Callable[[dict[str, Any]], str | None] = seeing
    first_token: Callable[[dict[str, Any]], dict[str, float]] | None = None
    faults: list[web.Response | None] = field(default_factory=list)
    key: str | None = None
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, f"Incorrect API key provided: {request.headers.get('Authorization')}")
        self.bodies.append(await request.json())
        if self.faults:
            fault = self.faults.pop(0)
            if fault is not None:
                return fault
            assert request.transport is not None
            request.transport.abort()
        return web.json_response({"choices": [{"index": 0, "finish_reason": "stop", **self._said(self.bodies[-1])}]})

    def _said(self, body: dict[str, Any]) -> dict[str, Any]:
        if not body.get("logprobs"):
            return {"message": {"role": "assistant", "content": self.says(body)}}
        if self.first_token is None:  # a server that ignores the field
            return {"message": {"role": "assistant", "content": "Yes"}}
        top = [{"token": token, "logprob": logprob} for token, logprob in self.first_token(body).items()]
        message = {"role": "assistant", "content": top[0]["token"]}
        return {"message": message, "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}

    @contextmanager
    def served(self) -> Iterator["ChatServer"]:
        """By a thread, for what has an event loop of its own."""
        is_ready, loop, is_done = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

        async def serve() -> None:
            app = web.Application(client_max_size=64 * 1024 * 1024)
            app.router.add_post("/v1/chat/completions", self.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            is_ready.set()
            await is_done.wait()
            await runner.cleanup()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert is_ready.wait(60)
            yield self
        finally:
            loop.call_soon_threadsafe(is_done.set)
            thread.join()
            loop.close()
