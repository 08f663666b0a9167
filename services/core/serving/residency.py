"""Models that share a budget of memory: the one that was asked least recently makes room for another.

A model that is not in memory is loaded when it is asked, once for all requests that wait for it. One that is answering
is never interrupted: requests that have it keep it until they are done, later ones wait until it is loaded again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from services.core.batching.batcher import Batcher
from services.core.errors import DeadlineExceeded, Overloaded
from services.core.metrics import Metrics
from services.core.serving.candidates import CheckpointEngine
from services.core.serving.memory_budget import MemoryBudget
from services.core.serving.served_checkpoint import Answering, Served, ServedCheckpoint
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import Manifest

EngineT = TypeVar("EngineT", bound=CheckpointEngine)
DescriptionT = TypeVar("DescriptionT")
BatcherT = TypeVar("BatcherT", bound=Answering, default=Batcher[Any, Any])


class Resident(Generic[EngineT, DescriptionT, BatcherT]):
    """One of the models, in memory or not; `description` is that of the version that serves, None before the first.

    A MemoryBudget of its own checkpoint.
    """

    checkpoint: ServedCheckpoint[EngineT, BatcherT]

    def __init__(self, residency: "Residency[EngineT, DescriptionT, BatcherT]") -> None:
        self.description: DescriptionT | None = None
        self.num_leases = 0
        self.last_used = 0.0
        self.arrival: asyncio.Task[None] | None = None
        self._residency = residency
        self._num_waiting = 0
        self._nobody_waits = asyncio.Event()
        self._nobody_waits.set()

    def entered(self, folder: Path, manifest: Manifest) -> AbstractAsyncContextManager[Callable[[], None]]:
        return self._residency.entered(self, folder, manifest)

    def serves(self, engine: EngineT) -> None:
        self.description = self._residency.describe(engine)
        self._residency.has_changed.set()

    async def arrive(self, deadline: float) -> None:
        """Return when it is in memory. Raises DeadlineExceeded, and Overloaded where it can't be loaded.

        Loading goes on for others when one of those who wait gives up.
        """
        self._num_waiting += 1
        self._nobody_waits.clear()
        arrival = self.arrival
        if arrival is None:
            arrival = self.arrival = asyncio.create_task(self.checkpoint.load())
            arrival.add_done_callback(self._arrived)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await asyncio.shield(arrival)
        except TimeoutError:
            raise DeadlineExceeded("The deadline passed before the model was loaded.") from None
        except asyncio.CancelledError:
            if not arrival.cancelled():
                raise
            raise Overloaded("The service stopped before the model was loaded.") from None
        finally:
            self._num_waiting -= 1
            if not self._num_waiting:
                self._nobody_waits.set()

    async def leave(self) -> None:
        """Return when it is out of memory, and all who were given it or had waited for it are answered."""
        await self._nobody_waits.wait()
        await self.checkpoint.unload()

    def _arrived(self, arrival: asyncio.Task[None]) -> None:
        self.arrival = None
        if not arrival.cancelled():
            arrival.exception()  # looked at: perhaps nobody waits for it any more


class Residency(Generic[EngineT, DescriptionT, BatcherT]):
    """Models whose parameters take at most `max_bytes` together, 0: any number.

    `measure` returns the bytes that those of a checkpoint folder will take, on any thread; it raises ValueError or
    OSError for one that can't be measured. `describe` returns what is known of a model also while it is not in memory;
    `setting` is the name of the setting of `max_bytes`, for error messages. One model is loaded at a time.
    """

    def __init__(
        self,
        *,
        max_bytes: int,
        measure: Callable[[Path], int],
        describe: Callable[[EngineT], DescriptionT],
        metrics: Metrics,
        setting: str,
    ) -> None:
        self.residents: list[Resident[EngineT, DescriptionT, BatcherT]] = []
        self.describe = describe
        self._setting = setting
        self._max_bytes = max_bytes
        self._measure = measure
        self._metrics = metrics
        self._held: dict[object, tuple[str, int]] = {}  # of each version that is in memory, or on its way in or out
        self.has_changed = asyncio.Event()  # a model is in memory, or a version is out of it
        self._one_at_a_time = asyncio.Lock()

    def add(
        self, follow: Callable[[MemoryBudget], ServedCheckpoint[EngineT, BatcherT]]
    ) -> Resident[EngineT, DescriptionT, BatcherT]:
        """A model that is loaded into the room it is given."""
        resident: Resident[EngineT, DescriptionT, BatcherT] = Resident(self)
        resident.checkpoint = follow(resident)
        self._metrics.model_resident_bytes.labels(resident.checkpoint.name).set(0)
        self.residents.append(resident)
        return resident

    async def start(self) -> None:
        """Load one after the other, as ServedCheckpoint.start does; those stay that have room."""
        for resident in self.residents:
            await resident.checkpoint.start()

    async def close(self) -> None:
        """Let go of everything; what waits for a model or a batch fails."""
        arrivals = [resident.arrival for resident in self.residents if resident.arrival is not None]
        for arrival in arrivals:
            arrival.cancel()
        if arrivals:
            await asyncio.wait(arrivals)
        for resident in self.residents:
            await resident.checkpoint.close()

    @asynccontextmanager
    async def lease(
        self, resident: Resident[EngineT, DescriptionT, BatcherT], deadline: float
    ) -> AsyncIterator[Served[EngineT, BatcherT]]:
        """The version that serves, kept in memory until the block ends.

        Waits for it to be loaded until `deadline`, a reading of `time.monotonic()`. Raises what `Resident.arrive`
        raises.
        """
        resident.last_used = time.monotonic()
        if not resident.checkpoint.is_loaded:
            await resident.arrive(deadline)
        # nothing is awaited between here and the lease, so that it is still there
        with resident.checkpoint.lease() as served:
            resident.num_leases += 1
            try:
                yield served
            finally:
                resident.num_leases -= 1
                resident.last_used = time.monotonic()

    @property
    def held_bytes(self) -> int:
        """Bytes of all parameters in memory."""
        return sum(size for _, size in self._held.values())

    @asynccontextmanager
    async def entered(
        self, newcomer: Resident[EngineT, DescriptionT, BatcherT], folder: Path, manifest: Manifest
    ) -> AsyncIterator[Callable[[], None]]:
        """See MemoryBudget."""
        checkpoint = f"{manifest.name}@{manifest.version}"
        try:
            needed = await asyncio.to_thread(self._measure, folder)
        except (OSError, ValueError) as error:
            raise InvalidCheckpoint(f"{checkpoint}: its weights can't be measured ({type(error).__name__})") from error
        if 0 < self._max_bytes < needed:
            raise InvalidCheckpoint(
                f"{checkpoint}: its parameters take {needed} bytes, but the limit for all models is {self._max_bytes} "
                f"({self._setting})"
            )
        async with self._one_at_a_time:
            await self._make_room(needed, newcomer)
            place = object()
            self._held[place] = (manifest.name, needed)
            self._show(manifest.name)

            def leave() -> None:
                self._held.pop(place, None)
                self._show(manifest.name)
                self.has_changed.set()

            try:
                yield leave
            except BaseException:
                leave()
                raise

    async def _make_room(self, needed: int, newcomer: Resident[EngineT, DescriptionT, BatcherT]) -> None:
        """Unload idle models before those that are answering, and the newcomer's own previous version last of all."""
        while 0 < self._max_bytes < self.held_bytes + needed:
            self.has_changed.clear()
            order = [(one is newcomer, one.num_leases > 0, one.last_used) for one in self.residents]
            ranked = sorted(zip(order, range(len(order)), strict=True))
            loaded = [self.residents[place] for _, place in ranked if self.residents[place].checkpoint.is_loaded]
            if loaded:
                await loaded[0].leave()
            else:
                await self.has_changed.wait()  # until a version that was replaced has answered

    def _show(self, name: str) -> None:
        size = sum(size for owner, size in self._held.values() if owner == name)
        self._metrics.model_resident_bytes.labels(name).set(size)
