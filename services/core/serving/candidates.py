"""A version on its way to serving: loaded, warmed up and checked while requests are answered by another."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from services.core.memory import return_freed_memory
from services.core.store.errors import StoreUnavailable, UnservedKind


class CheckpointEngine(Protocol):
    """The engine that a checkpoint is loaded into. Both calls raise for faults; no other thread uses it meanwhile."""

    def warm_up(self) -> None:
        """Do the work of first calls once, so that no request has to wait for it."""

    def self_check(self) -> None:
        """Compute something whose answer is known."""


THREAD_NAME = "load-checkpoint"

EngineT = TypeVar("EngineT", bound=CheckpointEngine)


class Refused(Exception):
    """A version that must not serve; the message may be shown to clients."""


def is_loading() -> bool:
    """Whether a thread of this process is still preparing a version, or hangs in it."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


class Candidate(Generic[EngineT]):
    """A version to be loaded; `label` is `name@version`, `load` makes its engine.

    Everything runs on a thread of its own, since any step may hang, while the compute thread runs the batches of the
    version that serves. That thread ends afterwards: a thread that has computed keeps a team of OpenMP workers, and
    while a process has more of them than cores, those of the compute thread sleep between two operations, which makes
    a forward pass on a CPU a tenth longer. A thread can't be killed: one that was given up keeps what it holds until
    the process ends, which it does not prevent.
    """

    def __init__(self, label: str, load: Callable[[], EngineT], *, is_checked_before: bool = False) -> None:
        self._label = label
        self._load = load
        self._is_checked_before = is_checked_before
        self._step = "load"
        self._engine: Future[EngineT] = Future()

    async def ready(self, timeout_s: float) -> EngineT:
        """Return the engine, ready to serve. Raises Refused for one that fails, or is not ready within `timeout_s`, and
        StoreUnavailable where something else is not there yet that the version needs.
        """
        threading.Thread(target=self._work, name=THREAD_NAME, daemon=True).start()
        engine = asyncio.wrap_future(self._engine)
        try:
            await asyncio.wait([engine], timeout=timeout_s)
            if not engine.done():
                raise Refused(f"{self._label}: it did not {self._step} within {timeout_s:g} s")
            return engine.result()
        except (Refused, StoreUnavailable):
            raise
        except UnservedKind as error:
            raise Refused(str(error)) from error
        except Exception as error:
            # The cause is only logged: a loader's message may hold paths and values.
            raise Refused(f"{self._label}: it did not {self._step} ({type(error).__name__})") from error
        finally:
            engine.cancel()  # one that was given up has no waiter

    def _work(self) -> None:
        self._engine.set_running_or_notify_cancel()
        try:
            engine = self._load()
            self._step = "warm up"
            engine.warm_up()
            self._step = "pass its self-check"
            if not self._is_checked_before:
                engine.self_check()
        except BaseException as error:  # noqa: BLE001 - every error is the waiting caller's
            self._engine.set_exception(error)
        else:
            self._engine.set_result(engine)
            del engine
        return_freed_memory()  # the file's tensors, where the engine has converted copies
