"""The application of the predict service."""

from functools import partial
from pathlib import Path

from fastapi import FastAPI

from services.core.serving.memory_budget import MemoryBudget
from services.core.serving.model_service import ModelService
from services.core.serving.residency import Residency
from services.core.serving.served_checkpoint import ServedCheckpoint
from services.nn.devices import DeviceOptions
from services.predict.engine import PredictEngine
from services.predict.http.routes import models_router, predict_router
from services.predict.model.footprint import held_bytes
from services.predict.service import PredictService, TaskModels
from services.predict.settings import PredictSettings, split_model

CHECKPOINT_KIND = "t5-student"


def create_predict(settings: PredictSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("predict", settings, kind=CHECKPOINT_KIND)
    residency = _follow_all(settings, host)
    for resident in residency.residents:
        host.health.add_readiness_check(f"checkpoint {resident.checkpoint.name}", resident.checkpoint.check)
    service = PredictService(residency, settings.max_inputs, host.metrics)
    return host.create_app(
        residency,
        [predict_router(service), models_router(service)],
        title="Fovea predict",
        description="Labels predicted by small students that were trained on a large model's rationales.",
    )


def _follow_all(settings: PredictSettings, host: ModelService) -> TaskModels:
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads)

    def load(folder: Path) -> PredictEngine:
        return PredictEngine.load(folder, options, is_int8=settings.int8)

    def measure(folder: Path) -> int:
        return held_bytes(folder, options, is_int8=settings.int8)

    def follow(model: str, room: MemoryBudget) -> ServedCheckpoint[PredictEngine]:
        name, alias = split_model(model)
        return host.follow(name, alias, load=load, make_batcher=host.batcher, room=room)

    residency: TaskModels = Residency(
        max_bytes=settings.memory_bytes,
        measure=measure,
        describe=lambda engine: engine.description,
        metrics=host.metrics,
        setting="FOVEA_PREDICT_MEMORY_BYTES",
    )
    for model in settings.models:
        residency.add(partial(follow, model))
    return residency
