"""Workers on Ray, started on this machine for one job or on a cluster that runs already.

Ray Data keeps the workers busy and replaces those that die. Each item is a block of its own, so that only what a dead
worker had in hand is done again. Ray is imported when a job connects, so that commands work without it.
"""

import importlib
import logging
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from services.core.printable import first_line

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

LOCAL = "local"
AUTO = "auto"
CONNECT_TIMEOUT_S = 10.0
# Of the objects that Ray passes between its processes on this machine; those of our jobs are small.
LOCAL_OBJECT_STORE_BYTES = 512 * 1024 * 1024
# Set before Ray is imported. Nothing is reported to Ray's makers, and Ray's own log stays in its files.
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
# Items waiting beside the one that a worker has in hand, so that it never idles.
ITEMS_PER_WORKER = 2
# How often an item may be begun. Ray would begin one that kills its worker for ever.
MAX_ATTEMPTS = 4

_DIRECT_CAUSE = "The above exception was the direct cause"


class RayError(Exception):
    """A Ray that can't be reached, or workers that failed; the message can be shown to users."""


@dataclass(frozen=True)
class RayOptions:
    """Address of Ray, and number of workers; without one, a worker for each GPU, or else for each core."""

    address: str = LOCAL
    num_workers: int | None = None


@dataclass(frozen=True)
class Pool:
    """Number of workers, and the cores and GPUs that each has for itself."""

    num_workers: int
    num_cpus: int = 1
    num_gpus: int = 0

    @property
    def device(self) -> str:
        """The device of every worker: Ray shows each only its own GPU."""
        return "cuda" if self.num_gpus else "cpu"


@dataclass(frozen=True)
class Cluster:
    """The cores and GPUs that Ray has at present."""

    num_cpus: int
    num_gpus: int

    def pool(self, options: RayOptions, *, uses_gpus: bool, num_threads: int | None = None) -> Pool:
        """Plan the workers, each with one GPU and its share of the cores, or with one core."""
        if not uses_gpus:
            num_cpus = num_threads or 1
            return Pool(options.num_workers or max(1, self.num_cpus // num_cpus), num_cpus)
        num_workers = options.num_workers or max(1, self.num_gpus)
        return Pool(num_workers, num_threads or max(1, self.num_cpus // max(num_workers, self.num_gpus)), 1)


def import_ray() -> Any:
    """Import Ray, with its environment set. Raises ModuleNotFoundError."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return importlib.import_module("ray")


@contextmanager
def connected(options: RayOptions, *, num_threads: int = 1) -> Iterator[Cluster]:
    """Connect to Ray, or start one that ends with the job, whose cores suffice for workers with this many threads.

    A connection that this process already has is used and kept. Raises RayError if there is no Ray at the address.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield _resources()
        return
    try:
        with _silent_descriptor(), _kept_handler():
            if options.address == LOCAL:
                num_cpus = max(num_cores(), (options.num_workers or 1) * num_threads)
                ray.init(
                    address=LOCAL, num_cpus=num_cpus, include_dashboard=False, log_to_driver=False,
                    object_store_memory=LOCAL_OBJECT_STORE_BYTES, logging_level=logging.ERROR,
                )  # fmt: skip
            else:
                _check_reachable(options.address)
                ray.init(address=options.address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise RayError(f"no Ray at {options.address}: {first_line(error)}") from error
    try:
        yield _resources()
    finally:
        ray.shutdown()


def mapped(
    items: Sequence[ItemT],
    make: Callable[[], Callable[[ItemT], ResultT]],
    pool: Pool,
    refusals: tuple[type[Exception], ...] = (),
) -> Iterator[tuple[int, ResultT]]:
    """Yield the place and the result of every item exactly once, in order of completion; `connected` must hold.

    Each worker calls `make` once, for the function that maps an item. Raises errors of the kinds `refusals`, of either,
    and RayError if workers fail otherwise.
    """
    import ray
    import ray.data
    from ray.exceptions import RayError as FailureOfRay

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    rows = [{"item": _Sent(number, item)} for number, item in enumerate(items)]
    num_workers = min(pool.num_workers, len(items))
    # outlives the workers
    ledger = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Ledger).remote()
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        _Worker,
        fn_constructor_args=(make, refusals, ledger),
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
                yield returned.number, returned.result
    except FailureOfRay as error:
        raise RayError(f"the workers on Ray failed: {_root_cause(error)}") from error
    if len(seen) != len(items):
        raise RayError(f"Ray returned {len(seen)} of {len(items)} results")


@dataclass(frozen=True)
class _Sent:
    """An item and its place; a class that Arrow can't take apart, so Ray hands it on as it is."""

    number: int
    item: Any


@dataclass(frozen=True)
class _Returned:
    """An item's place, and its result or the error that ends the job."""

    number: int
    result: Any = None
    error: Exception | None = None


class _Ledger:
    """Counts how often each item was begun."""

    def __init__(self) -> None:
        self._num_begun: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        """Count one more beginning of an item. Returns how many there were."""
        self._num_begun[number] += 1
        return self._num_begun[number]


class _Worker:
    """One worker: made once in its process, then called with one row at a time."""

    def __init__(
        self, make: Callable[[], Callable[[Any], Any]], refusals: tuple[type[Exception], ...], ledger: Any
    ) -> None:
        self._refusals = refusals
        self._ledger = ledger
        self._refused: Exception | None = None
        try:
            self._map = make()
        except refusals as error:
            self._refused = error

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        import numpy as np

        (sent,) = rows["item"]
        results = np.empty(1, dtype=object)
        results[0] = self._returned(sent)
        return {"result": results}

    def _returned(self, sent: _Sent) -> _Returned:
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


def _check_reachable(address: str) -> None:
    """Raises OSError if nobody listens there; Ray itself would ask again and again, without a word."""
    if address == AUTO:
        noted = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray" / "ray_current_cluster"
        address = os.environ.get("RAY_ADDRESS") or (noted.read_text().strip() if noted.is_file() else "")
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()


@contextmanager
def _kept_handler() -> Iterator[None]:
    """Keep what ends this process at SIGTERM; Ray installs its own, with another exit status."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _silent_descriptor() -> Iterator[None]:
    """Drop what is written to standard error's descriptor: Ray's library tells there that it heeds ENVIRONMENT."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _resources() -> Cluster:
    resources: dict[str, float] = import_ray().cluster_resources()
    return Cluster(int(resources.get("CPU", 0)), int(resources.get("GPU", 0)))


def num_cores() -> int:
    """Count the cores that this process may use; in a container these may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _root_cause(error: Exception) -> str:
    """Return the line that tells what went wrong in the worker, where Ray's text has its traceback before its own."""
    text, is_traceback, _ = str(error).partition(_DIRECT_CAUSE)
    lines = text.strip().splitlines() or [type(error).__name__]
    return (lines[-1] if is_traceback else lines[0]).strip()
