"""Items mapped by a pool of workers, which Ray Data keeps busy and replaces when they die.

Each item is a block of its own, so that what a dead worker had in hand, and nothing else, is done again by another.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from services.jobs.ray.cluster import Pool, RayError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

# Waiting beside the item that a worker has in hand, so that it never idles.
ITEMS_PER_WORKER = 2
# How often an item may be begun. Ray would begin one that kills its worker for ever.
MAX_ATTEMPTS = 4

_DIRECT_CAUSE = "The above exception was the direct cause"


@dataclass(frozen=True)
class Work(Generic[ItemT, ResultT]):
    """The work of each worker: `make(*arguments)`, called once per worker, returns the function that maps an item.

    Errors of the kinds `refusals`, of either, end the job and are raised where the results are read.
    """

    make: Callable[..., Callable[[ItemT], ResultT]]
    arguments: tuple[Any, ...] = ()
    refusals: tuple[type[Exception], ...] = ()


@dataclass(frozen=True)
class _Sent(Generic[ItemT]):
    """An item and its place; a class that Arrow can't take apart, so Ray hands it on as it is."""

    number: int
    item: ItemT


@dataclass(frozen=True)
class _Returned:
    """An item's place, and its result or the error that ends the job."""

    number: int
    result: Any = None
    error: Exception | None = None


def mapped(items: Sequence[ItemT], work: Work[ItemT, ResultT], pool: Pool) -> Iterator[ResultT]:
    """Yield the result of every item exactly once, in order of completion; `connected` must hold.

    Raises what `work` names as refusals, and RayError if workers fail otherwise.
    """
    import ray
    import ray.data
    from ray.exceptions import RayError as FailureOfRay

    if not items:
        return
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"item": _Sent(number, item)} for number, item in enumerate(items)]
    num_workers = min(pool.num_workers, len(items))
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(work, _ledger()),
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=num_workers, max_tasks_in_flight_per_actor=ITEMS_PER_WORKER),
        num_cpus=pool.num_cpus,
        num_gpus=pool.num_gpus,
    )
    seen = set[int]()
    try:
        for row in results.iter_rows():
            returned: _Returned = row["result"]
            if returned.error is not None:
                raise returned.error
            if returned.number not in seen:
                seen.add(returned.number)
                yield returned.result
    except FailureOfRay as error:
        raise RayError(f"the workers on Ray failed: {_root_cause(error)}") from error
    if len(seen) != len(items):
        raise RayError(f"Ray returned {len(seen)} of {len(items)} results")


def _ledger() -> Any:
    """Start the process that counts how often each item was begun, and outlives the workers."""
    import ray

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Ledger).remote()


class _Ledger:
    def __init__(self) -> None:
        self._num_begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Count one more beginning of an item. Returns how many there were."""
        self._num_begun[number] += 1
        return self._num_begun[number]


class _Worker:
    """One worker: made once in its process, then called with one row at a time."""

    def __init__(self, work: Work[Any, Any], ledger: Any) -> None:
        self._refusals = work.refusals
        self._ledger = ledger
        self._refused: Exception | None = None
        try:
            self._map = work.make(*work.arguments)
        except self._refusals as error:
            self._refused = error

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        (sent,) = rows["item"]
        results = np.empty(1, dtype=object)
        results[0] = self._returned(sent)
        return {"result": results}

    def _returned(self, sent: _Sent[Any]) -> _Returned:
        import ray

        if self._refused is not None:
            return _Returned(sent.number, error=self._refused)
        if ray.get(self._ledger.begin.remote(sent.number)) > MAX_ATTEMPTS:
            told = f"{MAX_ATTEMPTS} workers died, one after the other, of {sent.item}"
            return _Returned(sent.number, error=RayError(told))
        try:
            return _Returned(sent.number, self._map(sent.item))
        except self._refusals as error:
            return _Returned(sent.number, error=error)


def _root_cause(error: Exception) -> str:
    """Return the line that tells what went wrong in the worker, where Ray's text has its traceback before its own."""
    text, is_traceback, _ = str(error).partition(_DIRECT_CAUSE)
    lines = text.strip().splitlines() or [type(error).__name__]
    return (lines[-1] if is_traceback else lines[0]).strip()
