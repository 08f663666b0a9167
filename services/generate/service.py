"""What all routes of the generate service share: the checkpoint that answers, and one way to ask it."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from fastapi import Request

from services.core.batching.step_queue import Event, Stream
from services.core.batching.stepper import Stepper
from services.core.caller import current_caller
from services.core.metrics import Metrics
from services.core.serving.served_checkpoint import Served, ServedCheckpoint
from services.generate.engine import GenerateEngine, Item, Outcome
from services.generate.generation.ranking import Ranking
from services.generate.generation.running_batch import Generation, Progress, PromptFacts
from services.generate.prompts.abandonment import in_thread
from services.generate.prompts.ranking import RankingJob

T = TypeVar("T")

GenerateStepper = Stepper[Item, Outcome]
ServedGenerate = Served[GenerateEngine, GenerateStepper]


@dataclass(frozen=True)
class CallLimits:
    """What one request may hold or ask for; what is over is refused, naming limit and value.

    `max_waiting` answers and `max_queue_cost` tokens are what an empty queue takes.
    """

    max_documents: int = 256
    max_tokens: int = 2048
    max_choices: int = 16
    max_waiting: int = 1024
    max_queue_cost: int = 262_144


@dataclass(frozen=True)
class GenerateService:
    """The parts that every route needs. A route leases the checkpoint once and keeps the lease until it has answered:

    with service.lease(request, model) as served:
        generation = await service.prepare(request, lambda: served.engine.prepare_…(…))
        async with aclosing(service.run(request, served, generation)) as steps:
            async for progress in steps: …
    """

    checkpoint: ServedCheckpoint[GenerateEngine, GenerateStepper]
    limits: CallLimits
    metrics: Metrics

    @contextmanager
    def lease(self, request: Request, model: str | None) -> Iterator[ServedGenerate]:
        """The version that answers this request, whose name goes into the response's headers.

        Raises NotFound for a model that is not the served one, Overloaded while there is none, and where the request
        would wait too long: nothing was done for it then.
        """
        with self.checkpoint.lease() as served:
            request.state.model = f"{served.name}@{served.version}"
            self.checkpoint.check_model(served, model)
            served.batcher.check_wait(request.state.deadline)
            yield served

    async def prepare(self, request: Request, work: Callable[[], T]) -> T:
        """Tokenise in a thread, so that the event loop serves others meanwhile; a cancelled request ends there, too."""
        began = asyncio.get_running_loop().time()
        prepared = await in_thread(work)
        seconds = asyncio.get_running_loop().time() - began
        self.metrics.stage_seconds.labels("tokenize").observe(seconds)
        request.state.timing.add("tokenize", seconds)
        return prepared

    async def run(
        self,
        request: Request,
        served: ServedGenerate,
        generation: Generation,
        *,
        cost: int | None = None,
        is_timed: bool = True,
    ) -> AsyncGenerator[Progress, None]:
        """The steps of one answer until its last; closing it frees the answer's place within one step.

        Submits at the first step, for the engine's cost of the generation where none is given. `is_timed` adds to the
        request's `Server-Timing`, which of several answers at the same time only one must do. Raises what
        `Stepper.submit` and its streams raise.
        """
        previous: Event[Outcome] | None = None
        num_tokens = 0
        async with aclosing(self._submit(request, served, generation, cost)) as stream:
            async for event in stream:
                progress = event.value
                assert isinstance(progress, Progress), "a generation is answered in steps"
                if is_timed:
                    _add_timing(request, event, previous)
                self._measure(event, previous, progress.num_tokens - num_tokens)
                if progress.facts is not None:
                    self._measure_prompt(progress.facts)
                previous, num_tokens = event, progress.num_tokens
                yield progress

    async def rank(self, request: Request, served: ServedGenerate, job: RankingJob) -> Ranking:
        """How relevant a job's documents are. Raises what `Stepper.submit` and its streams raise."""
        async with aclosing(self._submit(request, served, job)) as stream:
            event = await anext(stream)
        assert isinstance(event.value, Ranking), "a ranking is answered at once"
        _add_timing(request, event, None)
        self.metrics.prompt_tokens.inc(event.value.prompt_tokens)
        return event.value

    def _submit(self, request: Request, served: ServedGenerate, item: Item, cost: int | None = None) -> Stream[Outcome]:
        if isinstance(item, Generation):
            item = replace(item, tenant=current_caller().tenant)
        charged = served.engine.cost(item) if cost is None else cost
        return served.batcher.submit(item, cost=charged, deadline=request.state.deadline)

    def _measure(self, event: Event[Outcome], previous: Event[Outcome] | None, num_new_tokens: int) -> None:
        if previous is None:
            self.metrics.time_to_first_token_seconds.observe(event.elapsed_s)
        else:
            self.metrics.inter_token_latency_seconds.observe(event.elapsed_s - previous.elapsed_s)
        self.metrics.generated_tokens.inc(num_new_tokens)

    def _measure_prompt(self, facts: PromptFacts) -> None:
        self.metrics.prompt_tokens.inc(facts.prompt_tokens)
        self.metrics.cached_prompt_tokens.inc(facts.cached_tokens)
        self.metrics.calibration_passes.inc(facts.calibration_passes)


def _add_timing(request: Request, event: Event[Outcome], previous: Event[Outcome] | None) -> None:
    """What came since the event before it. Once a stream's head is sent, nobody reads it any more but the log."""
    if previous is None:
        request.state.timing.add("queue", event.queue_s)
    request.state.timing.add("infer", event.elapsed_s - (previous.elapsed_s if previous else event.queue_s))
