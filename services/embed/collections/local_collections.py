"""The collections of one process: those that are open, those that can't be opened, and the task that retries these.

A fault of one collection does not affect others: its requests get 503, the log and `/readyz` name it, and it is opened
again once it is repaired.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import structlog

from services.core.errors import FoveaError, Misdirected, NotFound, Overloaded
from services.core.http.health import CheckResult
from services.embed.collections.collection import OpenCollection, OpenCollections, describe_problems
from services.embed.collections.indexes import Changes
from services.embed.collections.local_indexes import LocalIndexes
from services.embed.collections.serving import Serving
from services.embed.collections.storage.catalog import CatalogInUse, CollectionKey, check_tenant, no_collection
from services.embed.collections.storage.database import DatabaseFailed, StorageFull
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.image_store import CollectionInfo, ImageStore

# Time between attempts to lock the folder while the process that this one replaces still holds it.
LOCK_POLL_S = 0.5
# Time between attempts to open what failed.
RETRY_S = 5.0
# Name for all collections of a tenant whose folder can't be listed.
ALL = ""
NOT_YET = "not opened yet"

Result = TypeVar("Result")


class LocalCollections(OpenCollections):
    """The collections in a folder, which no other process has open."""

    def __init__(self, serving: Serving) -> None:
        super().__init__(serving)
        self._folder = serving.settings.collections_dir
        self._catalog: FolderCatalog | None = None
        self._is_open = False
        # why collections are not open
        self._failures: dict[CollectionKey, str] = {}
        self._to_close: dict[CollectionKey, OpenCollection] = {}

    async def _close_all(self) -> None:
        await asyncio.gather(*[collection.close() for collection in self._to_close.values()])
        if self._catalog is not None:
            self._catalog.close()

    async def get(self, key: CollectionKey) -> OpenCollection:
        """Raises NotFound if it does not exist, Overloaded if it can't be opened, and Misdirected if this process has
        no collections at all."""
        self._check_open()
        check_tenant(key.tenant)
        if key in self._failures or CollectionKey(key.tenant, ALL) in self._failures:
            raise _not_opened(key)
        try:
            return self._collections[key]
        except KeyError:
            if not self._max_collections and not self._collections:
                raise Misdirected(
                    "This process of embed keeps no collections, another one does.",
                    param="collection",
                    code="no_collections_here",
                ) from None
            raise no_collection(key.name) from None

    async def of(self, tenant: str) -> tuple[Sequence[OpenCollection], Sequence[str]]:
        self._check_open()
        if CollectionKey(tenant, ALL) in self._failures:
            raise Overloaded("The collections currently can't be listed.", code="collection_not_open")
        own = [self._collections[key] for key in sorted(self._collections) if key.tenant == tenant]
        return own, sorted(key.name for key in self._failures if key.tenant == tenant)

    async def get_or_make(self, tenant: str, info: CollectionInfo) -> tuple[OpenCollection, bool]:
        key = CollectionKey(tenant, info.name)
        async with self._changing:
            catalog = self._check_open()
            with suppress(NotFound):
                return await self.get(key), False
            own, unavailable = await self.of(tenant)
            self._check_number(len(own) + len(unavailable) + 1)
            store = await asyncio.to_thread(catalog.create, info, tenant)
            await self._start(catalog, key, store)
            return self._collections[key], True

    async def delete(self, key: CollectionKey) -> None:
        """Remove a collection once the requests that use it have ended."""
        async with self._changing:
            catalog = self._check_open()
            collection = await self.get(key)
            del self._collections[key]
            self._damaged.pop(key, None)
            try:
                await collection.close()
                await asyncio.to_thread(self._with_room, lambda: catalog.delete(key.name, key.tenant))
            except Exception as error:
                self._note(key, _reason(error))
                raise _not_opened(key) from error

    def check(self) -> CheckResult:
        if not self._is_open:
            return True, f"not open: {self._problem}"
        number = len(self._collections) + len(self._failures)
        problems = describe_problems(self._failures | self._damaged)
        return True, "; ".join([f"{len(self._collections)} of {number} open", *problems])

    def _check_open(self) -> FolderCatalog:
        if self._catalog is None or not self._is_open:
            raise self._not_open()
        return self._catalog

    async def _keep_open(self) -> None:
        self._catalog = catalog = await self._open_catalog()
        await self._try_again(catalog)
        self._is_open = True
        _log().info("collections open", folder=str(self._folder), collections=len(self._collections))
        while True:
            await asyncio.sleep(RETRY_S)
            await self._try_again(catalog)

    async def _open_catalog(self) -> FolderCatalog:
        """Open the folder and list its collections, retrying until that succeeds."""
        while True:
            try:
                catalog = await asyncio.to_thread(FolderCatalog.open, self._folder)
                try:
                    for tenant in await asyncio.to_thread(catalog.tenants):
                        await self._list(catalog, tenant)
                except BaseException:
                    catalog.close()
                    raise
                await asyncio.to_thread(self._serving.ballast.take_room)
                return catalog
            except CatalogInUse as error:
                self._problem, reason, pause_s = "another process holds their folder", str(error), LOCK_POLL_S
            except (OSError, FoveaError) as error:
                self._problem, reason, pause_s = "their folder can't be opened", _reason(error), RETRY_S
            if reason != self._reported:  # once, not at each attempt
                _log().warning("collections wait for their folder", folder=str(self._folder), reason=reason)
            self._reported = reason
            await asyncio.sleep(pause_s)

    async def _list(self, catalog: FolderCatalog, tenant: str) -> None:
        """Note all collections of a tenant as not open yet."""
        try:
            names = await asyncio.to_thread(catalog.names, tenant)
        except OSError as error:
            self._note(CollectionKey(tenant, ALL), _reason(error))
            return
        self._failures.pop(CollectionKey(tenant, ALL), None)
        for name in names:
            self._failures[CollectionKey(tenant, name)] = NOT_YET

    async def _try_again(self, catalog: FolderCatalog) -> None:
        """Open the collections that are not open."""
        for tenant, name in sorted(self._failures):
            if name == ALL:
                await self._list(catalog, tenant)
        for key in sorted(self._failures):
            if key.name != ALL:
                await self._reopen(catalog, key)

    async def _reopen(self, catalog: FolderCatalog, key: CollectionKey) -> None:
        log = _log().bind(tenant=key.tenant, collection=key.name)
        try:
            if key in self._to_close:
                await self._to_close[key].close(_not_opened(key))
                del self._to_close[key]
            store = await asyncio.to_thread(self._open_store, catalog, key)
            if store is None:
                log.error("collection is gone")
                del self._failures[key]
                return
            await self._start(catalog, key, store)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with this one, the others are served
            self._note(key, _reason(error))
        else:
            if self._failures.pop(key) != NOT_YET:
                log.info("collection open again")

    def _open_store(self, catalog: FolderCatalog, key: CollectionKey) -> ImageStore | None:
        """Open a collection's store; None if the folder is gone."""
        if not catalog.folder(key.name, key.tenant).exists() and key.name not in catalog.names(key.tenant):
            return None
        # SQLite's auxiliary files for an open database need space, too
        return self._with_room(lambda: catalog.open_store(key.name, key.tenant))

    def _with_room(self, use: Callable[[], Result]) -> Result:
        """Use the disk; where it is full, with the space that is kept for this."""
        try:
            return use()
        except StorageFull:
            with self._serving.ballast.given_up():
                return use()

    async def _start(self, catalog: FolderCatalog, key: CollectionKey, store: ImageStore) -> None:
        changes = Changes()
        open_checkpoint = partial(
            LocalIndexes, store, catalog.folder(key.name, key.tenant), serving=self._serving, changes=changes
        )
        collection = OpenCollection(
            store, self._serving, changes, open_checkpoint, on_failure=lambda error: self._fail(key, collection, error)
        )
        try:
            rows = await asyncio.to_thread(store.rows)
            changes.note_rows(rows[-1:].tolist())
            await collection.start()
        except BaseException:
            await asyncio.to_thread(store.close)
            raise
        self._collections[key] = collection
        self._damaged.pop(key, None)

    def _fail(self, key: CollectionKey, collection: OpenCollection, error: DatabaseFailed) -> None:
        """Handle a failure of an open collection: unless all of it is damaged, its intact part stays in use."""
        if self._collections.get(key) is not collection:
            return
        if error.is_partial:
            self._note_damage(key, error)
            return
        self._to_close[key] = self._collections.pop(key)
        self._note(key, error.reason)

    def _note(self, key: CollectionKey, reason: str) -> None:
        """Note a failure, and log its reason if that is another than before."""
        if self._failures.get(key) != reason:
            _log().error("collection not open", tenant=key.tenant, collection=key.name or "all", reason=reason)
        self._failures[key] = reason


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
    return logger


def _reason(error: Exception) -> str:
    if isinstance(error, DatabaseFailed):
        return error.reason
    return f"{type(error).__name__}: {error}"


def _not_opened(key: CollectionKey) -> Overloaded:
    return Overloaded(
        f"The collection {key.name!r} currently can't be opened; see the server's log.",
        param="collection",
        code="collection_not_open",
    )
