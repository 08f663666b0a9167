"""A small server with the HTTP contract of collections, over a real socket, and with the bad days of one."""

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.web_server import serving


def error(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    body = {"error": {"message": message, "type": "…", "param": param, "code": code}}
    return web.json_response(body, status=status, headers=headers)


class Dropped(Exception):
    """The connection ends without an answer."""


@dataclass
class CollectionServer:
    """`images` by id: (bytes, metadata). What it refuses begins with `damaged`; `blames` says which one it was.

    `num_not_yet` requests of any kind come too early. `faults` are had by one request to add each, None being a good
    day. `lost_answers` adds are done and not answered. Adds wait until `gathers` of them have been there at once.
    `num_waiting` embeddings are not yet indexed; each look at the collection finds fewer.
    """

    images: dict[str, tuple[bytes, dict[str, Any]]] = field(default_factory=dict)
    conditions: list[str] | None = None
    faults: list[web.Response | type[Dropped] | None] = field(default_factory=list)
    num_not_yet: int = 0
    lost_answers: int = 0
    blames: bool = True
    num_waiting: int = 0
    key: str | None = None
    requests: Counter[str] = field(default_factory=Counter)
    batch_sizes: list[int] = field(default_factory=list)
    gathers: int = 1
    most_at_once: int = 0
    url: str = ""
    _at_once: int = 0
    _have_gathered: asyncio.Event = field(default_factory=asyncio.Event)

    async def put(self, request: web.Request) -> web.Response:
        self.conditions = (await request.json())["conditions"]
        return web.json_response({}, status=201)

    async def describe(self, request: web.Request) -> web.Response:
        waiting, self.num_waiting = self.num_waiting, max(0, self.num_waiting - 7)
        indexed = len(self.images) - waiting
        return web.json_response({"conditions": [{"condition": None, "indexed": indexed, "waiting": waiting}]})

    async def list(self, request: web.Request) -> web.Response:
        ids = sorted(i for i in self.images if i > request.query.get("after", ""))
        limit = min(int(request.query["limit"]), 3)
        return web.json_response({"data": [{"id": i} for i in ids[:limit]], "has_more": len(ids) > limit})

    async def add(self, request: web.Request) -> web.StreamResponse:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        if self.most_at_once >= self.gathers:
            self._have_gathered.set()
        try:
            await self._have_gathered.wait()
            return await self._add(request)
        finally:
            self._at_once -= 1

    async def _add(self, request: web.Request) -> web.StreamResponse:
        images = (await request.json())["images"]
        await asyncio.sleep(0)  # others may come meanwhile
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, web.Response):
            return fault
        if fault is not None:
            return self._drop(request)
        self.batch_sizes.append(len(images))
        for place, image in enumerate(images):
            data = base64.b64decode(image["image"])
            if data.startswith(b"damaged"):
                return error(400, "The image is damaged.", param=f"images.{place}.image" if self.blames else None)
            if self.images.get(image["id"], (data,))[0] != data:
                param = f"images.{place}.id" if self.blames else None
                return error(409, f"There is another image {image['id']!r}.", param=param)
        new = [image for image in images if image["id"] not in self.images]
        for image in new:
            self.images[image["id"]] = (base64.b64decode(image["image"]), image.get("metadata", {}))
        if self.lost_answers:
            self.lost_answers -= 1
            return self._drop(request)
        ids = [image["id"] for image in images]
        done = {"added": len(new), "unchanged": len(images) - len(new), "ids": ids}
        return web.json_response(done, status=201)

    def _drop(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    @web.middleware
    async def watch(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        self.requests[f"{request.method} {request.path}"] += 1
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, "There is no such key.")
        if self.num_not_yet:
            self.num_not_yet -= 1
            return error(503, "Starting.")
        response: web.StreamResponse = await handler(request)
        return response

    @asynccontextmanager
    async def served(self) -> AsyncIterator["CollectionServer"]:
        app = web.Application(middlewares=[self.watch], client_max_size=64 * 1024 * 1024)
        app.router.add_put("/collections/{name}", self.put)
        app.router.add_get("/collections/{name}", self.describe)
        app.router.add_get("/collections/{name}/images", self.list)
        app.router.add_post("/collections/{name}/images", self.add)
        async with serving(app) as self.url:
            yield self
