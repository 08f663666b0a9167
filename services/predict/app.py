"""The application of the predict service."""

from functools import partial

from fastapi import FastAPI

from services.core.http.decisions import decisions_router
from services.core.serving.model_service import ModelService
from services.nn.devices import DeviceOptions
from services.predict.engine import PredictEngine
from services.predict.http.decisions import decide
from services.predict.http.routes import predict_models_router, predict_router
from services.predict.model.student import held_bytes
from services.predict.service import PredictService
from services.predict.settings import PredictSettings

CHECKPOINT_KIND = "t5-student"


def create_predict(settings: PredictSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("predict", settings)
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads, settings.memory_share)

    models = host.follow(
        {CHECKPOINT_KIND: partial(PredictEngine.load, options=options, is_int8=settings.int8)},
        make_batcher=host.batcher,
        measure=partial(held_bytes, options=options, is_int8=settings.int8),
        describe=lambda engine: engine.description,
    )
    service = PredictService(models, settings.max_inputs, host.metrics)
    return host.create_app(
        models,
        [
            predict_router(service),
            decisions_router(partial(decide, service), hands_over=True),
            predict_models_router(service),
        ],
        title="Fovea predict",
        description="Labels predicted by small students that were trained on a large model's rationales.",
    )
