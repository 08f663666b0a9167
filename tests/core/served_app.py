"""A small real application for the tests of the core; `python -m tests.core.served_app SETTINGS_AS_JSON` serves it."""

import asyncio
import errno
import json
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from fastapi import APIRouter, BackgroundTasks, FastAPI, Request, UploadFile
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from services.core.batching.compute_thread import ComputeThread
from services.core.errors import FoveaError, InvalidRequest, NotFound, Overloaded, RateLimited
from services.core.exchange import context_of
from services.core.http.app import AppParts, create_app
from services.core.http.error_responses import TeiError, error_responses, tei_error_body
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.serving import server
from services.core.serving.served_checkpoint import Candidate
from services.core.settings import ProcessSettings

SECRET = "the cause that nobody may read"
# What Python, torch, oneDNN and the system raise where memory lacks.
NO_MEMORY: dict[str, Callable[[], Exception]] = {
    "memory": MemoryError,
    "allocator": lambda: RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    "primitive": lambda: RuntimeError("could not create a primitive"),
    "thread": lambda: RuntimeError("can't start new thread"),
    "system": lambda: OSError(errno.ENOMEM, "Cannot allocate memory"),
}


class Document(BaseModel):
    text: str


class RerankBody(BaseModel):
    query: str
    documents: list[str | Document] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1)


class TeiRoute(APIRoute):
    error_body = staticmethod(tei_error_body)


def served_router(counts: Counter[str]) -> APIRouter:
    router = APIRouter()

    @router.get("/ping")
    async def ping() -> dict[str, bool]:
        return {"ok": True}

    @router.post("/v1/rerank")
    async def rerank(body: RerankBody, request: Request) -> dict[str, Any]:
        context = context_of(request.scope)
        context.timing.add("queue", 0.0015)
        context.timing.add("infer", 0.25)
        context.model = "shapes@3"
        return {"query": body.query, "request_id": request.state.request_id}

    @router.put("/items/{name}")
    async def put_item(name: str, file: UploadFile) -> dict[str, Any]:
        return {"name": name, "size": len(await file.read())}

    @router.post("/bytes")
    async def count_bytes(request: Request) -> dict[str, int]:
        return {"size": len(await request.body())}

    @router.post("/slow")
    @router.get("/slow")
    async def slow(seconds: float, tag: str = "") -> dict[str, bool]:
        counts[f"{tag} started"] += 1
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            counts[f"{tag} cancelled"] += 1
            raise
        counts[f"{tag} finished"] += 1
        return {"ok": True}

    @router.get("/deadline")
    async def deadline(request: Request) -> dict[str, float]:
        return {"deadline": context_of(request.scope).deadline}

    @router.get("/stream")
    async def stream(
        fail: bool = False, forever: bool = False, media_type: str = "text/event-stream"
    ) -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            try:
                yield 'data: {"delta": "a"}\n\n'
                if fail:
                    raise RuntimeError(SECRET)
                if forever:
                    await asyncio.Event().wait()
                yield "data: [DONE]\n\n"
            finally:
                counts["stream ended"] += 1

        return StreamingResponse(events(), media_type=media_type)

    @router.post("/wait-with-body")
    async def wait_with_body(request: Request) -> None:
        await request.body()
        await slow(3600, "with body")

    @router.get("/then-work")
    async def then_work(tasks: BackgroundTasks) -> dict[str, bool]:
        async def work() -> None:
            await asyncio.sleep(0.1)  # long enough for the client to be gone
            counts["worked"] += 1

        tasks.add_task(work)
        return {"ok": True}

    @router.get("/counts")
    async def read_counts() -> dict[str, int]:
        return dict(counts)

    return router


def failing_router() -> APIRouter:
    router = APIRouter()
    errors: dict[str, Callable[[], Exception]] = {
        "defect": lambda: RuntimeError(SECRET),
        "overloaded": lambda: Overloaded("The queue is full.", code="queue_full", retry_after_s=0.25),
        "rate": lambda: RateLimited("Too many requests.", retry_after_s=400),
        "missing": lambda: NotFound("There is no collection 'x'.", param="name"),
        **NO_MEMORY,
        "surrogate": lambda: InvalidRequest("not text: \ud800"),
    }

    @router.get("/fail/{kind}")
    async def fail(kind: str) -> None:
        raise errors[kind]()

    @router.get("/fail-as-client-asked")
    async def fail_as_client_asked(request: Request) -> None:
        request.state.error_body = lambda error: {"detail": error.message}
        raise NotFound("nothing here")

    tei = APIRouter(route_class=TeiRoute)

    @tei.post("/tei", responses=error_responses(TeiError))
    async def tei_route(body: Document) -> None:
        raise Overloaded("busy")

    router.include_router(tei)
    return router


def create(
    settings: ProcessSettings,
    *,
    health: Health | None = None,
    metrics: Metrics | None = None,
    warm_up: Callable[[], Awaitable[None]] | None = None,
    resources: Sequence[Callable[[], AbstractAsyncContextManager[object]]] = (),
) -> FastAPI:
    parts = AppParts(
        service="served",
        title="Served",
        metrics=metrics or Metrics("served"),
        health=health or Health(),
        routers=(served_router(Counter()), failing_router()),
        warm_up=warm_up,
        resources=resources,
    )
    return create_app(settings, parts)


async def fail_to_warm_up() -> None:
    raise FoveaError("no checkpoint")


@asynccontextmanager
async def stuck_compute_thread() -> AsyncIterator[None]:
    """A compute thread in a batch that never ends."""
    thread = ComputeThread("stuck")
    thread.start()

    def compute() -> None:
        threading.Event().wait()

    thread.post(compute)
    try:
        yield
    finally:
        await thread.close()


async def load_for_ever() -> None:
    """A version that never gets ready."""

    def load() -> Any:
        threading.Event().wait()

    await Candidate("toy@v1", load).ready(3600)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    server.IDLE_GRACE_S = arguments.pop("idle_grace_s", server.IDLE_GRACE_S)
    server.EXIT_GRACE_S = arguments.pop("exit_grace_s", server.EXIT_GRACE_S)
    warm_up = {None: None, "fails": fail_to_warm_up, "hangs": load_for_ever}[arguments.pop("warm_up", None)]
    resources = [stuck_compute_thread] if arguments.pop("is_stuck", False) else []
    share = arguments.pop("client_share", 1.0)
    raise SystemExit(
        server.run(
            lambda settings: create(settings, warm_up=warm_up, resources=resources),
            ProcessSettings(**arguments),
            client_share=share,
        )
    )
