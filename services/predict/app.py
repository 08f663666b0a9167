"""The application of the predict service."""

from pathlib import Path

from fastapi import FastAPI

from services.core.serving.model_service import ModelService
from services.nn.devices import DeviceOptions
from services.predict.engine import PredictEngine
from services.predict.http.routes import predict_models_router, predict_router
from services.predict.model.footprint import held_bytes
from services.predict.service import PredictService
from services.predict.settings import PredictSettings

CHECKPOINT_KIND = "t5-student"


def create_predict(settings: PredictSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("predict", settings)
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads)

    def load(folder: Path) -> PredictEngine:
        return PredictEngine.load(folder, options, is_int8=settings.int8)

    def measure(folder: Path) -> int:
        return held_bytes(folder, options, is_int8=settings.int8)

    models = host.follow(
        {CHECKPOINT_KIND: load},
        make_batcher=host.batcher,
        measure=measure,
        describe=lambda engine: engine.description,
    )
    service = PredictService(models, settings.max_inputs, host.metrics)
    return host.create_app(
        models,
        [predict_router(service), predict_models_router(service)],
        title="Fovea predict",
        description="Labels predicted by small students that were trained on a large model's rationales.",
    )
