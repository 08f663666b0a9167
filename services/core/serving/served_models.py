"""The models of a service: a request names one of them, or is answered by the first."""

import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic

from typing_extensions import TypeVar

from services.core.batching.batcher import Batcher
from services.core.errors import NotFound, Overloaded
from services.core.exchange import RequestContext
from services.core.http.health import CheckResult
from services.core.metrics import Metrics
from services.core.serving.candidates import CheckpointEngine
from services.core.serving.model_versions import ModelVersion, ModelVersionList
from services.core.serving.residency import Residency, Resident
from services.core.serving.served_checkpoint import LOADING_RETRY_AFTER_S, Answering, Served
from services.core.serving.stored_models import StoredModels

EngineT = TypeVar("EngineT", bound=CheckpointEngine)
DescriptionT = TypeVar("DescriptionT")
BatcherT = TypeVar("BatcherT", bound=Answering, default=Batcher[Any, Any])


class ServedModels(Generic[EngineT, DescriptionT, BatcherT]):
    """Finds the model that a request names and leases it.

    `stored` knows the models in the store, and `runs` has the kinds that the service runs, so that errors tell what can
    be served from what can't; `setting` is the name of the setting that lists the served ones.
    """

    def __init__(
        self,
        residency: Residency[EngineT, DescriptionT, BatcherT],
        *,
        stored: StoredModels,
        runs: Collection[str],
        setting: str,
        metrics: Metrics,
    ) -> None:
        self._residency = residency
        self._stored = stored
        self._runs = runs
        self._setting = setting
        self._metrics = metrics

    @property
    def residents(self) -> Sequence[Resident[EngineT, DescriptionT, BatcherT]]:
        return self._residency.residents

    async def start(self) -> None:
        await self._residency.start()

    async def close(self) -> None:
        await self._residency.close()

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
        names = ", ".join(repr(one.checkpoint.name) for one in self.residents)
        name, _, version = asked.partition("@")
        message = f"There is no model {asked!r}: this service serves {names}."
        if self.named(name) is not None:
            message = f"{name!r} is served, but not as {version!r}."
        elif (kind := await self._stored.kind(name)) is not None:
            message = f"The model {name!r} is in the store, but this service serves {names} ({self._setting})."
            if kind and kind not in self._runs:
                message = f"The model {name!r} is a {kind} checkpoint; this service runs {told_kinds(self._runs)}."
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
        """Lease one of the models, which is loaded if it is not in memory.

        Raises Overloaded while it has never been loaded, and what `Residency.lease` raises.
        """
        if resident.description is None:
            raise resident.checkpoint.not_loaded()
        began = time.perf_counter()
        was_loaded = resident.checkpoint.is_loaded
        async with self._residency.lease(resident, context.deadline) as served:
            if not was_loaded:
                context.timing.add("load", time.perf_counter() - began)
            context.model = served.label
            if asked:
                await self.find(asked)
            yield served

    def check(self, resident: Resident[EngineT, DescriptionT, BatcherT]) -> CheckResult:
        """Report for `/readyz` what serves under one name.

        A model that could not be loaded does not keep requests from the others, if there are others that serve: the
        report says why it could not.
        """
        serves, detail = resident.checkpoint.check()
        is_missed = resident.checkpoint.has_failed and resident.description is None
        others_serve = any(other.checkpoint.check()[0] for other in self.residents if other is not resident)
        return serves or (is_missed and others_serve), detail

    def described(self) -> list[tuple[Resident[EngineT, DescriptionT, BatcherT], DescriptionT]]:
        """Return the models that have been loaded before, in memory or not. Raises Overloaded if there are none yet."""
        known = [(one, one.description) for one in self.residents if one.description is not None]
        if not known:
            raise self.loading()
        return known

    def loading(self) -> Overloaded:
        """Count and return the refusal of a request whose model may be one that has not been loaded yet."""
        self._metrics.rejected.labels("loading").inc()
        absent = [one.checkpoint.absence for one in self.residents if one.description is None]
        return Overloaded(" ".join(absent), code="loading", retry_after_s=LOADING_RETRY_AFTER_S)


def told_kinds(kinds: Collection[str]) -> str:
    """Enumerate the kinds of checkpoints that a service runs: `a, b and c`."""
    *others, last = kinds
    return f"{', '.join(others)} and {last}" if others else last
