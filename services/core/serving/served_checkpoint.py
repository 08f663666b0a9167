"""The checkpoint that a service serves: it follows one alias of the model store and is swapped under load.

A new version is loaded, warmed up and checked beside the running one, then takes its place; the old one finishes its
requests and is released. A version that fails any of these steps is rejected, and the old one continues to serve.
"""

import asyncio
import ctypes
import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import structlog

from services.core.errors import Overloaded
from services.core.http.health import CheckResult
from services.core.memory import resident_bytes, return_freed_memory
from services.core.metrics import Metrics
from services.core.settings import DEFAULT_CHECKPOINT_CACHE_BYTES
from services.core.store.errors import (
    CorruptCheckpoint,
    InvalidCheckpoint,
    NotFoundInStore,
    StoreError,
    StoreUnavailable,
    UnservedKind,
)
from services.core.store.manifest import Manifest, check_sizes


class CheckpointEngine(Protocol):
    """The engine that a checkpoint is loaded into. Both calls raise for faults; no other thread uses it meanwhile."""

    def warm_up(self) -> None:
        """Do the work of first calls once, so that no request has to wait for it."""

    def self_check(self) -> None:
        """Compute something whose answer is known."""


THREAD_NAME = "load-checkpoint"
# How often the memory is looked at while a version loads, and how often a thread is asked to end.
LOOK_S = 0.5
MAX_GIVE_UPS = 4
# The memory that a version may take while it loads beside another one: a multiple of its files, which engines widen,
# copy and pack, and what else the process may take meanwhile.
GROWTH_OF_FILES = 8
FREE_GROWTH_BYTES = 4 * 2**30

EngineT = TypeVar("EngineT", bound=CheckpointEngine)


class VersionRefused(Exception):
    """A version that must not serve; the message may be shown to clients."""


class _GivenUp(BaseException):
    """Raised in a thread whose version has taken too long; nothing but the thread's end handles it."""


def is_loading() -> bool:
    """Whether a thread of this process is still preparing a version, or hangs in it."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


class Candidate(Generic[EngineT]):
    """A version to be loaded; `label` is `name@version`, `load` makes its engine.

    Everything runs on a thread of its own, since any step may hang, while the compute thread runs the batches of the
    version that serves. That thread ends afterwards: a thread that has computed keeps a team of OpenMP workers, and
    while a process has more of them than cores, those of the compute thread sleep between two operations, which makes
    a forward pass on a CPU a tenth longer.

    One that takes too long, or more than `max_growth_bytes` of memory, is given up: _GivenUp is raised in its thread,
    which ends at its next line of Python and lets go of what it holds. A thread that hangs in a library gets it as soon
    as it comes back; it prevents neither later versions nor the end of the process.
    """

    def __init__(
        self,
        label: str,
        load: Callable[[], EngineT],
        *,
        is_checked_before: bool = False,
        max_growth_bytes: int | None = None,
    ) -> None:
        self._label = label
        self._max_growth_bytes = max_growth_bytes
        self._load = load
        self._is_checked_before = is_checked_before
        self._step = "load"
        self._engine: Future[EngineT] = Future()

    async def ready(self, timeout_s: float) -> EngineT:
        """Return the engine, ready to serve.

        Raises VersionRefused for one that fails, or is not ready within `timeout_s`, and StoreUnavailable where
        something else is not there yet that the version needs.
        """
        thread = threading.Thread(target=self._work, name=THREAD_NAME, daemon=True)
        thread.start()
        engine = asyncio.wrap_future(self._engine)
        try:
            reason = await self._awaited(engine, timeout_s)
            if reason is not None:
                await _given_up(thread, engine)
                raise VersionRefused(f"{self._label}: {reason}")
            return engine.result()
        except (VersionRefused, StoreUnavailable):
            raise
        except UnservedKind as error:
            raise VersionRefused(str(error)) from error
        except Exception as error:
            # The cause is only logged: a loader's message may hold paths and values.
            raise VersionRefused(f"{self._label}: it did not {self._step} ({type(error).__name__})") from error
        finally:
            engine.cancel()  # one that was given up has no waiter

    async def _awaited(self, engine: asyncio.Future[EngineT], timeout_s: float) -> str | None:
        """Return when the engine is there or its loading failed, or say why it must be given up."""
        end, before = time.monotonic() + timeout_s, resident_bytes()
        while True:
            await asyncio.wait([engine], timeout=max(0.0, min(LOOK_S, end - time.monotonic())))
            if engine.done():
                return None
            if time.monotonic() >= end:
                return f"it did not {self._step} within {timeout_s:g} s"
            if self._max_growth_bytes is not None and resident_bytes() - before > self._max_growth_bytes:
                return f"it did not {self._step} within {self._max_growth_bytes} bytes of memory"

    def _work(self) -> None:
        with suppress(_GivenUp):
            self._work_until_given_up()

    def _work_until_given_up(self) -> None:
        self._engine.set_running_or_notify_cancel()
        try:
            engine = self._load()
            self._step = "warm up"
            engine.warm_up()
            self._step = "pass its self-check"
            if not self._is_checked_before:
                engine.self_check()
        except _GivenUp:
            self._engine.set_exception(_GivenUp())  # whose traceback holds nothing of what was loaded
        except Exception as error:  # noqa: BLE001 - every error is the waiting caller's
            self._engine.set_exception(error)
        except BaseException as error:  # noqa: BLE001 - a library's panic must not end the task that waits
            self._engine.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
        else:
            self._engine.set_result(engine)
            del engine
        return_freed_memory()  # the file's tensors, where the engine has converted copies


async def _given_up(thread: threading.Thread, engine: asyncio.Future[Any]) -> None:
    """Make a thread end, and return when it has, or hangs where it can't be reached."""
    for _ in range(MAX_GIVE_UPS):  # a library's `except` without a class takes one
        if thread.is_alive() and thread.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_GivenUp))
        await asyncio.wait([engine], timeout=LOOK_S)
        if engine.done():
            engine.exception()  # looked at: nobody waits for it
            return


LOADING_RETRY_AFTER_S = 5.0


class MemoryBudget(Protocol):
    """The memory for the engines of one model."""

    def entered(self, folder: Path, manifest: Manifest) -> AbstractAsyncContextManager[Callable[[], None]]:
        """Return a context in which the version is loaded, entered once there is room for it.

        Yields a function to call once the version has been unloaded; none is needed where loading raised. Raises
        InvalidCheckpoint for a version that can never have room.
        """

    def serves(self, engine: Any) -> None:
        """Called with every engine that begins to serve."""


class Versions(Protocol):
    """Source of checkpoints: the part of a Store that serving needs."""

    def resolve(self, name: str, alias_or_version: str) -> str:
        """Return the id of the version that an alias names, or the id itself."""

    def manifest(self, name: str, version: str) -> Manifest: ...

    def fetch(self, name: str, version: str, cache_dir: Path, max_bytes: int) -> Path:
        """Fetch a verified local copy of a version's folder."""


class Answering(Protocol):
    """An object that answers requests with an engine: a Batcher, or a Stepper."""

    @property
    def is_alive(self) -> bool:
        """Whether what is submitted can be answered."""

    async def drain(self) -> None:
        """Refuse new requests and return when those taken before are answered."""

    async def close(self) -> None:
        """Refuse new requests, fail those that wait, and return when nothing runs any more."""


BatcherT = TypeVar("BatcherT", bound=Answering)


@dataclass(frozen=True)
class FollowOptions:
    """The alias to follow (or a version id, which never moves), and how; times in seconds.

    A damaged version is tried again after `damaged_retry_s`, since it may be repaired under the same id. One that takes
    longer than `load_timeout_s` to load, warm up and pass its checks is refused. `cure` is what helps where the store
    lacks the alias.
    """

    name: str
    alias: str
    cache_dir: Path
    poll_s: float
    room: MemoryBudget
    damaged_retry_s: float = 60.0
    load_timeout_s: float = 600.0
    cache_max_bytes: int = DEFAULT_CHECKPOINT_CACHE_BYTES
    cure: str = ""


@dataclass(frozen=True)
class Served(Generic[EngineT, BatcherT]):
    """A serving version; `digest` distinguishes its results from those of every other version."""

    engine: EngineT
    batcher: BatcherT
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def label(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        return self.manifest.digest


class _Generation(Generic[EngineT, BatcherT]):
    """A served version and the requests that hold it."""

    def __init__(self, served: Served[EngineT, BatcherT], leave: Callable[[], None]) -> None:
        self.served = served
        self.leave = leave  # called when nothing uses the engine any more
        self._num_leases = 0
        self._is_unused = asyncio.Event()
        self._is_unused.set()

    @contextmanager
    def lease(self) -> Iterator[Served[EngineT, BatcherT]]:
        self._num_leases += 1
        self._is_unused.clear()
        try:
            yield self.served
        finally:
            self._num_leases -= 1
            if not self._num_leases:
                self._is_unused.set()

    async def retire(self) -> None:
        """Return when it has no leases and all its requests are answered."""
        await self._is_unused.wait()
        await self.served.batcher.drain()
        await self.served.batcher.close()


class ServedCheckpoint(Generic[EngineT, BatcherT]):
    """Serves a followed alias. `load` reads a verified folder off the event loop; each version gets a `make_batcher`.

    At most two versions are in memory: a third is loaded when the first has gone. A version that has served may be
    unloaded and loaded again.
    """

    def __init__(
        self,
        store: Versions,
        followed: FollowOptions,
        *,
        load: Callable[[Path, Manifest], EngineT],
        make_batcher: Callable[[EngineT], BatcherT],
        metrics: Metrics,
    ) -> None:
        self.name = followed.name
        self.alias = followed.alias
        self.manifest: Manifest | None = None  # of the version that serves, in memory or not
        self._store = store
        self._followed = followed
        self._load = load
        self._make_batcher = make_batcher
        self._metrics = metrics
        self._current: _Generation[EngineT, BatcherT] | None = None
        self._retiring: set[_Generation[EngineT, BatcherT]] = set()
        self._refusal: tuple[str, str, float] | None = None  # version, why, and the `time.monotonic()` to try it again
        self._trouble: str | None = None  # why the store could not be asked
        self.is_lacking = False  # whether the last look found that the store lacks the model or the alias
        self._log = structlog.get_logger(__name__)
        self._one_look_at_a_time = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None
        metrics.model_ready.labels(self.name).set(0)
        for counter in (metrics.checkpoint_refusals, metrics.model_loads, metrics.model_unloads):
            counter.labels(self.name)  # exported as 0, so that the first one is seen as an increase

    @property
    def is_loaded(self) -> bool:
        """Whether a version that can answer is in memory."""
        return self._current is not None

    @property
    def engine(self) -> EngineT | None:
        """The engine of the version that serves, None while none is in memory; it may leave at any time."""
        return None if self._current is None else self._current.served.engine

    async def start(self) -> None:
        """Load the version that the alias names, then follow the alias.

        Returns also where that version is refused or the store can't be reached: `check` says so, and the next valid
        version is served.
        """
        await self.look()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop following; fail requests that wait for a batch, return when the running one has ended."""
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await self._following
        generations = [*self._retiring, *([self._current] if self._current else [])]
        self._current = None
        self._metrics.model_ready.labels(self.name).set(0)
        for generation in generations:
            await generation.served.batcher.close()
            generation.leave()

    async def unload(self) -> None:
        """Unload the version, if there is one, once all its requests are answered."""
        generation, self._current = self._current, None
        if generation is not None:
            await self._retire(generation)

    async def load(self) -> None:
        """Load the version that served last again, if none is loaded. Raises Overloaded where that fails."""
        async with self._one_look_at_a_time:
            if self._current is not None:
                return
            if self.manifest is None:
                raise self.not_loaded()
            version = self.manifest.version
            try:
                generation = await self._load_generation(version)
            except Exception as error:
                self._log.error("checkpoint not loaded again", model=self.name, version=version, exc_info=error)
                raise self.not_loaded() from error
            await self._swap(generation)

    @contextmanager
    def lease(self) -> Iterator[Served[EngineT, BatcherT]]:
        """Hold the version that serves now until the block ends, even if another one takes its place meanwhile.

        Raises Overloaded while there is none.
        """
        if self._current is None:
            raise self.not_loaded()
        with self._current.lease() as served:
            yield served

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which a request may ask for the model: with the version that serves, once there is one."""
        names = (self.name, f"{self.name}@{self.alias}")
        return names if self.manifest is None else (*names, self.label)

    @property
    def label(self) -> str:
        """`name@version` of the version that serves, in memory or not."""
        assert self.manifest is not None, "nothing serves yet"
        return f"{self.name}@{self.manifest.version}"

    def check(self) -> CheckResult:
        """Report for `/readyz` whether a version serves, which, and why the one that was to replace it was refused."""
        details = [self._trouble] if self._trouble else []
        if self._refusal is not None:
            details.insert(0, f"refused {self._refusal[1]}")
        if self.manifest is None:
            return False, "; ".join(details) or f"loading {self.name}@{self.alias}"
        is_alive, state = True, " is loaded on its next request"
        if self._current is not None:
            is_alive = self._current.served.batcher.is_alive
            state = "" if is_alive else " can't process requests any more"
        details.insert(0, f"{self.name}@{self.manifest.version}{state}")
        return is_alive, "; ".join(details)

    @property
    def has_failed(self) -> bool:
        """Whether the last look at the store found no version that could be served."""
        return self._refusal is not None or self._trouble is not None

    @property
    def refused(self) -> tuple[str, str] | None:
        """The version that the last look found and did not put into service, and why; None without such."""
        return None if self._refusal is None else self._refusal[:2]

    @property
    def absence(self) -> str:
        """A sentence for clients about a model that does not serve, without the store's own messages, which name it."""
        if not self.has_failed:
            return f"{self.name}@{self.alias} is being loaded."
        reason = "the store, or a server that it needs, can't be used at present"
        if self.is_lacking:
            reason = "the store lacks it"
        elif self._refusal is not None:
            reason = self._refusal[1]
        return f"{self.name}@{self.alias} could not be loaded: {reason}."

    async def look(self) -> None:
        """Ask the store once where the alias points, and serve that version if it is another one.

        Never raises for faults of the store or the version. Returns when the previous version, if there was one, has
        answered all its requests.
        """
        async with self._one_look_at_a_time:
            try:
                version = await asyncio.to_thread(self._store.resolve, self.name, self.alias)
                if self._refusal is not None and self._refusal[0] != version:
                    self._refusal = None
                if self._is_known(version):
                    self._note_trouble(None)
                    return
                generation = await self._load_generation(version)
            except VersionRefused as refused:
                self._refuse(version, refused)
            except Exception as error:  # noqa: BLE001 - whatever fails in the store, the loaded version serves on
                self._note_trouble(error)
            else:
                self._refusal = None
                await self._swap(generation)

    def _is_known(self, version: str) -> bool:
        """Whether the version serves already, or was refused and would be again."""
        is_served = self.manifest is not None and self.manifest.version == version
        return is_served or (self._refusal is not None and time.monotonic() < self._refusal[2])

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._followed.poll_s)
            await self.look()

    async def _load_generation(self, version: str) -> _Generation[EngineT, BatcherT]:
        """Load a version. Raises VersionRefused, and StoreError where the version can't be fetched at the moment."""
        began = time.monotonic()
        try:
            manifest = self.manifest
            if manifest is None or manifest.version != version:
                manifest = await asyncio.to_thread(self._store.manifest, self.name, version)
                sizes = {path: file.size_bytes for path, file in manifest.files.items()}
                check_sizes(f"{self.name}@{version}", sizes)
            followed = self._followed
            folder = await asyncio.to_thread(
                self._store.fetch, self.name, version, followed.cache_dir, followed.cache_max_bytes
            )
            async with followed.room.entered(folder, manifest) as leave:
                engine = await self._load_engine(folder, manifest)
        except VersionRefused as refused:
            if folder.is_dir():
                raise
            # Another process that shares the folder needed the room: no fault of the version.
            raise StoreUnavailable(f"{self.name}@{version}: its copy went while it was loaded") from refused
        except (CorruptCheckpoint, InvalidCheckpoint) as error:
            raise VersionRefused(str(error)) from error
        self._metrics.model_load_seconds.labels(self.name).set(time.monotonic() - began)
        self._metrics.model_loads.labels(self.name).inc()
        return _Generation(Served(engine, self._make_batcher(engine), manifest), leave)

    async def _load_engine(self, folder: Path, manifest: Manifest) -> EngineT:
        candidate = Candidate(
            f"{manifest.name}@{manifest.version}",
            lambda: self._load(folder, manifest),
            is_checked_before=manifest is self.manifest,
            max_growth_bytes=self._max_growth_bytes(manifest),
        )
        return await candidate.ready(self._followed.load_timeout_s)

    def _max_growth_bytes(self, manifest: Manifest) -> int | None:
        """Return the limit for a version beside another one; the first one brings libraries and drivers as well."""
        if self.manifest is None:
            return None
        return GROWTH_OF_FILES * manifest.size_bytes + FREE_GROWTH_BYTES

    async def _swap(self, generation: _Generation[EngineT, BatcherT]) -> None:
        before, self._current = self._current, generation
        served = generation.served
        self._note_trouble(None)
        if self.manifest is not None:
            self._metrics.model_info.remove(self.name, self.manifest.version, self.manifest.digest)
        self.manifest = served.manifest
        self._metrics.model_info.labels(served.name, served.version, served.digest).set(1)
        self._metrics.model_ready.labels(self.name).set(1)
        self._followed.room.serves(served.engine)
        self._log.info("checkpoint serves", model=self.name, alias=self.alias, version=served.version)
        if before is not None:
            await self._retire(before)

    async def _retire(self, generation: _Generation[EngineT, BatcherT]) -> None:
        self._retiring.add(generation)
        await generation.retire()
        self._retiring.discard(generation)
        self._metrics.model_unloads.labels(self.name).inc()
        self._log.info("checkpoint retired", model=self.name, version=generation.served.version)
        del generation.served  # the awaiting caller still holds the rest
        await asyncio.to_thread(return_freed_memory)
        generation.leave()

    def not_loaded(self) -> Overloaded:
        """Count and return the refusal of a request for a model that does not serve."""
        self._metrics.rejected.labels("loading").inc()
        return Overloaded(self.absence, code="loading", retry_after_s=LOADING_RETRY_AFTER_S)

    def _refuse(self, version: str, refused: VersionRefused) -> None:
        self._note_trouble(None)
        cause = refused.__cause__
        retry_s = self._followed.damaged_retry_s if isinstance(cause, CorruptCheckpoint) else math.inf
        self._refusal = (version, str(refused), time.monotonic() + retry_s)
        self._metrics.checkpoint_refusals.labels(self.name).inc()
        self._log.error(
            "checkpoint refused", model=self.name, version=version, reason=str(refused), exc_info=_unexpected(cause)
        )

    def _note_trouble(self, error: Exception | None) -> None:
        self.is_lacking = isinstance(error, NotFoundInStore)
        if error is None:
            self._trouble = None
            return
        shown = str(error) if isinstance(error, StoreError) else type(error).__name__
        if self.is_lacking and self._followed.cure:
            shown += f"; cure: {self._followed.cure}"
        trouble = f"{self.name}@{self.alias} is not available now: {shown}"
        if trouble != self._trouble:  # once, not at each poll
            self._log.warning(
                "checkpoint not available", model=self.name, error=str(error), exc_info=_unexpected(error)
            )
        self._trouble = trouble


def _unexpected(error: BaseException | None) -> BaseException | None:
    """An error whose traceback is worth logging; the store's own say all in their message."""
    return None if isinstance(error, StoreError) else error
