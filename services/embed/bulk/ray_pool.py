"""Workers on Ray, started on this machine for one job or on a cluster that runs already.

Ray replaces workers that die, and only what such a one had in hand is done again. Ray is imported when a job connects,
so that commands work without it.
"""

import importlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
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
# Items that a worker has in hand: with the next one it never idles.
ITEMS_PER_WORKER = 2
# How often an item may be begun.
MAX_ATTEMPTS = 4


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
    from ray.exceptions import RayActorError, RayTaskError
    from ray.exceptions import RayError as FailureOfRay

    kind: Any = ray.remote(_Worker)
    kind = kind.options(
        num_cpus=pool.num_cpus, num_gpus=pool.num_gpus, max_restarts=-1, max_task_retries=MAX_ATTEMPTS - 1
    )
    workers = [kind.remote(make) for _ in range(min(pool.num_workers, len(items)))]
    # one that waits for its place on the cluster is given no items
    running: dict[Any, tuple[Any, int | None]] = {worker.start.remote(): (worker, None) for worker in workers}
    waiting, num_left = enumerate(items), len(items)
    while num_left:
        (done,), _ = ray.wait(list(running), num_returns=1)
        worker, number = running[done]
        try:
            result = ray.get(done)
        except RayTaskError as error:
            if isinstance(error.cause, refusals):
                raise error.cause from None
            told = f"{type(error.cause).__name__}: {first_line(error.cause)}"
            raise RayError(f"the workers on Ray failed: {told}") from error
        except RayActorError as error:
            in_hand = min((n for one, n in running.values() if one is worker and n is not None), default=None)
            of = "before their first item" if in_hand is None else f"of {items[in_hand]}"
            raise RayError(f"{MAX_ATTEMPTS} workers died, one after the other, {of}") from error
        except FailureOfRay as error:
            raise RayError(f"the workers on Ray failed: {first_line(error)}") from error
        del running[done]
        for following, item in islice(waiting, ITEMS_PER_WORKER if number is None else 1):
            running[worker.map.remote(item)] = (worker, following)
        if number is not None:
            num_left -= 1
            yield number, result


class _Worker:
    """One worker, in a process of its own."""

    def __init__(self, make: Callable[[], Callable[[Any], Any]]) -> None:
        self._made = cache(make)

    def start(self) -> None:
        """Make ready for the first item."""
        self._made()

    def map(self, item: Any) -> Any:
        return self._made()(item)


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
