"""A small endpoint with OpenAI's two routes, over a real socket, and with the bad days of one."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web

from tests.web_server import serving

PROMPT_TOKENS, COMPLETION_TOKENS = 1000, 20
OUTPUT = "The one says as much as the other.\nAnswer: entailment"


def error(status: int, message: str, code: str | None = None, **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": "…", "param": None, "code": code}}
    return web.json_response(body, status=status, headers={name.replace("_", "-"): headers[name] for name in headers})


async def until(holds: Callable[[], object]) -> None:
    """Poll until it holds, since nothing announces it."""
    while True:
        if holds():
            return
        await asyncio.sleep(0.001)


class Dropped(Exception):
    """The connection ends without an answer."""


class Halved(Exception):
    """It ends in the middle of one."""


Fault = web.Response | type[Dropped] | type[Halved]


@dataclass
class TeacherServer:
    """Answers OUTPUT to everything, or what `outputs` holds for words of the input.

    `faults` are had by one request each, `refused` by every request whose input holds the word. `asked` counts the
    inputs, whose requests are kept in `bodies`. Each answer takes `delay_s`; none comes while `may_answer` is not set,
    or before `first_together` requests were there at once.
    """

    outputs: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    key: str | None = None
    counts_tokens: bool = True
    delay_s: float = 0.0
    first_together: int = 1
    url: str = ""
    asked: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    was_asked: threading.Event = field(default_factory=threading.Event)
    may_answer: threading.Event = field(default_factory=threading.Event)
    most_at_once: int = 0
    _at_once: int = 0

    def __post_init__(self) -> None:
        self.may_answer.set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, f"Incorrect API key provided: {request.headers.get('Authorization')}")
        body = await request.json()
        is_chat = request.path.endswith("/chat/completions")
        prompt = body["messages"][-1]["content"] if is_chat else body["prompt"]
        asked = prompt.split("\n\n")[-1]
        self.asked[asked] += 1
        self.was_asked.set()
        self.bodies.append(body)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self.delay_s)  # others may come meanwhile
            await until(lambda: self.may_answer.is_set() and self.most_at_once >= self.first_together)
        finally:
            self._at_once -= 1
        fault = next((error(*told) for word, told in self.refused.items() if word in asked), None)
        if fault is None and self.faults:
            given = self.faults.pop(0)
            if not isinstance(given, web.Response):
                return await self._break_off(request, given)
            fault = given
        return fault or web.json_response(self._answer(body["model"], asked, is_chat))

    def _answer(self, model: str, asked: str, is_chat: bool) -> dict[str, Any]:
        output = next((text for word, text in self.outputs.items() if word in asked), OUTPUT)
        choice = {"message": {"role": "assistant", "content": output}} if is_chat else {"text": f" {output}"}
        usage = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COMPLETION_TOKENS}
        answer = {"model": f"{model}@1", "choices": [{"index": 0, "finish_reason": "stop", **choice}]}
        return {**answer, "usage": usage} if self.counts_tokens else answer

    async def _break_off(self, request: web.Request, fault: type[Exception]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        if fault is Halved:
            await response.prepare(request)
            await response.write(b'{"choices": [{"mess')
        assert request.transport is not None
        request.transport.abort()
        return response

    @asynccontextmanager
    async def served(self) -> AsyncIterator[Self]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/v1/chat/completions", self.answer)
        app.router.add_post("/v1/completions", self.answer)
        async with serving(app, handler_cancellation=True) as url:
            self.url = f"{url}/v1"
            yield self

    @contextmanager
    def beside(self) -> Iterator[Self]:
        """Served by a thread, for commands that have an event loop of their own."""
        is_ready, loop = threading.Event(), asyncio.new_event_loop()
        is_done = asyncio.Event()

        async def serve() -> None:
            async with self.served():
                is_ready.set()
                await is_done.wait()

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        try:
            assert is_ready.wait(60)
            yield self
        finally:
            loop.call_soon_threadsafe(is_done.set)
            thread.join()
            loop.close()
