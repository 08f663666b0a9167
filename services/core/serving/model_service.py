"""The parts shared by all services that run models."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import structlog
from fastapi import APIRouter, FastAPI

from services.core.batching.batcher import Batcher, BatchLimits, Engine
from services.core.batching.compute_thread import ComputeThread
from services.core.cache.result_cache import ResultCache, open_cache
from services.core.http.app import AppParts, create_app
from services.core.http.health import CheckResult, Health
from services.core.metrics import Metrics
from services.core.serving.candidates import CheckpointEngine
from services.core.serving.memory_budget import MemoryBudget, Unlimited
from services.core.serving.served_checkpoint import Answering, FollowOptions, ServedCheckpoint
from services.core.settings import ServiceSettings
from services.core.store.errors import StoreUnavailable
from services.core.store.manifest import Manifest
from services.core.store.starters import packaged_starters
from services.core.store.store import Store

EngineT = TypeVar("EngineT", bound=CheckpointEngine)
BatcherT = TypeVar("BatcherT", bound=Answering)
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Models(Protocol):
    """The models of a service: one ServedCheckpoint, or several."""

    async def start(self) -> None:
        """Load what is to be served at the beginning."""

    async def close(self) -> None:
        """Let go of everything; what waits for a batch fails."""


class ModelService:
    """A store, a compute thread, metrics and health for checkpoints of one `kind`, and the application around them.

    The store is not accessed before the application is started.
    """

    def __init__(self, name: str, settings: ServiceSettings, *, kind: str) -> None:
        self.name = name
        self.metrics, self.health = Metrics(name), Health()
        self.batch_limits = BatchLimits(settings.max_batch_cost, settings.max_batch_size, settings.max_queue_cost)
        self.thread = ComputeThread(name)
        self._settings = settings
        self._kind = kind
        self._store = Store.open(settings.store_url)
        self._cache: ResultCache | None = None
        self._followed: list[str] = []
        self.health.add_liveness_check("compute", self._check_compute)

    def follow(
        self,
        name: str,
        alias: str,
        *,
        load: Callable[[Path], EngineT],
        make_batcher: Callable[[EngineT], BatcherT],
        also: Mapping[str, Callable[[Path], EngineT]] | None = None,
        room: MemoryBudget | None = None,
    ) -> ServedCheckpoint[EngineT, BatcherT]:
        """The checkpoint that an alias names; `load` reads a verified folder of the service's own kind, and `also` has
        what reads those of other kinds."""
        settings = self._settings
        self._followed.append(name)
        load_of = {self._kind: load, **(also or {})}

        def load_kind(folder: Path, manifest: Manifest) -> EngineT:
            if manifest.kind not in load_of:
                raise ValueError(f"this service runs {' and '.join(load_of)} checkpoints, not {manifest.kind}")
            return load_of[manifest.kind](folder)

        followed = FollowOptions(
            name,
            alias,
            settings.checkpoint_cache_dir,
            settings.store_poll_s,
            load_timeout_s=settings.load_timeout_s,
            cache_max_bytes=settings.checkpoint_cache_max_bytes,
            room=room or Unlimited(),
        )
        return ServedCheckpoint(self._store, followed, load=load_kind, make_batcher=make_batcher, metrics=self.metrics)

    def batcher(self, engine: Engine[ItemT, ResultT]) -> Batcher[ItemT, ResultT]:
        """A batcher on the compute thread."""
        return Batcher(engine, thread=self.thread, limits=self.batch_limits, metrics=self.metrics)

    def open_cache(self) -> ResultCache:
        """The cache of results, which is closed with the application."""
        settings = self._settings
        self._cache = open_cache(
            self.metrics,
            redis_url=settings.redis_url,
            max_bytes=settings.cache_max_bytes,
            timeout_s=settings.cache_timeout_s,
            ttl_s=settings.cache_ttl_s,
        )
        return self._cache

    def create_app(
        self,
        models: Models,
        routers: Sequence[APIRouter],
        *,
        title: str,
        description: str,
        resources: Sequence[Callable[[], AbstractAsyncContextManager[object]]] = (),
        warm_up: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> FastAPI:
        """The application, which opens `resources` before the first request.

        Beside the server, what is given to `warm_up` runs before the models are loaded.
        """

        async def start() -> None:
            for prepare in warm_up:
                await prepare()
            await asyncio.to_thread(self._publish_packaged_starters)
            await models.start()

        @asynccontextmanager
        async def computing() -> AsyncIterator[None]:
            self.thread.start()
            try:
                yield
            finally:
                await models.close()
                await self.thread.close()
                if self._cache is not None:
                    await self._cache.close()

        parts = AppParts(
            service=self.name,
            title=title,
            description=description,
            metrics=self.metrics,
            health=self.health,
            routers=routers,
            resources=[computing, *resources],
            warm_up=start,
        )
        return create_app(self._settings, parts)

    def _check_compute(self) -> CheckResult:
        """For `/livez`: whether calls are run, and none for too long."""
        stalled_s = self.thread.stalled_for_s()
        if not self.thread.is_alive:
            return False, "the compute thread has ended"
        is_running = stalled_s < self._settings.stall_timeout_s
        return is_running, f"running one batch for {stalled_s:.1f} s" if stalled_s else "idle"

    def _publish_packaged_starters(self) -> None:
        """Publish the packaged checkpoints to an empty store, and to any other those that this service is to serve.

        A store that can't be written now is used as it is.
        """
        try:
            self._store.publish_starters(packaged_starters(), self._followed)
        except StoreUnavailable as error:
            structlog.get_logger(__name__).warning("starter checkpoints not published", error=str(error))
