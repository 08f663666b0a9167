"""The application of the embed service."""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import structlog
from fastapi import FastAPI

from services.core.images.inputs import image_inputs
from services.core.images.references import ImageLimits
from services.core.serving.model_service import ModelService
from services.embed.call import CallLimits, EmbedBatchers, EmbedModel
from services.embed.http.routes import embed_models_router, embed_router
from services.embed.model.engines import ENGINES
from services.embed.service import Embedder, EmbedService, ModelFacts
from services.embed.settings import EmbedSettings
from services.nn.devices import DeviceOptions, parameter_bytes


def create_embed(settings: EmbedSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("embed", settings)
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads, settings.memory_share)

    load: dict[str, Callable[[Path], EmbedModel]] = {
        kind: partial(engine.load, options=options) for kind, engine in ENGINES.items()
    }
    models = host.follow(
        load,
        make_batcher=lambda engine: EmbedBatchers(host.batcher(engine), host.batcher(engine)),
        measure=partial(parameter_bytes, options=options),
        describe=ModelFacts.of,
    )
    limits = CallLimits(
        settings.max_inputs,
        settings.max_conditions,
        ImageLimits(max_image_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels),
        settings.max_k,
        settings.max_json_values,
    )
    inputs = image_inputs(settings, limits.images, host.metrics)
    embedder = Embedder(host.open_cache(), inputs, host.metrics)
    service = EmbedService(models, embedder, limits, host.batch_limits, host.metrics)
    collections = None
    routers = [embed_router(service)]
    if find_spec("faiss") is None:
        structlog.get_logger(__name__).warning("no collections: install fovea-serving[search] or [search-gpu]")
    else:
        from services.embed.collections.composition import create_collections
        from services.embed.collections.http.routes import collections_router

        collections = create_collections(settings, models, inputs, embedder, host.metrics)
        routers.append(collections_router(collections, limits))
        host.health.add_readiness_check("collections", collections.check)
    return host.create_app(
        models,
        [*routers, embed_models_router(service)],
        title="Fovea embed",
        description="Image embeddings conditioned on a text, and text embeddings in the same space.",
        resources=[lambda: inputs, *([collections.opened] if collections is not None else [])],
    )
