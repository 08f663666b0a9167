"""The application of the generate service."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from fastapi import FastAPI

from services.core.batching.stepper import StepLimits, Stepper
from services.core.http.decisions import decisions_router
from services.core.http.health import CheckResult
from services.core.images.inputs import image_inputs
from services.core.images.references import ImageLimits
from services.core.serving.model_service import ModelService
from services.core.serving.served_checkpoint import ServedCheckpoint
from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.http.anthropic_messages import anthropic_router
from services.generate.http.cohere_chat import cohere_router
from services.generate.http.decisions import decide
from services.generate.http.generate_routes import generate_models_router, generate_router
from services.generate.http.openai_responses import responses_router
from services.generate.http.openai_routes import openai_router, tokenize_router
from services.generate.http.rerank_routes import rerank_router
from services.generate.model.reranker_engine import (
    CrossEncoderEngine,
    MxbaiRerankEngine,
    Qwen3RerankerEngine,
    RerankerEngine,
)
from services.generate.model.vl_reranker_engine import Qwen3VlRerankerEngine
from services.generate.service import AnyBatcher, AnyEngine, CallLimits, GenerateModels, GenerateService, ModelFacts
from services.generate.settings import GenerateSettings
from services.generate.vllm.client import VllmAddress
from services.generate.vllm.engine import VllmEngine
from services.generate.vllm.stepper import VllmStepper
from services.nn.devices import DeviceOptions, parameter_bytes

CHECKPOINT_KIND = "causal-lm"
ROUTERS = (
    *(generate_router, openai_router, responses_router, tokenize_router),
    *(anthropic_router, cohere_router, rerank_router),
)
RERANKERS = (CrossEncoderEngine, Qwen3RerankerEngine, Qwen3VlRerankerEngine, MxbaiRerankEngine)


def create_generate(settings: GenerateSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("generate", settings)
    steps = StepLimits(
        settings.max_batch_cost, settings.max_queue_cost, settings.max_waiting, max_wait_s=settings.max_wait_s
    )
    models = (_over_vllm if settings.engine == "vllm" else _over_own_engine)(host, settings, steps)
    limits = CallLimits(
        settings.max_documents,
        settings.max_tokens,
        settings.max_choices,
        settings.max_waiting,
        settings.max_queue_cost,
        is_over_vllm=settings.engine == "vllm",
        images=ImageLimits(max_image_bytes=settings.max_image_bytes, max_pixels=settings.max_image_pixels),
    )
    inputs = image_inputs(settings, limits.images, host.metrics)
    service = GenerateService(models, limits, inputs, host.metrics)
    return host.create_app(
        models,
        [
            *(make(service) for make in ROUTERS),
            decisions_router(partial(decide, service), reads_documents=True),
            generate_models_router(service),
        ],
        title="Fovea generate",
        description="Answers over documents, corrected for positional bias, and rankings of documents.",
        resources=[lambda: inputs],
    )


def _over_own_engine(host: ModelService, settings: GenerateSettings, steps: StepLimits) -> GenerateModels:
    device = DeviceOptions(settings.device, settings.dtype, settings.num_threads)
    options = EngineOptions(
        device,
        max_cached_tokens=settings.max_cached_tokens,
        memory_share=settings.memory_share / len(settings.models),
        max_running=settings.max_running,
        prefix_cache_bytes=settings.prefix_cache_bytes,
    )

    load: dict[str, Callable[[Path], AnyEngine]] = {CHECKPOINT_KIND: partial(GenerateEngine.load, options=options)}
    load |= {engine.kind: partial(engine.load, options=device) for engine in RERANKERS}

    def make_batcher(engine: AnyEngine) -> AnyBatcher:
        if isinstance(engine, RerankerEngine):
            return host.batcher(engine)
        assert isinstance(engine, GenerateEngine), "it was loaded here"
        return Stepper(engine, thread=host.thread, limits=steps, metrics=host.metrics)

    models = host.follow(
        load,
        make_batcher=make_batcher,
        measure=partial(parameter_bytes, options=device),
        describe=ModelFacts.of,
    )
    for resident in models.residents:
        share = partial(_cache_share, resident.checkpoint)
        host.metrics.kv_cache_usage_ratio.labels(resident.checkpoint.name).set_function(share)
    return models


def _over_vllm(host: ModelService, settings: GenerateSettings, steps: StepLimits) -> GenerateModels:
    ((name, _),) = settings.followed
    address = VllmAddress(settings.vllm_url, settings.vllm_model or name, settings.vllm_key.get_secret_value())

    def load(folder: Path) -> AnyEngine:
        return VllmEngine.load(folder, address)

    def make_stepper(engine: AnyEngine) -> AnyBatcher:
        assert isinstance(engine, VllmEngine), "it was loaded here"
        return VllmStepper(engine, limits=steps, max_running=settings.max_running, metrics=host.metrics)

    models = host.follow(
        {CHECKPOINT_KIND: load}, make_batcher=make_stepper, measure=lambda folder: 0, describe=ModelFacts.of
    )
    (resident,) = models.residents
    host.health.add_readiness_check("vllm", partial(_check_vllm, resident.checkpoint))
    return models


def _cache_share(checkpoint: ServedCheckpoint[AnyEngine, AnyBatcher]) -> float:
    engine = checkpoint.engine
    return engine.cache_share if isinstance(engine, GenerateEngine) else 0.0


def _check_vllm(checkpoint: ServedCheckpoint[AnyEngine, AnyBatcher]) -> CheckResult:
    """For `/readyz`: whether vLLM answered when it was last asked, and serves this checkpoint."""
    engine = checkpoint.engine
    if not isinstance(engine, VllmEngine):
        return False, "serves no checkpoint of this service yet"
    return engine.trouble is None, engine.trouble or f"serves {engine.model}"
