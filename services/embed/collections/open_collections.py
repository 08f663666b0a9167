"""The collections of all tenants that a process has open, whether they are its own or shared with other processes."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import structlog

from services.core.errors import Overloaded, TooLarge
from services.core.http.health import CheckResult
from services.embed.collections.collection import Collection, CollectionOptions, Serving
from services.embed.collections.storage.catalog import CollectionKey
from services.embed.collections.storage.database import DatabaseFailed
from services.embed.collections.storage.image_store import CollectionInfo

# Number of problems that `/readyz` describes; further ones are only counted.
MAX_DESCRIBED = 10


class OpenCollections(ABC):
    """Methods that use collections raise Overloaded until these are open or while they can't be reached."""

    def __init__(self, serving: Serving, options: CollectionOptions, *, max_collections: int) -> None:
        self._serving = serving
        self._options = options
        self._max_collections = max_collections
        self._collections: dict[CollectionKey, Collection] = {}
        self._damaged: dict[CollectionKey, str] = {}
        self._changing = asyncio.Lock()
        self._problem = "they are being opened"
        self._reported = ""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the collections, retrying if necessary; close them at the end."""
        tasks = [asyncio.create_task(one) for one in self._tasks()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.gather(*[collection.close() for collection in self._collections.values()])
            await self._close_all()

    @property
    def lag(self) -> int:
        """Number of images that an index still lacks, as far as this process knows."""
        return sum(max(0, collection.lag) for collection in self._collections.values())

    @abstractmethod
    def check(self) -> CheckResult:
        """Report to `/readyz`; what can't be used does not make it fail, but the detail names it and the reason."""

    @abstractmethod
    async def get(self, key: CollectionKey) -> Collection:
        """Raises NotFound if it does not exist, Overloaded if it can't be opened."""

    @abstractmethod
    async def of(self, tenant: str) -> tuple[Sequence[Collection], Sequence[str]]:
        """List a tenant's collections, and the names of those that can't be opened, both sorted by name."""

    @abstractmethod
    async def get_or_make(self, tenant: str, info: CollectionInfo) -> tuple[Collection, bool]:
        """Return a collection and whether it is new. Raises TooLarge for too many, and what Catalog.create raises."""

    @abstractmethod
    async def delete(self, key: CollectionKey) -> None:
        """Remove a collection. Raises NotFound."""

    @abstractmethod
    def _tasks(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Make the tasks that open the collections and keep them open."""

    @abstractmethod
    async def _close_all(self) -> None:
        """Close what is left once the open collections are closed."""

    def _check_number(self, number: int) -> None:
        if number > self._max_collections:
            raise TooLarge(f"There would be {number} collections; the limit is {self._max_collections}.", param="name")

    def _not_open(self) -> Overloaded:
        return Overloaded(f"The collections can't be used yet: {self._problem}.", code="collections_not_open")

    def _note_damage(self, key: CollectionKey, error: DatabaseFailed) -> None:
        """Name a collection of which a part is damaged; the rest of it stays in use."""
        if key not in self._damaged:
            log = structlog.get_logger(__name__)
            log.error("collection damaged", tenant=key.tenant, collection=key.name, reason=error.reason)
        self._damaged[key] = error.reason


def described(problems: dict[CollectionKey, str]) -> list[str]:
    """Describe the problems of collections for `/readyz`."""
    found = [f"{key.tenant}/{key.name}: {problems[key]}" for key in sorted(problems)[:MAX_DESCRIBED]]
    return found if len(problems) <= MAX_DESCRIBED else [*found, f"and {len(problems) - MAX_DESCRIBED} more"]
