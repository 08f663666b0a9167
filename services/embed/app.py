"""The embed service: how its parts are put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from fastapi import APIRouter, FastAPI

from services.core.batching.batcher import Batcher, BatchLimits
from services.core.batching.compute_thread import ComputeThread
from services.core.cache.result_cache import open_cache
from services.core.http.app import AppParts, create_app
from services.core.http.health import Health
from services.core.images.fetch import FetchLimits
from services.core.images.inputs import DecodeLimits, ImageInputs
from services.core.images.references import ImageLimits
from services.core.metrics import Metrics
from services.core.serving.model_service import check_compute, publish_packaged_starters
from services.core.serving.served_checkpoint import Followed, ServedCheckpoint
from services.core.store.manifest import Manifest
from services.core.store.store import Store
from services.embed.engine import EmbedEngine, Item, Reading
from services.embed.http.routes import embed_router, models_router
from services.embed.service import CallLimits, Embedder, EmbedService
from services.embed.settings import EmbedSettings
from services.nn.devices import DeviceOptions, is_out_of_memory

if TYPE_CHECKING:
    from services.embed.collections.library import Library

CHECKPOINT_KIND = "focallens-clip"


def create_embed(settings: EmbedSettings) -> FastAPI:
    """The service, which asks its store for nothing before it is started."""
    metrics, health = Metrics("embed"), Health()
    thread = ComputeThread("embed")
    store = Store.open(settings.store_url)
    limits = CallLimits(
        settings.max_inputs,
        settings.max_conditions,
        ImageLimits(max_image_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels),
        settings.max_k,
        settings.max_json_values,
    )
    checkpoint = _follow(settings, store, thread, metrics)
    cache = open_cache(
        metrics,
        redis_url=settings.redis_url,
        max_bytes=settings.cache_max_bytes,
        timeout_s=settings.cache_timeout_s,
        ttl_s=settings.cache_ttl_s,
    )
    inputs = _image_inputs(settings, limits.images, metrics)
    embedder = Embedder(cache, inputs, metrics)
    library = _library(settings, checkpoint, inputs, embedder, metrics)
    _report(library, health)
    service = EmbedService(checkpoint, embedder, limits, _batch_limits(settings), metrics)
    health.add_liveness_check("compute", lambda: check_compute(thread, settings.stall_timeout_s))
    health.add_readiness_check("checkpoint", checkpoint.check)
    routers = [embed_router(service), *_collection_routers(library, limits), models_router(service)]

    @asynccontextmanager
    async def computing() -> AsyncIterator[None]:
        thread.start()
        try:
            async with inputs, library.opened() if library is not None else nullcontext():
                yield
        finally:
            await checkpoint.close()
            await thread.close()
            await cache.close()

    async def warm_up() -> None:
        await asyncio.to_thread(publish_packaged_starters, store)
        await checkpoint.start()

    return create_app(
        settings,
        AppParts(
            service="embed",
            title="Fovea embed",
            description="Image embeddings conditioned on a text, and texts in the same space.",
            metrics=metrics,
            health=health,
            routers=routers,
            resources=[computing],
            warm_up=warm_up,
        ),
    )


def _image_inputs(settings: EmbedSettings, limits: ImageLimits, metrics: Metrics) -> ImageInputs:
    return ImageInputs(
        limits,
        fetch_limits=_fetch_limits(settings),
        url_setting="FOVEA_EMBED_IMAGE_URLS",
        decoding=DecodeLimits(settings.num_decode_threads, settings.max_decode_pixels),
        metrics=metrics,
    )


def _library(
    settings: EmbedSettings,
    checkpoint: ServedCheckpoint[EmbedEngine],
    inputs: ImageInputs,
    embedder: Embedder,
    metrics: Metrics,
) -> "Library | None":
    """The collections; None where FAISS is not installed."""
    if find_spec("faiss") is None:
        structlog.get_logger(__name__).warning("no collections: install fovea[search] or fovea[search-gpu]")
        return None
    from services.embed.collections.composition import create_library

    return create_library(settings, checkpoint, inputs, embedder, metrics)


def _report(library: "Library | None", health: Health) -> None:
    if library is not None:
        health.add_readiness_check("collections", library.check)


def _collection_routers(library: "Library | None", limits: CallLimits) -> list[APIRouter]:
    if library is None:
        return []
    from services.embed.collections.http.routes import collections_router

    return [collections_router(library, limits)]


def _follow(
    settings: EmbedSettings, store: Store, thread: ComputeThread, metrics: Metrics
) -> ServedCheckpoint[EmbedEngine]:
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads)

    def load(directory: Path, manifest: Manifest) -> EmbedEngine:
        if manifest.kind != CHECKPOINT_KIND:
            raise ValueError(f"this service runs {CHECKPOINT_KIND} checkpoints, not {manifest.kind}")
        return EmbedEngine.load(directory, options)

    def make_batcher(engine: EmbedEngine) -> Batcher[Item, Reading]:
        return Batcher(
            engine,
            thread=thread,
            limits=_batch_limits(settings),
            metrics=metrics,
            is_out_of_memory=is_out_of_memory,
        )

    followed = Followed(
        settings.model,
        settings.alias,
        settings.checkpoint_cache_dir,
        settings.store_poll_s,
        load_timeout_s=settings.load_timeout_s,
    )
    return ServedCheckpoint(store, followed, load=load, make_batcher=make_batcher, metrics=metrics)


def _batch_limits(settings: EmbedSettings) -> BatchLimits:
    return BatchLimits(settings.max_batch_cost, settings.max_batch_size, settings.max_queue_cost)


def _fetch_limits(settings: EmbedSettings) -> FetchLimits | None:
    if not settings.image_urls:
        return None
    return FetchLimits(max_image_bytes=settings.max_image_bytes, allowed_hosts=settings.image_url_hosts)
