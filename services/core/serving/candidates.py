"""A version on its way to serving: loaded, warmed up and checked beside all that is answered meanwhile."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from services.core.serving.freed_memory import return_freed_memory


class CheckpointEngine(Protocol):
    """What a checkpoint is loaded into. Both calls tell what is wrong by raising; no other thread uses it then."""

    def warm_up(self) -> None:
        """Do once what only first calls do, so that no request has to wait for it."""

    def self_check(self) -> None:
        """Compute something whose answer is known."""


THREAD_NAME = "load-checkpoint"

EngineT = TypeVar("EngineT", bound=CheckpointEngine)


class Refused(Exception):
    """A version that must not serve; the message is fit to be shown."""


def is_loading() -> bool:
    """Whether a thread of this process still makes a version ready, or hangs in that."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


class Candidate(Generic[EngineT]):
    """`label` is `name@version`; `load` makes the engine of it.

    Everything runs on a thread of its own, since a version may go on for ever with any of it: the compute thread runs
    the batches of the version that serves. That thread ends with it: one that has computed keeps a team of OpenMP
    workers, and while a process holds more of them than cores, those of the compute thread sleep between two
    operations, which makes a forward pass on a CPU a tenth longer. A thread can't be ended: one that was given up keeps
    what it holds until the process ends, which it does not keep from ending.
    """

    def __init__(self, label: str, load: Callable[[], EngineT], *, is_checked_before: bool = False) -> None:
        self._label = label
        self._load = load
        self._is_checked_before = is_checked_before
        self._step = "load"
        self._engine: Future[EngineT] = Future()

    async def ready(self, timeout_s: float) -> EngineT:
        """The engine, fit to serve. Raises Refused for one that is not, or not within so many seconds."""
        threading.Thread(target=self._work, name=THREAD_NAME, daemon=True).start()
        engine = asyncio.wrap_future(self._engine)
        try:
            await asyncio.wait([engine], timeout=timeout_s)
            if not engine.done():
                raise Refused(f"{self._label}: it did not {self._step} within {timeout_s:g} s")
            return engine.result()
        except Refused:
            raise
        except Exception as error:
            # The cause is for the log: a loader's message may hold paths and values.
            raise Refused(f"{self._label}: it did not {self._step} ({type(error).__name__})") from error
        finally:
            engine.cancel()  # nobody waits for one that was given up

    def _work(self) -> None:
        self._engine.set_running_or_notify_cancel()
        try:
            engine = self._load()
            self._step = "warm up"
            engine.warm_up()
            self._step = "pass its self-check"
            if not self._is_checked_before:
                engine.self_check()
        except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to whoever waits
            self._engine.set_exception(error)
        else:
            self._engine.set_result(engine)
            del engine
        return_freed_memory()  # of the file's own numbers, where the engine holds others
