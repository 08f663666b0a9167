"""The running batch of a Stepper, on the compute thread: who joins, who leaves, and what each step brought.

Only the items at fault fail: an `admit` that raises is tried again item by item. A `step` that raises fails all that
run, since nobody knows what it left behind, and the service goes on with those that wait. A `prepare` that raises
fails those whom it was for.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

import structlog

from services.core.batch_run import CostBudget
from services.core.errors import FoveaError, InternalError, TooLarge, no_memory
from services.core.metrics import Metrics
from services.core.step_queue import Event, StepQueue, Throughput, Work

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")
EventT_co = TypeVar("EventT_co", covariant=True)

# What a turn brought for an item: an event of it, or the error that ends it.
Outcome = tuple[Work[ItemT, EventT], Event[EventT] | FoveaError]


class SteppingEngine(Protocol[ItemT, EventT_co]):
    """What a Stepper runs, on the compute thread only. Items are told apart by identity.

    An event is (item, event, whether it is that item's last). Once its last event was given, an item holds nothing.
    """

    @property
    def num_running(self) -> int:
        """Items that were admitted and whose last event was not given yet."""

    def has_room(self, items: Sequence[ItemT]) -> bool:
        """Whether all of these could be admitted now, together; computes nothing."""

    def admit(self, items: Sequence[ItemT]) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Let these run from now on; returns what they bring at once. A FoveaError is shown to the client.

        What would keep the thread for long is left to `prepare`.
        """

    def step(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """One step for every running item that is prepared."""

    @property
    def preparing(self) -> Sequence[ItemT]:
        """Running items that the next `prepare` is for; none where nothing is to be prepared."""

    def prepare(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """A bounded piece of the work that these need ahead of their steps. A FoveaError is shown to their clients."""

    def cancel(self, item: ItemT) -> None:
        """Free now what the item holds, if anything: it is also called for every item of an `admit` that raised."""


class LostItems(Exception):
    """The engine runs nothing, and items have had no last event."""


class StepRunner(Generic[ItemT, EventT]):
    """Takes turns on the thread that calls it; `running` holds what the engine does, by the identity of the items.

    `budget` bounds what one turn admits; an `admit` that runs out of memory lowers it.
    """

    def __init__(
        self,
        engine: SteppingEngine[ItemT, EventT],
        queue: StepQueue[ItemT, EventT],
        budget: CostBudget,
        metrics: Metrics,
        is_out_of_memory: Callable[[BaseException], bool],
    ) -> None:
        self.running: dict[int, Work[ItemT, EventT]] = {}
        self.throughput = Throughput()
        self._engine = engine
        self._queue = queue
        self._budget = budget
        self._metrics = metrics
        self._is_out_of_memory = is_out_of_memory
        self._finished_cost = 0
        # Set where an item alone ran out of memory: no other is tried before one of those that run has left.
        self._waits_for_memory = False
        self._log = structlog.get_logger(__name__)
        metrics.batch_cost_budget.set(budget.current)

    def take_turn(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """Drop, admit, step and prepare; yields what each of them brought as soon as it is known.

        Raises what `cancel` raises after a step that failed: what the engine holds is unknown then, and the thread
        is to end.
        """
        began = time.monotonic()
        self._finished_cost = 0
        try:
            self._drop_unwanted()
            yield from self._admit_waiting()
            yield from self._step()
            yield from self._prepare()
            if self.running and not self._engine.num_running:
                raise LostItems(f"{len(self.running)} items had no last event")
        except Exception as error:  # noqa: BLE001 - the step loop: whatever an engine raises, its items are answered
            yield self._fail_running(error)
        self.throughput.note(self._finished_cost, time.monotonic() - began)

    # Joining

    def _admit_waiting(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        chosen: list[Work[ItemT, EventT]] = []
        cost = 0
        while (work := self._oldest_wanted()) is not None:
            if chosen and cost + work.cost > self._budget.current:
                break
            try:
                has_room = self._has_room([*chosen, work])
            except Exception as error:  # noqa: BLE001 - the step loop: an item that can't even be looked at fails alone
                self._note_refusal([work], error)
                if self._queue.discard(work):
                    yield [(work, self._error_for_client(error))]
                continue
            if not has_room and (chosen or self.running):
                break
            if self._queue.discard(work):
                if has_room:
                    chosen.append(work)
                    cost += work.cost
                else:
                    yield [(work, TooLarge("The request needs more room than the service has when it is empty."))]
        if chosen:
            yield from self._admit(chosen)

    def _oldest_wanted(self) -> Work[ItemT, EventT] | None:
        now = time.monotonic()
        while (work := self._queue.oldest()) is not None and not work.is_wanted(now):
            self._queue.discard(work)  # the event loop tells whoever reads its stream
        return work

    def _has_room(self, works: Sequence[Work[ItemT, EventT]]) -> bool:
        return not self._waits_for_memory and self._engine.has_room([work.item for work in works])

    def _admit(self, works: list[Work[ItemT, EventT]]) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """All together or, where that fails, one by one; those for which there is no room after all wait in front."""
        came: list[Outcome[ItemT, EventT]] | Exception | None = self._attempt(works)
        if isinstance(came, list):
            yield came
            return
        left = deque(works)
        if len(works) > 1:
            came = None
        try:
            while left:
                if came is None:
                    if not left[0].is_wanted(time.monotonic()):
                        left.popleft()
                        continue
                    if not self._has_room([left[0]]):
                        break
                    came = self._attempt([left[0]])
                if isinstance(came, list):
                    yield came
                elif self._must_wait(came):
                    break
                else:
                    yield [(left[0], self._error_for_client(came))]
                left.popleft()
                came = None
        finally:
            for work in reversed(left):
                self._queue.put_back(work)

    def _attempt(self, works: list[Work[ItemT, EventT]]) -> list[Outcome[ItemT, EventT]] | Exception:
        """What these brought; or why they were not admitted, and they hold nothing then."""
        began = time.monotonic()
        for work in works:
            work.began_at = began
            self.running[id(work.item)] = work
            self._metrics.running_items.inc()
        try:
            came = self._engine.admit([work.item for work in works])
        except Exception as error:  # noqa: BLE001 - the step loop: whatever an engine raises, its items are answered
            self._note_refusal(works, error)
            self._cancel(works)
            # Its traceback would keep the prompts in memory until the client is answered.
            return error.with_traceback(None)
        self._budget.recover(sum(work.cost for work in works))
        self._metrics.batch_cost_budget.set(self._budget.current)
        return self._outcomes(came)

    def _must_wait(self, error: Exception) -> bool:
        """Whether an item that failed alone is to be tried again, once one of those that run has left."""
        self._waits_for_memory = bool(self.running) and self._is_out_of_memory(error)
        return self._waits_for_memory

    def _note_refusal(self, works: list[Work[ItemT, EventT]], error: Exception) -> None:
        if self._is_out_of_memory(error):
            self._metrics.out_of_memory.inc()
            if len(works) > 1:
                self._budget.shrink(sum(work.cost for work in works))
                self._metrics.batch_cost_budget.set(self._budget.current)
        # What the client is told is no news to the log, and several items are tried again, each on its own.
        if len(works) == 1 and not isinstance(error, FoveaError):
            self._log.error("item failed", num_running=len(self.running), exc_info=error)

    # Running

    def _step(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        if self.running:
            yield self._outcomes(self._engine.step())

    def _prepare(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """One piece. Those at fault fail, or wait in front of all others until there is memory for them."""
        preparing = [self.running[id(item)] for item in self._engine.preparing]
        if not preparing:
            return
        try:
            came = self._engine.prepare()
        except Exception as error:  # noqa: BLE001 - the step loop: whatever an engine raises, its items are answered
            self._note_refusal(preparing[:1], error)
            self._cancel(preparing)
            if self._must_wait(error):
                for work in reversed(preparing):
                    self._queue.put_back(work)
            else:
                reason = error.with_traceback(None)
                yield [(work, self._error_for_client(reason)) for work in preparing]
            return
        yield self._outcomes(came)

    def _outcomes(self, came: Sequence[tuple[ItemT, EventT, bool]]) -> list[Outcome[ItemT, EventT]]:
        now = time.monotonic()
        outcomes: list[tuple[Work[ItemT, EventT], Event[EventT]]] = []
        for item, value, is_last in came:
            work = self.running.get(id(item))
            if work is None:
                self._log.error("event of an item that does not run")
                continue
            queued_at = work.call.queued_at
            outcomes.append((work, Event(value, is_last, work.began_at - queued_at, now - queued_at)))
        for work, event in outcomes:
            if event.is_last:
                self._finished_cost += work.cost
                self._remove(work)
        return list(outcomes)

    # Leaving

    def _drop_unwanted(self) -> None:
        now = time.monotonic()
        self._cancel([work for work in self.running.values() if not work.is_wanted(now)])

    def _cancel(self, works: Sequence[Work[ItemT, EventT]]) -> None:
        for work in works:
            self._engine.cancel(work.item)
        for work in works:
            self._remove(work)

    def _remove(self, work: Work[ItemT, EventT]) -> None:
        del self.running[id(work.item)]
        self._metrics.running_items.dec()
        self._waits_for_memory = False

    def _fail_running(self, error: Exception) -> list[Outcome[ItemT, EventT]]:
        self._log.error("step failed", num_items=len(self.running), exc_info=error)
        if self._is_out_of_memory(error):
            self._metrics.out_of_memory.inc()
        failed = list(self.running.values())
        self._cancel(failed)
        # One each: an exception that is raised twice carries the tracebacks of both.
        is_out_of_memory = self._is_out_of_memory(error)
        return [(work, no_memory() if is_out_of_memory else _failure()) for work in failed]

    def _error_for_client(self, error: Exception) -> FoveaError:
        """What the engine has to tell the client, that memory lacked, or nothing but that it failed."""
        if self._is_out_of_memory(error):
            return no_memory()
        return error if isinstance(error, FoveaError) else _failure()


def _failure() -> InternalError:
    return InternalError("The service failed to compute this input.")
