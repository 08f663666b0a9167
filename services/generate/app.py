"""The generate service: how its parts are put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI

from services.core.batching.compute_thread import ComputeThread
from services.core.batching.stepper import StepLimits, Stepper
from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.metrics import Metrics
from services.core.serving.model_service import check_compute, publish_packaged_starters
from services.core.serving.served_checkpoint import Followed, ServedCheckpoint
from services.core.store.manifest import Manifest
from services.core.store.store import Store
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.http.generate_routes import generate_router, models_router
from services.generate.http.openai_routes import openai_router
from services.generate.http.rerank_routes import rerank_router
from services.generate.service import CallLimits, GenerateService, GenerateStepper
from services.generate.settings import GenerateSettings
from services.nn.devices import DeviceOptions, is_out_of_memory

CHECKPOINT_KIND = "causal-lm"


def create_generate(settings: GenerateSettings) -> FastAPI:
    """The service, which asks its store for nothing before it is started."""
    metrics, health = Metrics("generate"), Health()
    thread = ComputeThread("generate")
    store = Store.open(settings.store_url)
    checkpoint = _follow(settings, store, thread, metrics)
    limits = CallLimits(
        settings.max_documents,
        settings.max_tokens,
        settings.max_choices,
        settings.max_waiting,
        settings.max_queue_cost,
    )
    service = GenerateService(checkpoint, limits, metrics)
    health.add_liveness_check("compute", lambda: check_compute(thread, settings.stall_timeout_s))
    health.add_readiness_check("checkpoint", checkpoint.check)

    @asynccontextmanager
    async def computing() -> AsyncIterator[None]:
        thread.start()
        try:
            yield
        finally:
            await checkpoint.close()
            await thread.close()

    async def warm_up() -> None:
        await asyncio.to_thread(publish_packaged_starters, store)
        await checkpoint.start()

    return create_app(
        settings,
        AppParts(
            service="generate",
            title="Fovea generate",
            description="Answers over documents, with the bias of their places taken off, and rankings of documents.",
            metrics=metrics,
            health=health,
            routers=[
                generate_router(service),
                openai_router(service),
                rerank_router(service),
                models_router(service),
            ],
            resources=[computing],
            warm_up=warm_up,
        ),
    )


def _follow(
    settings: GenerateSettings, store: Store, thread: ComputeThread, metrics: Metrics
) -> ServedCheckpoint[GenerateEngine, GenerateStepper]:
    options = EngineOptions(
        DeviceOptions(settings.device, settings.dtype, settings.num_threads),
        max_cached_tokens=settings.max_cached_tokens,
        max_running=settings.max_running,
        prefix_cache_bytes=settings.prefix_cache_bytes,
    )
    limits = StepLimits(
        settings.max_batch_cost, settings.max_queue_cost, settings.max_waiting, max_wait_s=settings.max_wait_s
    )

    def load(directory: Path, manifest: Manifest) -> GenerateEngine:
        if manifest.kind != CHECKPOINT_KIND:
            raise ValueError(f"this service runs {CHECKPOINT_KIND} checkpoints, not {manifest.kind}")
        return GenerateEngine.load(directory, options)

    def make_stepper(engine: GenerateEngine) -> GenerateStepper:
        return Stepper(engine, thread=thread, limits=limits, metrics=metrics, is_out_of_memory=is_out_of_memory)

    followed = Followed(
        settings.model,
        settings.alias,
        settings.checkpoint_cache_dir,
        settings.store_poll_s,
        load_timeout_s=settings.load_timeout_s,
    )
    return ServedCheckpoint(store, followed, load=load, make_batcher=make_stepper, metrics=metrics)
