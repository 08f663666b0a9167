"""What all routes of the predict service share: which model answers, and one way to ask it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from services.core.batching.batcher import Batcher, Submission
from services.core.batching.slices import in_slices
from services.core.errors import InvalidField, InvalidRequest, NotFound, Overloaded
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import LOADING_RETRY_AFTER_S, Served
from services.predict.engine import Item, PredictEngine, Prediction
from services.predict.model.task_description import TaskDescription
from services.predict.residency import Residency, Resident

T = TypeVar("T")

PredictBatcher = Batcher[Item, Prediction]
ServedPredict = Served[PredictEngine, PredictBatcher]

# Fewer characters than this are tokenised in less time than waking a thread takes.
MAX_INLINE_CHARACTERS = 2048
# What a thread prepares at a time; between two of them a request may be given up.
PREPARED_AT_ONCE = 128


@dataclass(frozen=True)
class PredictService:
    """The parts that every route needs. `max_inputs` is what one request may hold."""

    residency: Residency[PredictEngine]
    max_inputs: int
    metrics: Metrics

    def described(self) -> list[tuple[Resident[PredictEngine], TaskDescription]]:
        """The models that have served, in memory or not. Raises Overloaded before the first has."""
        known = [(one, one.description) for one in self.residency.residents if one.description is not None]
        if not known:
            raise self._loading()
        return known

    def choose(self, task: str | None, model: str | None) -> Resident[PredictEngine]:
        """The model that answers a task.

        Raises NotFound for a task or model that does not exist, InvalidRequest for a model that has another task,
        InvalidField where several would fit, Overloaded where it may be one that is being loaded.
        """
        known = self.described()
        if model is not None:
            known = [(one, description) for one, description in known if model in names_of(one)]
            if not known:
                raise self._missing(f"There is no model {model!r}, only {_listed(self._model_names())}.", "model")
        if task is not None:
            fitting = [one for one in known if task == one[1].task or task in names_of(one[0])]
            if not fitting and model is not None:
                raise InvalidRequest(f"task: {model!r} has another task: {known[0][1].task!r}.", param="task")
            if not fitting:
                raise self._missing(f"There is no task {task!r}, only {_listed(self._tasks())}.", "task")
            known = fitting
        if len(known) > 1 and task is None:
            raise InvalidField(f"task: It must be one of {_listed(self._tasks())}.", param="task")
        if len(known) > 1:
            names = _listed([one.checkpoint.name for one, _ in known])
            raise InvalidField(f"model: Several models have the task {task!r}: {names}.", param="model")
        return known[0][0]

    @asynccontextmanager
    async def lease(
        self, request: Request, resident: Resident[PredictEngine], model: str | None
    ) -> AsyncIterator[ServedPredict]:
        """The version that answers this request, whose name goes into the response's headers.

        Raises what `Residency.lease` raises, and NotFound where `model` is a version that was replaced meanwhile.
        """
        began = time.perf_counter()
        was_loaded = resident.checkpoint.is_loaded
        async with self.residency.lease(resident, request.state.deadline) as served:
            if not was_loaded:
                request.state.timing.add("load", time.perf_counter() - began)
            request.state.model = f"{served.name}@{served.version}"
            resident.checkpoint.check_model(served, model)
            yield served

    async def prepare(
        self, request: Request, inputs: Sequence[T], num_characters: int, prepare: Callable[[int, T], Item]
    ) -> list[Item]:
        """What `prepare` makes of each input and its place; in a thread, so that the event loop serves others."""

        def prepare_from(start: int, num: int) -> list[Item]:
            return [prepare(place, one) for place, one in enumerate(inputs[start : start + num], start)]

        began = time.perf_counter()
        if num_characters <= MAX_INLINE_CHARACTERS:
            items = prepare_from(0, len(inputs))
        else:
            items = []
            for start in range(0, len(inputs), PREPARED_AT_ONCE):
                items += await asyncio.to_thread(prepare_from, start, PREPARED_AT_ONCE)
        seconds = time.perf_counter() - began
        self.metrics.stage_seconds.labels("tokenize").observe(seconds)
        request.state.timing.add("tokenize", seconds)
        return items

    async def run(self, request: Request, served: ServedPredict, items: Sequence[Item]) -> list[Prediction]:
        """A prediction of each item. Raises what `Batcher.submit` raises.

        Many items are submitted a few batches at a time, so that the largest request takes no more of the queue than
        a few small ones and shares the device with them.
        """
        began = time.perf_counter()
        queue_s: list[float] = []

        async def submit(some: Sequence[Item]) -> list[Prediction]:
            costs = [served.engine.cost(item) for item in some]
            submissions = [Submission(item, cost, item.prompt_tokens) for item, cost in zip(some, costs, strict=True)]
            answers = await served.batcher.submit(submissions, deadline=request.state.deadline)
            queue_s.append(min(answer.queue_s for answer in answers))
            return [answer.result for answer in answers]

        predictions = [one for some in await in_slices(items, submit) for one in some]
        waited_s = min(queue_s)  # until the first batch
        request.state.timing.add("queue", waited_s)
        request.state.timing.add("infer", time.perf_counter() - began - waited_s)
        self.metrics.prompt_tokens.inc(sum(one.prompt_tokens for one in predictions))
        return predictions

    def _missing(self, message: str, param: str) -> NotFound | Overloaded:
        """What to raise for a name that nobody has, unless it may be one that is being loaded."""
        if any(one.description is None for one in self.residency.residents):
            return self._loading()
        return NotFound(message, param=param, code=f"{param}_not_found")

    def _loading(self) -> Overloaded:
        self.metrics.rejected.labels("loading").inc()
        return Overloaded("No checkpoint is loaded yet.", code="loading", retry_after_s=LOADING_RETRY_AFTER_S)

    def _tasks(self) -> list[str]:
        return [description.task for _, description in self.described()]

    def _model_names(self) -> list[str]:
        return [one.checkpoint.name for one in self.residency.residents]


def version_name(resident: Resident[PredictEngine]) -> str:
    """`name@version` of a model that has served."""
    manifest = resident.checkpoint.manifest
    assert manifest is not None, "what is described has a version"
    return f"{manifest.name}@{manifest.version}"


def names_of(resident: Resident[PredictEngine]) -> tuple[str, ...]:
    checkpoint = resident.checkpoint
    return (checkpoint.name, f"{checkpoint.name}@{checkpoint.alias}", version_name(resident))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, dict.fromkeys(names)))
