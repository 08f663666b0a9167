"""The parts shared by all services that run models."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI

from services.core.batching.batcher import Batcher, BatchLimits, Engine
from services.core.batching.compute_thread import ComputeThread
from services.core.cache.result_cache import ResultCache, open_cache
from services.core.http.app import AppParts, create_app
from services.core.http.health import CheckResult, Health
from services.core.metrics import Metrics
from services.core.serving.model_settings import ModelSettings, cure_of_absence
from services.core.serving.served_checkpoint import (
    Answering,
    CheckpointEngine,
    FollowOptions,
    MemoryBudget,
    ServedCheckpoint,
)
from services.core.serving.served_models import ServedModels, StoredModels, told_kinds
from services.core.serving.tokenizer_trial import try_tokenizers
from services.core.store.checkpoint_files import packaged_starters
from services.core.store.errors import UnservedKind
from services.core.store.manifest import Manifest
from services.core.store.store import Store

EngineT = TypeVar("EngineT", bound=CheckpointEngine)
BatcherT = TypeVar("BatcherT", bound=Answering)
DescriptionT = TypeVar("DescriptionT")
ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class ModelService:
    """A store, a compute thread, metrics and health for the models of a service, and the application around them.

    The store is not accessed before the application is started.
    """

    def __init__(self, name: str, settings: ModelSettings) -> None:
        self.name = name
        self.metrics, self.health = Metrics(name), Health()
        self.batch_limits = BatchLimits(settings.max_batch_cost, settings.max_batch_size, settings.max_queue_cost)
        self.thread = ComputeThread(name)
        self._settings = settings
        self._store = Store.open(settings.store_url)
        self._cache: ResultCache | None = None
        self.health.add_liveness_check("compute", self._check_compute)

    def follow(
        self,
        load: Mapping[str, Callable[[Path], EngineT]],
        *,
        make_batcher: Callable[[EngineT], BatcherT],
        measure: Callable[[Path], int],
        describe: Callable[[EngineT], DescriptionT],
    ) -> ServedModels[EngineT, DescriptionT, BatcherT]:
        """The models of the settings. `load` has what reads a verified folder, by the kind of its checkpoint;
        `measure` and `describe` are as in ServedModels."""
        settings, prefix = self._settings, f"FOVEA_{self.name.upper()}"
        tried: set[str] = set()  # digests of versions, which may be unloaded and loaded again

        def load_kind(folder: Path, manifest: Manifest) -> EngineT:
            if manifest.kind not in load:
                raise UnservedKind(
                    f"{manifest.name}@{manifest.version} is a {manifest.kind} checkpoint, and this service runs "
                    f"{told_kinds(load)} checkpoints"
                )
            if manifest.digest not in tried:
                try_tokenizers(f"{manifest.name}@{manifest.version}", folder)
                tried.add(manifest.digest)
            return load[manifest.kind](folder)

        def follow_one(name: str, alias: str, room: MemoryBudget) -> ServedCheckpoint[EngineT, BatcherT]:
            followed = FollowOptions(
                name,
                alias,
                settings.checkpoint_cache_dir,
                settings.store_poll_s,
                room,
                load_timeout_s=settings.load_timeout_s,
                cache_max_bytes=settings.checkpoint_cache_max_bytes,
                cure=cure_of_absence(name, alias, f"{prefix}_MODELS"),
            )
            return ServedCheckpoint(
                self._store, followed, load=load_kind, make_batcher=make_batcher, metrics=self.metrics
            )

        models: ServedModels[EngineT, DescriptionT, BatcherT] = ServedModels(
            StoredModels(self._store, runs=tuple(load), max_age_s=settings.store_poll_s),
            max_bytes=settings.memory_bytes,
            measure=measure,
            describe=describe,
            settings=prefix,
            metrics=self.metrics,
        )
        for name, alias in settings.followed:
            models.add(partial(follow_one, name, alias))
        for resident in models.residents:
            checkpoint = resident.checkpoint
            vital = partial(models.is_vital, resident)
            self.health.add_readiness_check(f"checkpoint {checkpoint.name}", checkpoint.check, vital)
        return models

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
        models: ServedModels[Any, Any, Any],
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
            starters = packaged_starters(*(name for name, _ in self._settings.followed))
            await asyncio.to_thread(self._store.publish_starters, starters)
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
