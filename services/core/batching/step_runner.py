"""The running batch of a Stepper, on the compute thread: items that join and leave, and the events of each step.

A running item may be paused for others: because a client that has fewer waits, or because the running items have
outgrown their room. It goes back to the front of the queue, and later continues where it was.

Only the items at fault fail: an `admit` that raises is tried again item by item. A `step` that raises fails all running
items, since the state that it left is unknown, and the service goes on with those that wait. A `prepare` that raises
fails the items that it was for.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import structlog

from services.core.batching.batches import CostBudget
from services.core.batching.step_queue import (
    Event,
    StepQueue,
    Throughput,
    Work,
    giving_room,
    making_way,
)
from services.core.errors import FoveaError, InternalError, TooLarge, no_memory
from services.core.metrics import Metrics

ItemT = TypeVar("ItemT")
EventT = TypeVar("EventT")
EventT_co = TypeVar("EventT_co", covariant=True)

# The batch becomes narrower where steps take less than the first share of the time, wider where more than the second.
LEAST_SHARE = 0.06
MOST_SHARE = 0.12
# The minimum, and the breadth at the start.
MIN_BREADTH = 4.0
FIRST_BREADTH = 16.0
# Seconds of computing that a decision is based on, in turns during which items waited.
WINDOW_S = 0.5
NARROWER = 0.7
WIDER = 1.4
# The charge for a step of one item, in the unit of costs: a decoded token keeps the device busier than a token of a
# prompt, which is run together with many others.
STEP_COST = 2.0
# While several clients are active, a turn admits and prepares for about this many seconds: new requests wait for it.
SLICE_S = 0.05
# At most this many times as long as the turn's step took, for which running answers wait.
STEPS_A_SLICE = 2.0
# The least cost of a slice, as small pieces take longer in total, and the cost before anything was measured.
MIN_SLICE_COST = 64
FIRST_SLICE_COST = 256
# A slice's cost is that of about the last seconds of admitting and preparing.
PACE_MEMORY_S = 1.0
# Seconds between two looks at everything that waits, for the metric.
DEMAND_EVERY_S = 1.0
# Number of clients whose next item is considered in one turn.
MAX_LOOKS = 8
# A client with this many running items leaves room for another client's.
MANY_RUNNING = 8

# The outcome of a turn for an item: an event of it, or the error that ends it.
Outcome = tuple[Work[ItemT, EventT], Event[EventT] | FoveaError]


class SteppingEngine(Protocol[ItemT, EventT_co]):
    """The engine that a Stepper runs, on the compute thread only. Items are told apart by identity.

    An event is (item, event, whether it is that item's last). After its last event an item holds no resources.
    """

    @property
    def num_running(self) -> int:
        """The number of admitted items that have not had their last event."""

    def has_room(self, items: Sequence[ItemT], without: Sequence[ItemT] = ()) -> bool:
        """Whether all of these could be admitted now, together, if the running items `without` were gone.

        Computes nothing.
        """

    def room_share(self, items: Sequence[ItemT]) -> float:
        """Return the share of the room that everything that runs needs together with these; above 1 they do not fit.

        Computes nothing.
        """

    def lacking_room(self) -> Sequence[ItemT]:
        """Return running items that can't take a step before others leave; of a single one, for lack of memory."""

    @property
    def num_computed(self) -> float:
        """The cost of everything computed so far, in about the unit of the items' costs."""

    def admit(self, items: Sequence[ItemT], max_cost: int | None = None) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Let these run from now on; returns their first events, if any. A FoveaError is shown to the client.

        Work that would occupy the thread for long, or that costs more than `max_cost`, is left to `prepare`.
        """

    def step(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Make one step for every running item that is prepared."""

    @property
    def preparing(self) -> Sequence[Sequence[ItemT]]:
        """The running items that need `prepare`, in order, with those that are prepared together in one sequence."""

    def prepare(self, items: Sequence[ItemT], max_cost: int | None = None) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Do a piece of the work that these need before their steps, of about `max_cost` at most.

        They are one of the sequences of `preparing`. A FoveaError is shown to their clients.
        """

    def pause(self, item: ItemT) -> None:
        """Free the room of an item now; admitted again it continues where it was, and repeats no event."""

    def cancel(self, item: ItemT) -> None:
        """Free now what the item holds, if anything, also if it is paused.

        After an `admit` that raised it is also called for every item; `pause` for those that have had events.
        """


class Breadth:
    """Adapts `limit`, the number of items that may run while others wait."""

    def __init__(self) -> None:
        self.limit = FIRST_BREADTH
        self._admit_s = 0.0
        self._step_s = 0.0

    def note(self, num_running: int, admit_s: float, step_s: float) -> None:
        """Note how long a turn, during which items waited, took for admitting and for stepping."""
        self._admit_s += admit_s
        self._step_s += step_s
        seconds = self._admit_s + self._step_s
        if seconds < WINDOW_S:
            return
        share = self._step_s / seconds
        if share < LEAST_SHARE:
            self.limit = max(MIN_BREADTH, NARROWER * min(self.limit, num_running))
        elif share > MOST_SHARE:
            self.limit = max(self.limit, WIDER * num_running)
        self._admit_s, self._step_s = 0.0, 0.0


class LostItems(Exception):
    """The engine runs no item, though some have had no last event."""


class StepRunner(Generic[ItemT, EventT]):
    """Takes turns on the calling thread; `running` holds what the engine runs, by the identity of the items.

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
        self.full_throughput = Throughput()  # of the turns during which items waited
        self._pace = Throughput(PACE_MEMORY_S)  # of admitting and preparing
        self._step_s = 0.0  # of the last turn with a step
        self._slice_cost: int | None = None  # that is left of this turn, while several clients are active
        self._num_turns = 0
        self._prepared_in: dict[str, int] = {}  # the last turn in which a client's items were prepared
        self._breadth = Breadth()
        self._demand = 0.0
        self._demand_at = -math.inf
        self._paused: dict[int, Work[ItemT, EventT]] = {}  # in the queue, all of them
        self._num_steps = 0
        self._engine = engine
        self._queue = queue
        self._budget = budget
        self._metrics = metrics
        self._is_out_of_memory = is_out_of_memory
        self._finished_cost = 0
        # Set where an item alone ran out of memory: no other is tried before a running one has left.
        self._waits_for_memory = False
        self._log = structlog.get_logger(__name__)
        metrics.batch_cost_budget.set(budget.current)

    def take_turn(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """Drop, admit, step and prepare; yields the outcomes of each as soon as they are known.

        Raises what `cancel` raises after a step that failed: what the engine holds is unknown then, and the thread
        must end.
        """
        began = time.monotonic()
        self._finished_cost = 0
        self._num_turns += 1
        self._slice_cost = self._max_slice_cost(began)
        try:
            self._drop_unwanted()
            yield from self._admit_waiting()
            admitted = time.monotonic()
            yield from self._step()
            stepped = time.monotonic()
            yield from self._prepare()
            if len(self._queue):
                prepared_s = time.monotonic() - stepped
                num_running = min(len(self.running), int(self._breadth.limit))  # those beyond it are no sign
                self._breadth.note(num_running, admitted - began + prepared_s, stepped - admitted)
            self._note_demand(began)
            if self.running and not self._engine.num_running:
                raise LostItems(f"{len(self.running)} items had no last event")
        except Exception as error:  # noqa: BLE001 - the step loop: whatever an engine raises, its items are answered
            yield self._fail_running(error)
        seconds = time.monotonic() - began
        self.throughput.note(self._finished_cost, seconds)
        if len(self._queue):
            self.full_throughput.note(self._finished_cost, seconds)

    @property
    def must_return(self) -> bool:
        """Whether another turn is needed though nothing waits."""
        return bool(self.running or self._paused)

    def _note_demand(self, now: float) -> None:
        """Publish what running and waiting items need of the room; at once where nothing is left of either."""
        num_items = len(self.running) + len(self._queue)
        if num_items and now < self._demand_at + DEMAND_EVERY_S:
            return
        share = self._engine.room_share(self._queue.items()) if num_items else 0.0
        demand = max(share, num_items / self._breadth.limit)
        # Added up, as two runners share the metric while one checkpoint replaces another.
        self._metrics.room_demand_ratio.inc(demand - self._demand)
        self._demand, self._demand_at = demand, now

    # Joining

    def _admit_waiting(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """Admit waiting items in fair order. One without room holds up only its own client's: others may be smaller."""
        chosen: list[Work[ItemT, EventT]] = []
        held_up: set[str] = set()
        cost = 0
        max_cost = self._budget.current
        if self._slice_cost is not None:
            max_cost = min(max_cost, self._slice_cost)
        running = self._running_by_client()
        while len(held_up) < MAX_LOOKS and (work := self._next_wanted(running, held_up)) is not None:
            if chosen and cost + work.cost > max_cost:
                break
            try:
                has_room = self._has_room([*chosen, work]) or self._make_way(chosen, work)
            except Exception as error:  # noqa: BLE001 - the step loop: an item that can't even be looked at fails alone
                self._note_refusal([work], error)
                if self._queue.discard(work):
                    yield [(work, self._error_for_client(error))]
                continue
            if not has_room and (chosen or self.running):
                if self._waits_for_memory:
                    break
                held_up.add(work.client)
            elif self._queue.take(work):
                if has_room:
                    chosen.append(work)
                    running[work.client] += 1
                    cost += work.cost
                else:
                    yield [(work, TooLarge("The request needs more memory than the service has."))]
        if chosen:
            yield from self._admit(chosen)

    def _max_slice_cost(self, now: float) -> int | None:
        """Return what a turn may admit and prepare; None where nobody else waits for it."""
        if not self._queue.is_shared(now, (work.client for work in self.running.values())):
            return None
        if not self._pace.cost_per_s:
            return FIRST_SLICE_COST
        seconds = min(SLICE_S, STEPS_A_SLICE * self._step_s) if self._step_s else SLICE_S
        return max(MIN_SLICE_COST, int(seconds * self._pace.cost_per_s))

    def _next_wanted(self, running: Counter[str], held_up: set[str]) -> Work[ItemT, EventT] | None:
        now = time.monotonic()
        while (work := self._queue.next(running, held_up)) is not None and not work.is_wanted(now):
            self._queue.discard(work)  # the event loop tells the reader of its stream
        return work

    def _make_way(self, chosen: list[Work[ItemT, EventT]], work: Work[ItemT, EventT]) -> bool:
        """Pause other items for one whose client has less; returns whether there is room now."""
        if self._waits_for_memory:
            return False
        leaving = making_way(
            self.running.values(),
            chosen,
            work,
            lambda leaving: self._has_room([*chosen, work], leaving),
            served=self._queue.served,
            now=time.monotonic(),
        )
        for one in leaving or ():
            self._pause(one)
        return leaving is not None

    def _has_room(self, works: Sequence[Work[ItemT, EventT]], leaving: Sequence[Work[ItemT, EventT]] = ()) -> bool:
        """Whether the last of these has room beside the others.

        While several clients are active, one that has many items running leaves room for another of that size. For one
        that has none the breadth is doubled: it need not wait until an item of the others ends.
        """
        if self._waits_for_memory:
            return False
        newcomer = works[-1]
        others = [*(work for work in self.running.values() if work not in leaving), *works[:-1]]
        num_own = sum(other.client == newcomer.client for other in others)
        if len(others) >= (1 if num_own else 2) * self._breadth.limit:
            return False
        items = [work.item for work in works]
        if num_own >= MANY_RUNNING and not leaving and self._slice_cost is not None:
            items.append(newcomer.item)  # what stays free for a client that has nothing running
        return self._engine.has_room(items, [work.item for work in leaving])

    def _admit(self, works: list[Work[ItemT, EventT]]) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """Admit all together or, where that fails, one by one; items for which there is no room wait at the front."""
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
                    self._forget(left[0])
                    yield [(left[0], self._error_for_client(came))]
                left.popleft()
                came = None
        finally:
            for work in reversed(left):
                self._queue.put_back(work)

    def _attempt(self, works: list[Work[ItemT, EventT]]) -> list[Outcome[ItemT, EventT]] | Exception:
        """Return the items' outcomes, or the error for which they were not admitted; they hold nothing then."""
        began = time.monotonic()
        for work in works:
            work.runs_since = began
            if not work.has_come:
                work.began_at = began
            work.counted_steps = self._num_steps
            work.is_begun = False
            self._paused.pop(id(work.item), None)
            self.running[id(work.item)] = work
            self._metrics.running_items.inc()
        try:
            with self._slicing():
                came = self._engine.admit([work.item for work in works], self._slice_cost)
        except Exception as error:  # noqa: BLE001 - the step loop: whatever an engine raises, its items are answered
            self._note_refusal(works, error)
            self._cancel([work for work in works if not work.has_come])
            for work in works:
                if work.has_come:
                    self._suspend(work)
            # Its traceback would keep the prompts in memory until the client is answered.
            return error.with_traceback(None)
        preparing = {id(item) for items in self._engine.preparing for item in items}
        for work in works:
            work.is_begun = id(work.item) not in preparing
        self._budget.recover(sum(work.cost for work in works))
        self._metrics.batch_cost_budget.set(self._budget.current)
        return self._outcomes(came)

    def _must_wait(self, error: Exception) -> bool:
        """Whether an item that failed alone is to be tried again once a running one has left."""
        self._waits_for_memory = bool(self.running) and self._is_out_of_memory(error)
        return self._waits_for_memory

    def _note_refusal(self, works: list[Work[ItemT, EventT]], error: Exception) -> None:
        if self._is_out_of_memory(error):
            self._metrics.out_of_memory.inc()
            if len(works) > 1:
                self._budget.shrink(sum(work.cost for work in works))
                self._metrics.batch_cost_budget.set(self._budget.current)
        # Errors that the client is told are not logged, and several items are tried again, each on its own.
        if len(works) == 1 and not isinstance(error, FoveaError):
            self._log.error("item failed", num_running=len(self.running), exc_info=error)

    # Running

    def _step(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        while self.running and self._engine.lacking_room():
            if len(self.running) == 1:
                yield self._fail_alone()
            else:
                preparing = {id(item) for items in self._engine.preparing for item in items}
                works = self.running.values()
                begun = [work for work in works if id(work.item) in preparing and work.is_begun]
                self._pause(giving_room(works, begun))
        if self.running:
            self._num_steps += 1
            began = time.monotonic()
            came = self._engine.step()
            self._step_s = time.monotonic() - began if came else 0.0
            yield self._outcomes(came)

    def _prepare(self) -> Iterator[list[Outcome[ItemT, EventT]]]:
        """Prepare one piece. Items at fault fail, or wait in front of all others until there is memory for them."""
        preparing = self._next_to_prepare()
        if not preparing:
            return
        for work in preparing:
            work.is_begun = True
        try:
            max_cost = None if self._slice_cost is None else max(MIN_SLICE_COST, self._slice_cost)
            with self._slicing():
                came = self._engine.prepare([work.item for work in preparing], max_cost)
        except Exception as error:  # noqa: BLE001 - the step loop: whatever an engine raises, its items are answered
            self._note_refusal(preparing[:1], error)
            self._cancel([work for work in preparing if not work.has_come])
            for work in preparing:
                if work.has_come:
                    self._suspend(work)
            if self._must_wait(error):
                for work in reversed(preparing):
                    self._queue.put_back(work)
            else:
                reason = error.with_traceback(None)
                for work in preparing:
                    self._forget(work)
                yield [(work, self._error_for_client(reason)) for work in preparing]
            return
        yield self._outcomes(came)

    def _next_to_prepare(self) -> list[Work[ItemT, EventT]]:
        """Choose the items to be prepared now: clients take turns, each one's items in order."""
        first: dict[str, list[Work[ItemT, EventT]]] = {}
        for items in self._engine.preparing:
            works = [self.running[id(item)] for item in items]
            first.setdefault(works[0].client, works)
        self._prepared_in = {client: self._prepared_in.get(client, 0) for client in first}
        if not first:
            return []
        client = min(first, key=self._prepared_in.__getitem__)
        self._prepared_in[client] = self._num_turns
        return first[client]

    @contextmanager
    def _slicing(self) -> Iterator[None]:
        """Note the pace of what is computed in this context, and take it from the turn's slice."""
        began, before = time.monotonic(), self._engine.num_computed
        yield
        cost = self._engine.num_computed - before
        self._pace.note(cost, time.monotonic() - began)
        if self._slice_cost is not None:
            self._slice_cost -= int(cost)

    def _outcomes(self, came: Sequence[tuple[ItemT, EventT, bool]]) -> list[Outcome[ItemT, EventT]]:
        now = time.monotonic()
        outcomes: list[tuple[Work[ItemT, EventT], Event[EventT]]] = []
        for item, value, is_last in came:
            work = self.running.get(id(item))
            if work is None:
                self._log.error("event of an item that does not run")
                continue
            queued_at = work.call.queued_at
            if not work.has_come:
                self._finished_cost += work.cost
            work.has_come = True
            outcomes.append((work, Event(value, is_last, work.began_at - queued_at, now - queued_at)))
        for work, event in outcomes:
            if event.is_last:
                self._remove(work)
        return list(outcomes)

    # Leaving

    def _drop_unwanted(self) -> None:
        now = time.monotonic()
        self._cancel([work for work in self.running.values() if not work.is_wanted(now)])
        for work in [work for work in self._paused.values() if not work.is_wanted(now)]:
            self._queue.discard(work)
            self._forget(work)

    def _pause(self, work: Work[ItemT, EventT]) -> None:
        """Put the item back at the front of the queue, so that others can run."""
        self._suspend(work)
        self._metrics.preemptions.inc()
        self._queue.put_back(work)

    def _suspend(self, work: Work[ItemT, EventT]) -> None:
        self._engine.pause(work.item)
        self._remove(work)
        work.waits_since = time.monotonic()
        if work.has_come:
            self._paused[id(work.item)] = work

    def _forget(self, work: Work[ItemT, EventT]) -> None:
        """Forget an item that does not continue."""
        if self._paused.pop(id(work.item), None) is not None:
            self._engine.cancel(work.item)

    def _cancel(self, works: Sequence[Work[ItemT, EventT]]) -> None:
        for work in works:
            self._engine.cancel(work.item)
        for work in works:
            self._remove(work)

    def _remove(self, work: Work[ItemT, EventT]) -> None:
        self._charge(work)
        del self.running[id(work.item)]
        self._metrics.running_items.dec()
        self._waits_for_memory = False

    def _running_by_client(self) -> Counter[str]:
        """Count each client's running items; charges clients for the steps of their running items first."""
        running: Counter[str] = Counter()
        if len(self._queue):
            for work in self.running.values():
                running[work.client] += 1
                self._charge(work)
        return running

    def _charge(self, work: Work[ItemT, EventT]) -> None:
        if work.has_come:
            self._queue.charge(work.client, STEP_COST * (self._num_steps - work.counted_steps))
        work.counted_steps = self._num_steps

    def _fail_alone(self) -> list[Outcome[ItemT, EventT]]:
        (work,) = self.running.values()
        self._log.error("item failed", num_running=1, reason="out of memory though no other item runs")
        self._cancel([work])
        return [(work, _failure())]

    def _fail_running(self, error: Exception) -> list[Outcome[ItemT, EventT]]:
        self._log.error("step failed", num_items=len(self.running), exc_info=error)
        if self._is_out_of_memory(error):
            self._metrics.out_of_memory.inc()
        failed = list(self.running.values())
        self._cancel(failed)
        # A new exception for each: one that is raised twice carries the tracebacks of both.
        is_out_of_memory = self._is_out_of_memory(error)
        return [(work, no_memory() if is_out_of_memory else _failure()) for work in failed]

    def _error_for_client(self, error: Exception) -> FoveaError:
        """Return the engine's own error for the client, the one for lack of memory, or a plain failure."""
        if self._is_out_of_memory(error):
            return no_memory()
        return error if isinstance(error, FoveaError) else _failure()


def _failure() -> InternalError:
    return InternalError("The service failed to compute this input.")
