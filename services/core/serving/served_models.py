"""The models of a service: a request names one of them, or is answered by the first.

Models may share a budget of memory: the one that was asked least recently makes room for another. A model that is not
in memory is loaded when it is asked, once for all requests that wait for it. One that is answering is never
interrupted: requests that have it keep it until they are done, later ones wait until it is loaded again.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Generic

from typing_extensions import TypeVar

from services.core.batching.batcher import Batcher
from services.core.errors import DeadlineExceeded, NotFound, Overloaded
from services.core.exchange import RequestContext
from services.core.metrics import Metrics
from services.core.refusals import did_you_mean
from services.core.serving.model_versions import ModelVersion, ModelVersionList
from services.core.serving.served_checkpoint import (
    LOADING_RETRY_AFTER_S,
    Answering,
    CheckpointEngine,
    MemoryBudget,
    Served,
    ServedCheckpoint,
)
from services.core.store.errors import InvalidCheckpoint, StoreError
from services.core.store.manifest import Manifest
from services.core.store.store import Store
from services.core.store.versions import Version

# Older versions are listed only where an alias names them.
MAX_LISTED = 50

# Versions, newest first, and for each alias the version that it names.
Listing = tuple[list[Version], dict[str, str]]


class StoredModels:
    """The names, kinds and versions of the models in a store, read again once they are older than `max_age_s`.

    However often clients ask, the store is asked seldom. Nothing is known where it can't be read. `runs` has the kinds
    that the service runs, so that errors tell what can be served from what can't.
    """

    def __init__(self, store: Store, *, runs: Collection[str], max_age_s: float) -> None:
        self.runs = runs
        self._store = store
        self._max_age_s = max_age_s
        self._names: frozenset[str] = frozenset()
        self._kinds: dict[str, str] = {}
        self._read_at = -math.inf
        self._listings: dict[str, tuple[float, asyncio.Task[Listing | None]]] = {}

    async def kind(self, name: str) -> str | None:
        """Return the kind of a model's newest version, an empty text where it can't be read; None without the model."""
        if time.monotonic() - self._read_at > self._max_age_s:
            self._read_at = time.monotonic()
            self._kinds = {}
            try:
                self._names = frozenset(await asyncio.to_thread(self._store.names))
            except StoreError:
                self._names = frozenset()
        if name not in self._names:
            return None
        if name not in self._kinds:
            self._kinds[name] = await asyncio.to_thread(self._kind, name)
        return self._kinds[name]

    async def versions(self, name: str) -> Listing | None:
        """Return the versions of a model that is served, and what its aliases name; None where they can't be read.

        One reading answers all who ask meanwhile, and goes on for the next when one of them gives up.
        """
        began, reading = self._listings.get(name, (-math.inf, None))
        if reading is None or (reading.done() and time.monotonic() - began > self._max_age_s):
            reading = asyncio.create_task(asyncio.to_thread(self._list, name))
            self._listings[name] = (time.monotonic(), reading)
        return await asyncio.shield(reading)

    def _kind(self, name: str) -> str:
        try:
            newest = next(iter(self._store.versions(name)), None)
            return "" if newest is None else self._store.manifest(name, newest.id).kind
        except StoreError:
            return ""

    def _list(self, name: str) -> Listing | None:
        try:
            aliases = {alias: found.version for alias, found in self._store.aliases(name).items()}
            versions = self._store.versions(name)
        except StoreError:
            return None
        named = set(aliases.values())
        return [one for number, one in enumerate(versions) if number < MAX_LISTED or one.id in named], aliases


EngineT = TypeVar("EngineT", bound=CheckpointEngine)
DescriptionT = TypeVar("DescriptionT")
BatcherT = TypeVar("BatcherT", bound=Answering, default=Batcher[Any, Any])


class Resident(Generic[EngineT, DescriptionT, BatcherT]):
    """One of the models, in memory or not; `description` is that of the version that serves, None before the first.

    A MemoryBudget of its own checkpoint.
    """

    checkpoint: ServedCheckpoint[EngineT, BatcherT]

    def __init__(self, models: "ServedModels[EngineT, DescriptionT, BatcherT]") -> None:
        self.description: DescriptionT | None = None
        self.num_leases = 0
        self.last_used = 0.0
        self.arrival: asyncio.Task[None] | None = None
        self._models = models
        self._num_waiting = 0
        self._nobody_waits = asyncio.Event()
        self._nobody_waits.set()

    @property
    def is_missed(self) -> bool:
        """Whether it could not be loaded, and never was before."""
        return self.checkpoint.has_failed and self.description is None

    def entered(self, folder: Path, manifest: Manifest) -> AbstractAsyncContextManager[Callable[[], None]]:
        return self._models.entered(self, folder, manifest)

    def serves(self, engine: EngineT) -> None:
        self.description = self._models.describe(engine)
        self._models.has_changed.set()

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


class ServedModels(Generic[EngineT, DescriptionT, BatcherT]):
    """Finds the model that a request names and leases it. Parameters take `max_bytes` at most together, 0: any number.

    `measure` returns the bytes that those of a checkpoint folder will take, on any thread; it raises ValueError or
    OSError for one that can't be measured. `describe` returns what is known of a model also while it is not in memory.
    `settings` is how the names of the service's settings begin. One model is loaded at a time.
    """

    def __init__(
        self,
        stored: StoredModels,
        *,
        max_bytes: int,
        measure: Callable[[Path], int],
        describe: Callable[[EngineT], DescriptionT],
        settings: str,
        metrics: Metrics,
    ) -> None:
        self.residents: list[Resident[EngineT, DescriptionT, BatcherT]] = []
        self.describe = describe
        self._stored = stored
        self._max_bytes = max_bytes
        self._measure = measure
        self._settings = settings
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

    def named(self, name: str) -> Resident[EngineT, DescriptionT, BatcherT] | None:
        """Return the model of this name, without alias or version; None if it is not served."""
        return next((one for one in self.residents if one.checkpoint.name == name), None)

    async def find(self, asked: str | None) -> Resident[EngineT, DescriptionT, BatcherT]:
        """Return the model that a request calls `name`, `name@alias` or `name@version`; the first for None.

        The only model may be called by its alias alone. Raises NotFound for one that is not served, and Overloaded for
        a version that may be on its way.
        """
        if not asked or (len(self.residents) == 1 and asked == self.residents[0].checkpoint.alias):
            return self.residents[0]
        resident = self.named(asked.partition("@")[0])
        if resident is None:
            raise await self.missing(asked)
        if asked not in resident.checkpoint.names:
            if resident.description is None:
                raise resident.checkpoint.not_loaded()
            raise await self.missing(asked)
        return resident

    async def missing(self, asked: str) -> NotFound:
        """Make the error for a model that is not served."""
        names = self.told_names
        name, _, version = asked.partition("@")
        near = did_you_mean(name, self._names) or "."
        message = f"There is no model {asked!r}: this service serves {names}{near}"
        if self.named(name) is not None:
            message = f"{name!r} is served, but not as {version!r}."
        elif (kind := await self._stored.kind(name)) is not None:
            message = f"The model {name!r} is in the store, but this service serves {names} ({self._settings}_MODELS)."
            if kind and kind not in self._stored.runs:
                message = (
                    f"The model {name!r} is a {kind} checkpoint; this service runs {told_kinds(self._stored.runs)}."
                )
        return NotFound(message, param="model", code="model_not_found")

    async def versions(self, name: str) -> ModelVersionList:
        """Return the versions of a served model in the store. Raises NotFound, and Overloaded if it can't be read."""
        checkpoint = (await self.find(name)).checkpoint
        listing = await self._stored.versions(checkpoint.name)
        if listing is None:
            message = f"The store can't be read, which has the versions of {checkpoint.name!r}."
            raise Overloaded(message, code="store_unavailable", retry_after_s=LOADING_RETRY_AFTER_S)
        versions, aliases = listing
        refused, reason = checkpoint.refused or (None, None)
        return ModelVersionList(
            followed=checkpoint.alias,
            data=[
                ModelVersion(
                    version=one.id,
                    created=int(one.published.timestamp()),
                    size_bytes=one.size_bytes,
                    aliases=sorted(alias for alias, version in aliases.items() if version == one.id),
                    serving=checkpoint.manifest is not None and checkpoint.manifest.version == one.id,
                    refusal=reason if one.id == refused else None,
                )
                for one in versions
            ],
        )

    @asynccontextmanager
    async def lease(self, asked: str | None, context: RequestContext) -> AsyncIterator[Served[EngineT, BatcherT]]:
        """Hold the version that answers a request in memory until the block ends, and note it in `context`.

        Raises what `find` and `hold` raise, and NotFound if a version was asked for and replaced in the meantime.
        """
        async with self.hold(await self.find(asked), context, asked=asked) as served:
            yield served

    @asynccontextmanager
    async def hold(
        self,
        resident: Resident[EngineT, DescriptionT, BatcherT],
        context: RequestContext,
        *,
        asked: str | None = None,
    ) -> AsyncIterator[Served[EngineT, BatcherT]]:
        """Lease one of the models, which is loaded by the deadline if it is not in memory.

        Raises Overloaded while it has never been loaded, and what `Resident.arrive` raises.
        """
        context.asked_model = asked
        if resident.description is None:
            raise resident.checkpoint.not_loaded()
        resident.last_used = time.monotonic()
        if not resident.checkpoint.is_loaded:
            began = time.perf_counter()
            await resident.arrive(context.deadline)
            context.timing.add("load", time.perf_counter() - began)
        # nothing is awaited between here and the lease, so that it is still there
        with resident.checkpoint.lease() as served:
            resident.num_leases += 1
            try:
                context.model = served.label
                if asked:
                    await self.find(asked)
                yield served
            finally:
                resident.num_leases -= 1
                resident.last_used = time.monotonic()

    def is_vital(self, resident: Resident[EngineT, DescriptionT, BatcherT]) -> bool:
        """Whether the service is not ready while this model does not serve.

        One that could not be loaded does not keep requests from the others, if there are others that serve.
        """
        others_serve = any(other.checkpoint.check()[0] for other in self.residents if other is not resident)
        return not (resident.is_missed and others_serve)

    @property
    def told_names(self) -> str:
        """Enumerate the models that serve or are being loaded."""
        return ", ".join(map(repr, self._names)) or "no model at present"

    @property
    def _names(self) -> list[str]:
        return [one.checkpoint.name for one in self.residents if not one.is_missed]

    def described(self) -> list[tuple[Resident[EngineT, DescriptionT, BatcherT], DescriptionT]]:
        """Return the models that have been loaded before, in memory or not. Raises Overloaded if there are none yet."""
        known = [(one, one.description) for one in self.residents if one.description is not None]
        if not known:
            raise self._loading([one.checkpoint for one in self.residents])
        return known

    def check_arrived(self, asked: str) -> None:
        """Raise Overloaded where what nobody has may be that of a model that has not been loaded yet, or be its name.

        A model that the store lacks has nothing but its name.
        """
        absent = [one.checkpoint for one in self.residents if one.description is None]
        awaited = [one for one in absent if not one.is_lacking or asked in one.names]
        if awaited:
            raise self._loading(awaited)

    def _loading(self, absent: Sequence[ServedCheckpoint[EngineT, BatcherT]]) -> Overloaded:
        """Count and return the refusal of a request for models that have not been loaded yet."""
        self._metrics.rejected.labels("loading").inc()
        message = " ".join(one.absence for one in absent)
        return Overloaded(message, code="loading", retry_after_s=LOADING_RETRY_AFTER_S)

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
                f"({self._settings}_MEMORY_BYTES)"
            )
        async with self._one_at_a_time:
            await self._make_room(needed, newcomer)
            entry = object()
            self._held[entry] = (manifest.name, needed)
            self._show(manifest.name)

            def leave() -> None:
                self._held.pop(entry, None)
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
            loaded = [one for one in self.residents if one.checkpoint.is_loaded]
            if loaded:
                await min(loaded, key=lambda one: (one is newcomer, one.num_leases > 0, one.last_used)).leave()
            else:
                await self.has_changed.wait()  # until a version that was replaced has answered

    def _show(self, name: str) -> None:
        size = sum(size for owner, size in self._held.values() if owner == name)
        self._metrics.model_resident_bytes.labels(name).set(size)


def told_kinds(kinds: Collection[str]) -> str:
    """Enumerate the kinds of checkpoints that a service runs: `a, b and c`."""
    *others, last = kinds
    return f"{', '.join(others)} and {last}" if others else last
