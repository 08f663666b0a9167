"""The score service: how its parts are put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from fastapi import FastAPI

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
from services.nn.devices import DeviceOptions, is_out_of_memory
from services.score.engine import ScoreEngine
from services.score.http.routes import models_router, negatives_router, score_router
from services.score.model.checkpoint import FSC_CLIP_KIND
from services.score.negatives.hard_negatives import installed_hard_negatives
from services.score.scorer import CallLimits, ScoreBatchers, Scorer
from services.score.service import NegativeMaker, ScoreService
from services.score.settings import ScoreSettings


def create_score(settings: ScoreSettings) -> FastAPI:
    """The service, which asks its store for nothing before it is started."""
    metrics, health = Metrics("score"), Health()
    thread = ComputeThread("score")
    store = Store.open(settings.store_url)
    limits = _call_limits(settings)
    checkpoint = _follow(settings, store, thread, metrics)
    cache = open_cache(
        metrics,
        redis_url=settings.redis_url,
        max_bytes=settings.cache_max_bytes,
        timeout_s=settings.cache_timeout_s,
        ttl_s=settings.cache_ttl_s,
    )
    inputs = _inputs(settings, limits.images, metrics)
    negatives = _negatives(settings, metrics)
    scorer = Scorer(cache, inputs, metrics, max_heatmap_numbers=limits.max_heatmap_numbers)
    service = ScoreService(checkpoint, scorer, negatives, limits, metrics)
    health.add_liveness_check("compute", lambda: check_compute(thread, settings.stall_timeout_s))
    health.add_readiness_check("checkpoint", checkpoint.check)

    @asynccontextmanager
    async def computing() -> AsyncIterator[None]:
        thread.start()
        try:
            async with inputs:
                yield
        finally:
            negatives.close()
            await checkpoint.close()
            await thread.close()
            await cache.close()

    async def warm_up() -> None:
        await negatives.start()
        await asyncio.to_thread(publish_packaged_starters, store)
        await checkpoint.start()

    return create_app(
        settings,
        AppParts(
            service="score",
            title="Fovea score",
            description="Which caption is true of an image, what its words look at, and captions made false.",
            metrics=metrics,
            health=health,
            routers=[score_router(service), negatives_router(service), models_router(service)],
            resources=[computing],
            warm_up=warm_up,
        ),
    )


def _follow(
    settings: ScoreSettings, store: Store, thread: ComputeThread, metrics: Metrics
) -> ServedCheckpoint[ScoreEngine, ScoreBatchers]:
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads)
    limits = BatchLimits(settings.max_batch_cost, settings.max_batch_size, settings.max_queue_cost)

    def load(directory: Path, manifest: Manifest) -> ScoreEngine:
        if manifest.kind != FSC_CLIP_KIND:
            raise ValueError(f"this service runs {FSC_CLIP_KIND} checkpoints, not {manifest.kind}")
        return ScoreEngine.load(directory, options)

    def make_batchers(engine: ScoreEngine) -> ScoreBatchers:
        make = partial(Batcher, thread=thread, limits=limits, metrics=metrics, is_out_of_memory=is_out_of_memory)
        return ScoreBatchers(encoding=make(engine), pairing=make(engine.pairing))

    followed = Followed(
        settings.model,
        settings.alias,
        settings.checkpoint_cache_dir,
        settings.store_poll_s,
        load_timeout_s=settings.load_timeout_s,
    )
    return ServedCheckpoint(store, followed, load=load, make_batcher=make_batchers, metrics=metrics)


def _call_limits(settings: ScoreSettings) -> CallLimits:
    return CallLimits(
        max_captions=settings.max_captions,
        max_images=settings.max_images,
        max_explained_captions=settings.max_explained_captions,
        max_heatmap_numbers=settings.max_heatmap_numbers,
        max_negative_characters=settings.max_negative_characters,
        images=ImageLimits(max_image_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels),
    )


def _inputs(settings: ScoreSettings, limits: ImageLimits, metrics: Metrics) -> ImageInputs:
    fetch_limits = None
    if settings.image_urls:
        fetch_limits = FetchLimits(max_image_bytes=settings.max_image_bytes, allowed_hosts=settings.image_url_hosts)
    return ImageInputs(
        limits,
        fetch_limits=fetch_limits,
        url_setting="FOVEA_SCORE_IMAGE_URLS",
        decoding=DecodeLimits(settings.num_decode_threads, settings.max_decode_pixels),
        metrics=metrics,
    )


def _negatives(settings: ScoreSettings, metrics: Metrics) -> NegativeMaker:
    return NegativeMaker(
        partial(installed_hard_negatives, settings.wordnet_dir),
        num_threads=settings.num_negative_threads,
        max_waiting=settings.max_waiting_negatives,
        metrics=metrics,
    )
