"""The application of the score service."""

from functools import partial
from pathlib import Path

from fastapi import FastAPI

from services.core.http.decisions import decisions_router
from services.core.images.inputs import ImageInputs, image_inputs
from services.core.metrics import Metrics
from services.core.openai_client import Endpoint
from services.core.serving.model_service import ModelService
from services.nn.devices import DeviceOptions, parameter_bytes
from services.nn.plain_clip import OPEN_CLIP_KIND
from services.score.call import CallLimits
from services.score.engine import ModelFacts, ScoreEngine
from services.score.http.decisions import decide
from services.score.http.routes import negatives_router, score_models_router, score_router
from services.score.model.checkpoint import FSC_CLIP_KIND
from services.score.negatives.hard_negatives import installed_hard_negatives
from services.score.negatives.negative_maker import NegativeMaker, NegativeWriter
from services.score.second_opinion import OpinionLimits, SecondOpinion
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
    limits = CallLimits(**settings.model_dump(include=set(CallLimits.__dataclass_fields__)))
    inputs = image_inputs(settings, limits.images, host.metrics)
    scorer = Scorer(host.open_cache(), inputs, host.metrics, max_heatmap_numbers=limits.max_heatmap_numbers)
    negatives = NegativeMaker(partial(installed_hard_negatives, settings.wordnet_dir), metrics=host.metrics)
    writer = _negative_writer(settings, host.metrics)
    second = _second_opinion(settings, inputs, host.metrics)
    service = ScoreService(models, scorer, negatives, limits, host.metrics, writer, second)
    return host.create_app(
        models,
        [
            score_router(service),
            decisions_router(partial(decide, service)),
            negatives_router(service),
            score_models_router(service),
        ],
        title="Fovea score",
        description="Scores of an image's captions, heatmaps of their words, and hard negatives.",
        resources=[negatives.opened, lambda: inputs, *(one.opened for one in (writer, second) if one is not None)],
        warm_up=[negatives.start],
    )


def _negative_writer(settings: ScoreSettings, metrics: Metrics) -> NegativeWriter | None:
    """Make the writer with the configured teacher, if there is one."""
    if settings.teacher_url is None or settings.teacher_model is None:
        return None
    key = None if settings.teacher_key is None else settings.teacher_key.get_secret_value()
    return NegativeWriter(
        Endpoint(settings.teacher_url, key=key),
        settings.teacher_model,
        timeout_s=settings.teacher_timeout_s,
        concurrency=settings.teacher_concurrency,
        metrics=metrics,
    )


def _second_opinion(settings: ScoreSettings, inputs: ImageInputs, metrics: Metrics) -> SecondOpinion | None:
    """Make the client of the configured vision-language model, if there is one."""
    if settings.vqa_url is None or settings.vqa_model is None:
        return None
    key = None if settings.vqa_key is None else settings.vqa_key.get_secret_value()
    return SecondOpinion(
        Endpoint(settings.vqa_url, key=key),
        settings.vqa_model,
        inputs,
        OpinionLimits(settings.vqa_timeout_s, settings.vqa_concurrency, settings.vqa_image_side),
        metrics,
    )
