"""Predictions by the model that fits a request: inputs with the fields of a task, or bare texts to classify."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeVar

from services.core.batching.batcher import Batcher, Submission
from services.core.batching.slices import map_slices
from services.core.errors import InvalidField, InvalidRequest, NotFound, TooLarge, check_count
from services.core.exchange import RequestContext
from services.core.fair_threads import FairThreads
from services.core.metrics import Metrics
from services.core.refusals import did_you_mean
from services.core.serving.served_checkpoint import Served
from services.core.serving.served_models import Resident, ServedModels
from services.core.store.manifest import Manifest
from services.predict.engine import Item, PredictEngine, Prediction
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import FieldValue

T = TypeVar("T")

PredictBatcher = Batcher[Item, Prediction]
ServedPredict = Served[PredictEngine, PredictBatcher]
TaskModel = Resident[PredictEngine, TaskDescription]
TaskModels = ServedModels[PredictEngine, TaskDescription]
# An input of a task, and the field of the request that it comes from.
NamedInput = tuple[Mapping[str, FieldValue], str]
Side = Literal["left", "right"]

# Tokenising fewer characters than this takes less time than waking a thread.
MAX_INLINE_CHARACTERS = 2048
# Inputs that a thread prepares at once; a request can be abandoned between two such pieces. While several clients are
# active, one piece is prepared at a time, since preparing holds Python's lock; the requests of a client that is alone
# are prepared beside each other, so that they share batches.
SHARED_PIECE, LONE_PIECE, NUM_THREADS = 16, 64, 2


@dataclass(frozen=True)
class Predicted:
    """Predictions in the order of the inputs; `model` is the `name@version` that made them."""

    model: str
    task: str
    predictions: list[Prediction]


@dataclass(frozen=True)
class PredictService:
    """Answers requests of at most `max_inputs` inputs, of which `threads` prepare long ones."""

    models: TaskModels
    max_inputs: int
    metrics: Metrics
    threads: FairThreads = field(default_factory=partial(FairThreads, NUM_THREADS, "prepare"))

    async def predict(
        self,
        inputs: Sequence[Mapping[str, FieldValue]],
        context: RequestContext,
        *,
        task: str | None,
        model: str | None,
        rationale: bool,
    ) -> Predicted:
        """Label the inputs of a task. `task` and `model` may be None if only one fits."""
        resident = await self._choose(task, model)
        num_characters = sum(map(_num_characters, inputs))

        def prepare(engine: PredictEngine, index: int, fields: Mapping[str, FieldValue]) -> Item:
            return engine.prepare(fields, rationale=rationale, param=f"inputs.{index}")

        async with self.models.hold(resident, context, asked=model) as served:
            return await self._answer(served, inputs, num_characters, partial(prepare, served.engine), context)

    async def label(
        self,
        model: str,
        inputs_of: Callable[[TaskDescription, Manifest], Sequence[NamedInput]],
        context: RequestContext,
    ) -> Predicted:
        """Label the inputs that `inputs_of` makes for the model's task."""

        def prepare(engine: PredictEngine, index: int, one: NamedInput) -> Item:
            return engine.prepare(one[0], param=one[1])

        async with self.models.lease(model, context) as served:
            inputs = inputs_of(served.engine.description, served.manifest)
            check_count("questions", len(inputs), self.max_inputs, "different sets of choices")
            num_characters = sum(_num_characters(fields) for fields, _ in inputs)
            return await self._answer(served, inputs, num_characters, partial(prepare, served.engine), context)

    async def fields_of(self, task: str | None, model: str | None) -> Sequence[str]:
        """The fields of a task's inputs. Raises what `_choose` raises."""
        description = (await self._choose(task, model)).description
        return description.fields if description is not None else ()

    async def classify(
        self, inputs: Sequence[Sequence[str]], context: RequestContext, *, model: str | None, cut: Side | None
    ) -> Predicted:
        """Label bare texts. Those that are too long lose tokens at the side `cut`, or are rejected if it is None.

        Without `model`, uses the first task with labels and as many fields as an input has texts. Raises InvalidField.
        """
        resident = await self._choose_classifier(len(inputs[0]), model)
        num_characters = sum(len(text) for texts in inputs for text in texts)

        def prepare(engine: PredictEngine, index: int, texts: Sequence[str]) -> Item:
            fields = _fields_of(engine.description, texts, f"inputs.{index}")
            if cut is None:
                return engine.prepare(fields, param=f"inputs.{index}")
            return prepare_cut(engine, fields, cut, f"inputs.{index}")

        async with self.models.hold(resident, context, asked=model) as served:
            return await self._answer(served, inputs, num_characters, partial(prepare, served.engine), context)

    async def _choose(self, task: str | None, model: str | None) -> TaskModel:
        """Choose the model that answers a task. Raises NotFound, InvalidRequest, InvalidField and Overloaded."""
        named = None if model is None else await self.models.find(model)
        known = self.models.described()
        if named is not None:
            known = [(one, description) for one, description in known if one is named]
            if not known:
                raise named.checkpoint.not_loaded()
        if task is not None:
            fitting = [one for one in known if _has_task(one, task)]
            if not fitting and model is not None:
                owners = _listed([one[0].checkpoint.name for one in self.models.described() if _has_task(one, task)])
                told = f"The model {model!r} has the task {known[0][1].task!r}, not {task!r}"
                hint = f"; models that have it: {owners}" if owners else ""
                raise InvalidRequest(f"task: {told}{hint}.", param="task")
            if not fitting:
                self.models.check_arrived(task)
                tasks = self._tasks()
                message = f"There is no task {task!r}; available: {_listed(tasks)}{did_you_mean(task, tasks) or '.'}"
                raise NotFound(message, param="task", code="task_not_found")
            known = fitting
        if task is None and len({description.task for _, description in known}) > 1:
            raise InvalidField(f"task: It must be one of {_listed(self._tasks())}.", param="task")
        return _only(known)

    async def _choose_classifier(self, num_texts: int, model: str | None) -> TaskModel:
        if model is not None:
            return await self.models.find(model)
        fitting = [one for one in self.models.described() if one[1].labels and len(one[1].fields) == num_texts]
        if not fitting:
            what = "one text" if num_texts == 1 else "two texts"
            raise InvalidField(f"inputs: No model predicts labels for {what}.", param="inputs")
        return _only([one for one in fitting if one[1].task == fitting[0][1].task])

    async def _answer(
        self,
        served: ServedPredict,
        inputs: Sequence[T],
        num_characters: int,
        prepare: Callable[[int, T], Item],
        context: RequestContext,
    ) -> Predicted:
        """Predict the items that `prepare` makes from the inputs and their indices.

        Prepares long texts in a thread, so that the event loop can serve other requests.
        """

        def prepare_from(start: int, num: int) -> list[Item]:
            return [prepare(index, one) for index, one in enumerate(inputs[start : start + num], start)]

        began = time.perf_counter()
        if num_characters <= MAX_INLINE_CHARACTERS:
            items = prepare_from(0, len(inputs))
        else:
            items = []
            while len(items) < len(inputs):
                num, num_threads = (SHARED_PIECE, NUM_THREADS) if served.batcher.is_shared else (LONE_PIECE, 1)
                items += await self.threads.run(partial(prepare_from, len(items), num), num_threads)
        seconds = time.perf_counter() - began
        self.metrics.stage_seconds.labels("tokenize").observe(seconds)
        context.timing.add("tokenize", seconds)
        return Predicted(served.label, served.engine.description.task, await self._run(served, items, context))

    async def _run(self, served: ServedPredict, items: Sequence[Item], context: RequestContext) -> list[Prediction]:
        """Predict each item. Raises what `Batcher.submit` raises.

        Many items are submitted a few batches at a time, so that a large request takes no more of the queue than a few
        small ones and shares the device with them.
        """
        began = time.perf_counter()
        queue_s: list[float] = []

        async def submit(some: Sequence[Item]) -> list[Prediction]:
            costs = [served.engine.cost(item) for item in some]
            submissions = [Submission(item, cost, item.prompt_tokens) for item, cost in zip(some, costs, strict=True)]
            answers = await served.batcher.submit(submissions, deadline=context.deadline)
            queue_s.append(min(answer.queue_s for answer in answers))
            return [answer.result for answer in answers]

        predictions = [one for some in await map_slices(items, submit) for one in some]
        waited_s = min(queue_s)  # until the first batch
        context.timing.add("queue", waited_s)
        context.timing.add("infer", time.perf_counter() - began - waited_s)
        prompt_tokens = sum(one.prompt_tokens for one in predictions)
        self.metrics.prompt_tokens.inc(prompt_tokens)
        context.usage.input_tokens += prompt_tokens
        context.usage.output_tokens += sum(one.completion_tokens for one in predictions)
        return predictions

    def _tasks(self) -> list[str]:
        return [description.task for _, description in self.models.described()]


def _num_characters(fields: Mapping[str, FieldValue]) -> int:
    return sum(len(value) if isinstance(value, str) else sum(map(len, value)) for value in fields.values())


def _has_task(known: tuple[TaskModel, TaskDescription], task: str) -> bool:
    """Whether a model is meant by the name of its task, or by its own in place of it."""
    return task == known[1].task or task in known[0].checkpoint.names


def _only(models: Sequence[tuple[TaskModel, TaskDescription]]) -> TaskModel:
    """Return the only model of a task. Raises InvalidField if there are several."""
    if len(models) > 1:
        told = f"Several models have the task {models[0][1].task!r}"
        names = _listed([one.checkpoint.name for one, _ in models])
        raise InvalidField(f"model: {told}; name the one that should answer: {names}.", param="model")
    return models[0][0]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, dict.fromkeys(names)))


def _fields_of(description: TaskDescription, texts: Sequence[str], param: str) -> dict[str, str]:
    """Assign an input's texts to fields. Raises InvalidField if the model has no labels or another number of fields."""
    names = description.fields
    if description.labels is None or len(names) != len(texts):
        what = "no labels, and" if description.labels is None else "labels for"
        raise InvalidField(f"{param}: {description.task} has {what} {len(names)} texts, not {len(texts)}.", param=param)
    return dict(zip(names, texts, strict=True))


def prepare_cut(engine: PredictEngine, fields: Mapping[str, str], side: Side, param: str) -> Item:
    """Prepare an input whose texts are cut to the model's limit at this side, the longer text first.

    Raises what `PredictEngine.prepare` raises, but TooLarge only if no text is left to cut.
    """
    limit = engine.description.max_input_tokens
    num_characters = limit * engine.max_token_characters  # more can't fit, and would be slow to tokenise
    texts = {
        name: text[:num_characters] if side == "right" else text[-num_characters:] for name, text in fields.items()
    }
    too_many = 0
    while True:
        try:
            return engine.prepare(texts, param=param, may_be_empty=bool(too_many))
        except TooLarge:
            if not any(texts.values()):
                raise
        around = engine.prepare(dict.fromkeys(texts, ""), param=param, may_be_empty=True).prompt_tokens
        texts = _cut(engine.tokenizer, texts, max(0, limit - around - too_many), side)
        too_many = 2 * too_many + 1  # joined texts may take a few tokens more than separate ones


def _cut(tokenizer: Any, texts: Mapping[str, str], max_tokens: int, side: Side) -> dict[str, str]:
    """Cut texts to a total of `max_tokens`."""
    offsets = {
        name: tokenizer(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
        for name, text in texts.items()
    }
    kept = {name: len(spans) for name, spans in offsets.items()}
    while sum(kept.values()) > max_tokens:
        kept[max(kept, key=lambda name: kept[name])] -= 1
    return {name: _part(text, offsets[name], kept[name], side) for name, text in texts.items()}


def _part(text: str, spans: list[tuple[int, int]], num_kept: int, side: Side) -> str:
    """The first `num_kept` tokens of a text, or if the left side is cut, the last."""
    if num_kept >= len(spans):
        return text
    if num_kept == 0:
        return ""
    return text[: spans[num_kept][0]] if side == "right" else text[spans[-num_kept][0] :]
