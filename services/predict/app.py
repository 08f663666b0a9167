"""The predict service: how its parts are put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from services.core.batching.batcher import Batcher, BatchLimits
from services.core.batching.compute_thread import ComputeThread
from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.serving.model_service import check_compute, publish_packaged_starters
from services.core.serving.served_checkpoint import Followed, Room, ServedCheckpoint
from services.core.store.manifest import Manifest
from services.core.store.store import Store
from services.nn.devices import DeviceOptions, is_out_of_memory
from services.predict.engine import PredictEngine
from services.predict.http.routes import models_router, predict_router
from services.predict.model.footprint import held_bytes
from services.predict.residency import Residency
from services.predict.service import PredictBatcher, PredictService
from services.predict.settings import PredictSettings, split_model

CHECKPOINT_KIND = "t5-student"


def create_predict(settings: PredictSettings) -> FastAPI:
    """The service, which asks its store for nothing before it is started."""
    metrics, health = Metrics("predict"), Health()
    thread = ComputeThread("predict")
    store = Store.open(settings.store_url)
    residency = _follow_all(settings, store, thread, metrics)
    service = PredictService(residency, settings.max_inputs, metrics)
    health.add_liveness_check("compute", lambda: check_compute(thread, settings.stall_timeout_s))
    for resident in residency.residents:
        health.add_readiness_check(f"checkpoint {resident.checkpoint.name}", resident.checkpoint.check)

    @asynccontextmanager
    async def computing() -> AsyncIterator[None]:
        thread.start()
        try:
            yield
        finally:
            await residency.close()
            await thread.close()

    async def warm_up() -> None:
        await asyncio.to_thread(publish_packaged_starters, store)
        await residency.start()

    return create_app(
        settings,
        AppParts(
            service="predict",
            title="Fovea predict",
            description="Small students taught with a large model's reasons: labels, on request with reasons.",
            metrics=metrics,
            health=health,
            routers=[predict_router(service), models_router(service)],
            resources=[computing],
            warm_up=warm_up,
        ),
    )


def _follow_all(
    settings: PredictSettings, store: Store, thread: ComputeThread, metrics: Metrics
) -> Residency[PredictEngine]:
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads)
    limits = BatchLimits(settings.max_batch_cost, settings.max_batch_size, settings.max_queue_cost)

    def load(directory: Path, manifest: Manifest) -> PredictEngine:
        if manifest.kind != CHECKPOINT_KIND:
            raise ValueError(f"this service runs {CHECKPOINT_KIND} checkpoints, not {manifest.kind}")
        return PredictEngine.load(directory, options, is_int8=settings.int8)

    def make_batcher(engine: PredictEngine) -> PredictBatcher:
        return Batcher(engine, thread=thread, limits=limits, metrics=metrics, is_out_of_memory=is_out_of_memory)

    def follow(model: str, room: Room) -> ServedCheckpoint[PredictEngine]:
        name, alias = split_model(model)
        followed = Followed(
            name,
            alias,
            settings.checkpoint_cache_dir,
            settings.store_poll_s,
            load_timeout_s=settings.load_timeout_s,
            room=room,
        )
        return ServedCheckpoint(store, followed, load=load, make_batcher=make_batcher, metrics=metrics)

    residency: Residency[PredictEngine] = Residency(
        max_bytes=settings.memory_bytes, measure=partial(_measure, options, settings.int8), metrics=metrics
    )
    for model in settings.models:
        residency.add(partial(follow, model))
    return residency


def _measure(options: DeviceOptions, is_int8: bool, directory: Path) -> int:  # noqa: FBT001 a setting, bound once
    return held_bytes(directory, options, is_int8=is_int8)
