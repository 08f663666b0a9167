"""The application of the score service."""

from functools import partial
from pathlib import Path

from fastapi import FastAPI
from pydantic import SecretStr

from services.core.images.inputs import image_inputs
from services.core.openai_client import Endpoint
from services.core.serving.model_service import ModelService
from services.nn.devices import DeviceOptions, parameter_bytes
from services.nn.plain_clip import OPEN_CLIP_KIND
from services.score.engine import ModelFacts, ScoreEngine
from services.score.http.routes import negatives_router, score_models_router, score_router
from services.score.model.checkpoint import FSC_CLIP_KIND
from services.score.negatives.hard_negatives import installed_hard_negatives
from services.score.negatives.negative_maker import NegativeMaker, NegativeWriter
from services.score.second_opinion import SecondOpinion
from services.score.service import ScoreBatchers, Scorer, ScoreService
from services.score.settings import ScoreSettings


def create_score(settings: ScoreSettings) -> FastAPI:
    """Create the application. It does not access the store until it is started."""
    host = ModelService("score", settings)
    options = DeviceOptions(settings.device, settings.dtype, settings.num_threads, settings.memory_share)

    def load(folder: Path) -> ScoreEngine:
        return ScoreEngine.load(folder, options)

    def load_plain(folder: Path) -> ScoreEngine:
        return ScoreEngine.load_plain(folder, options)

    def make_batchers(engine: ScoreEngine) -> ScoreBatchers:
        return ScoreBatchers(host.batcher(engine), host.batcher(engine), host.batcher(engine.pairing))

    models = host.follow(
        {FSC_CLIP_KIND: load, OPEN_CLIP_KIND: load_plain},
        make_batcher=make_batchers,
        measure=partial(parameter_bytes, options=options),
        describe=ModelFacts.of,
    )
    inputs = image_inputs(settings, settings.image_limits, host.metrics)
    scorer = Scorer(host.open_cache(), inputs, host.metrics, max_heatmap_numbers=settings.max_heatmap_numbers)
    negatives = NegativeMaker(partial(installed_hard_negatives, settings.wordnet_dir), metrics=host.metrics)
    writer = second = None
    if settings.teacher_url is not None and settings.teacher_model is not None:
        teacher = _endpoint(settings.teacher_url, settings.teacher_key)
        writer = NegativeWriter(teacher, settings.teacher_model, settings, host.metrics)
    if settings.vqa_url is not None and settings.vqa_model is not None:
        judge = _endpoint(settings.vqa_url, settings.vqa_key)
        second = SecondOpinion(judge, settings.vqa_model, inputs, settings, host.metrics)
    service = ScoreService(models, scorer, negatives, settings, host.metrics, writer, second)
    return host.create_app(
        models,
        [score_router(service), negatives_router(service), score_models_router(service)],
        title="Fovea score",
        description="Scores of an image's captions, heatmaps of their words, and hard negatives.",
        resources=[negatives.opened, lambda: inputs, *(one.opened for one in (writer, second) if one is not None)],
        warm_up=[negatives.start],
    )


def _endpoint(url: str, key: SecretStr | None) -> Endpoint:
    return Endpoint(url, key=None if key is None else key.get_secret_value())
