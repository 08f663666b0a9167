"""A scripted server with the routes of vLLM and of Fovea's plug-in, which generates the same token again and again."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from aiohttp import web

from tests.generate.tiny_models import VOCAB_SIZE
from tests.web_server import serving

NAME, KEY = "tiny", "a-key"
TOKEN = 70
NUM_LAYERS, NUM_HEADS = 4, 4


@dataclass(eq=False)
class ScriptedServer:
    """`requests` are the completions that came; `breaks_after` tokens a stream's connection is cut, and `ends_after`
    tokens it ends; `is_held` streams wait before each token but the first until `release`, all completions before their
    first if it `is_compiling`, and `num_left` of them were left by their client. `refusal` is a status and message for
    every completion. The log-probabilities of asked tokens are 0, -1, -2, …"""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    breaks_after: int | None = None
    ends_after: int | None = None
    refusal: tuple[int, str] | None = None
    is_healthy: bool = True
    is_held: bool = False
    is_compiling: bool = False
    release: asyncio.Event = field(default_factory=asyncio.Event)
    num_left: int = 0
    name: str = NAME
    _measured: dict[str, int] = field(default_factory=dict)

    @property
    def measured(self) -> list[dict[str, Any]]:
        """The requests that only measured."""
        return [one for one in self.requests if one["max_tokens"] == 1]

    @asynccontextmanager
    async def served(self) -> AsyncIterator["ScriptedServer"]:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/fovea/model", self._model)
        app.router.add_post("/fovea/attention", self._attention)
        app.router.add_post("/v1/completions", self._complete)
        async with serving(app, shutdown_timeout=0, handler_cancellation=True) as self.url:
            try:
                yield self
            finally:
                self.release.set()

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.is_healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": self.name}]})

    async def _model(self, request: web.Request) -> web.Response:
        shape = {"num_layers": NUM_LAYERS, "num_heads": NUM_HEADS, "vocab_size": VOCAB_SIZE, "max_model_len": 512}
        return web.json_response({**shape, "dtype": "float32", "quantization": None, "refusal": None})

    async def _attention(self, request: web.Request) -> web.Response:
        num_documents = self._measured.pop((await request.json())["key"])
        shape = (NUM_LAYERS, NUM_HEADS, num_documents)
        numbers = np.broadcast_to(0.01 * np.arange(1, num_documents + 1), shape).astype("<f4")
        return web.json_response({"attention": base64.b64encode(numbers.tobytes()).decode(), "shape": shape})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        assert request.headers["authorization"] == f"Bearer {KEY}"
        body = await request.json()
        self.requests.append(body)
        if self.refusal is not None:
            status, message = self.refusal
            return web.json_response({"error": {"message": message, "code": status}}, status=status)
        if self.is_compiling:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.num_left += 1
                raise
        fields = body.get("vllm_xargs", {})
        if "fovea_measure" in fields:
            self._measured[fields["fovea_measure"]] = len(fields["fovea_documents"]) // 2
        if not body.get("stream"):
            logprobs = None
            if wanted := body.get("logprob_token_ids"):
                top = {f"token_id:{token_id}": -float(place) for place, token_id in enumerate(wanted)}
                logprobs = {"token_logprobs": [-0.5], "top_logprobs": [top]}
            choice = {"token_ids": [TOKEN], "prompt_token_ids": body["prompt"], "logprobs": logprobs}
            return web.json_response({"choices": [choice], "usage": {}})
        return await self._stream(request, body)

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        try:
            for number in range(body["max_tokens"]):
                if number == self.breaks_after:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if number == self.ends_after:
                    break
                if self.is_held and number:
                    await self.release.wait()
                chunk = {"choices": [{"token_ids": [TOKEN], "logprobs": None}]}
                await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
        except asyncio.CancelledError:
            self.num_left += 1
            raise
        await response.write(b"data: [DONE]\n\n")
        return response
