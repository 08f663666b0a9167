"""The application of the generate service."""

from pathlib import Path

from fastapi import FastAPI

from services.core.batching.stepper import StepLimits, Stepper
from services.core.serving.model_service import ModelService
from services.generate.engine import GenerateEngine
from services.generate.generation.options import EngineOptions
from services.generate.http.generate_routes import generate_models_router, generate_router
from services.generate.http.openai_routes import openai_router
from services.generate.http.rerank_routes import rerank_router
from services.generate.http.tokenize_routes import tokenize_router
from services.generate.service import CallLimits, GenerateService, GenerateStepper
from services.generate.settings import GenerateSettings
from services.nn.devices import DeviceOptions

CHECKPOINT_KIND = "causal-lm"


def create_generate(settings: GenerateSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("generate", settings, kind=CHECKPOINT_KIND)
    options = EngineOptions(
        DeviceOptions(settings.device, settings.dtype, settings.num_threads),
        max_cached_tokens=settings.max_cached_tokens,
        memory_share=settings.memory_share,
        max_running=settings.max_running,
        prefix_cache_bytes=settings.prefix_cache_bytes,
    )
    steps = StepLimits(
        settings.max_batch_cost, settings.max_queue_cost, settings.max_waiting, max_wait_s=settings.max_wait_s
    )

    def load(folder: Path) -> GenerateEngine:
        return GenerateEngine.load(folder, options)

    def make_stepper(engine: GenerateEngine) -> GenerateStepper:
        host.metrics.kv_cache_usage_ratio.set_function(lambda: engine.cache_share)
        return Stepper(engine, thread=host.thread, limits=steps, metrics=host.metrics)

    checkpoint = host.follow(settings.model, settings.alias, load=load, make_batcher=make_stepper)
    host.health.add_readiness_check("checkpoint", checkpoint.check)
    limits = CallLimits(
        settings.max_documents,
        settings.max_tokens,
        settings.max_choices,
        settings.max_waiting,
        settings.max_queue_cost,
    )
    service = GenerateService(checkpoint, limits, host.metrics)
    return host.create_app(
        checkpoint,
        [
            make(service)
            for make in (generate_router, openai_router, tokenize_router, rerank_router, generate_models_router)
        ],
        title="Fovea generate",
        description="Answers over documents, corrected for positional bias, and rankings of documents.",
    )
