"""The collections of one process: those that are open, those that can't be opened, and the task that retries these.

A fault of one collection does not affect others: its requests get 503, the log and `/readyz` name it, and it is opened
again once it is repaired.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

import structlog

from services.core.errors import FoveaError, Misdirected, NotFound, Overloaded, TooLarge
from services.core.http.health import CheckResult
from services.embed.collections.collection import Collection, CollectionOptions, Serving
from services.embed.collections.indexes import Changes
from services.embed.collections.local_indexes import Keeping, LocalIndexes
from services.embed.collections.storage.catalog import CatalogInUse, CollectionKey, check_tenant, no_collection
from services.embed.collections.storage.database import DatabaseFailed, StorageFull
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.image_store import CollectionInfo, ImageStore

# Time between attempts to lock the folder while the process that this one replaces still holds it.
LOCK_POLL_S = 0.5
# Wait before another attempt at opening: the minimum after the first failure, doubled after each further one.
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
# Number of failures that `/readyz` describes; further ones are only counted.
MAX_DESCRIBED = 10
# Name for all collections of a tenant whose folder can't be listed.
ALL = ""


@dataclass(frozen=True)
class Failure:
    """The reason why a collection is not open; `due` and `noted` are readings of `time.monotonic()`."""

    reason: str
    retry_s: float
    due: float
    noted: float


class OpenCollections:
    """`get` and all methods that change collections raise Overloaded until the catalog is open.

    `open_catalog` may raise CatalogInUse; `place` says in the log where the collections are.
    """

    def __init__(
        self,
        open_catalog: Callable[[], FolderCatalog],
        place: str,
        serving: Serving,
        options: CollectionOptions,
        *,
        max_collections: int,
    ) -> None:
        self._open = open_catalog
        self._place = place
        self._serving = serving
        self._options = options
        self._max_collections = max_collections
        self._catalog: FolderCatalog | None = None
        self._is_open = False
        self._not_open_because = "they are being opened"
        self._collections: dict[CollectionKey, Collection] = {}
        self._failures: dict[CollectionKey, Failure] = {}
        self._last_failures: dict[CollectionKey, Failure] = {}
        self._to_close: dict[CollectionKey, Collection] = {}
        self._damaged: dict[CollectionKey, str] = {}
        self._changing = asyncio.Lock()
        self._wake = asyncio.Event()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the folder and its collections, and retry those that can't be opened; close everything at the end."""
        keeping = asyncio.create_task(self._keep_open())
        try:
            yield
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping
            everything = [*self._collections.values(), *self._to_close.values()]
            await asyncio.gather(*[collection.close() for collection in everything])
            if self._catalog is not None:
                self._catalog.close()

    async def get(self, key: CollectionKey) -> Collection:
        """Raises NotFound if it does not exist, Overloaded if it can't be opened, and Misdirected if this process has
        no collections at all."""
        self.check_open()
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

    async def of(self, tenant: str) -> tuple[Sequence[Collection], Sequence[str]]:
        """List a tenant's open collections, and the names of those that can't be opened, both sorted by name."""
        self.check_open()
        if CollectionKey(tenant, ALL) in self._failures:
            raise Overloaded("The collections currently can't be listed.", code="collection_not_open")
        own = [self._collections[key] for key in sorted(self._collections) if key.tenant == tenant]
        return own, sorted(key.name for key in self._failures if key.tenant == tenant)

    async def get_or_make(self, tenant: str, info: CollectionInfo) -> tuple[Collection, bool]:
        """Return a collection and whether it is new. Raises TooLarge for too many, and what Catalog.create raises."""
        key = CollectionKey(tenant, info.name)
        async with self._changing:
            catalog = self.check_open()
            with suppress(NotFound):
                return await self.get(key), False
            own, unavailable = await self.of(tenant)
            if (number := len(own) + len(unavailable)) >= self._max_collections:
                raise TooLarge(
                    f"There would be {number + 1} collections; the limit is {self._max_collections}.", param="name"
                )
            store = await asyncio.to_thread(catalog.create, info, tenant)
            await self._start(catalog, key, store)
            return self._collections[key], True

    async def delete(self, key: CollectionKey) -> None:
        """Remove a collection once the requests that use it have ended."""
        async with self._changing:
            catalog = self.check_open()
            collection = await self.get(key)
            del self._collections[key]
            self._damaged.pop(key, None)
            try:
                await collection.close()
                await asyncio.to_thread(self._delete, catalog, key)
            except Exception as error:
                self._note(key, _reason(error))
                self._wake.set()
                raise _not_opened(key) from error

    @property
    def lag(self) -> int:
        """Number of images that an index still lacks, over all collections."""
        return sum(max(0, collection.lag) for collection in self._collections.values())

    def check(self) -> CheckResult:
        """Report to `/readyz`; a damaged collection does not make it fail, but the detail names it and the reason."""
        if not self._is_open:
            return True, f"not open: {self._not_open_because}"
        problems = {key: failure.reason for key, failure in self._failures.items()} | self._damaged
        number = len(self._collections) + len(self._failures)
        detail = f"{len(self._collections)} of {number} open"
        described = [f"{key.tenant}/{key.name}: {problems[key]}" for key in sorted(problems)[:MAX_DESCRIBED]]
        if len(problems) > MAX_DESCRIBED:
            described.append(f"and {len(problems) - MAX_DESCRIBED} more")
        return True, "; ".join([detail, *described])

    def check_open(self) -> FolderCatalog:
        """Return the catalog of the folder. Raises Overloaded until it is open."""
        if self._catalog is None or not self._is_open:
            raise Overloaded(
                f"The collections can't be used yet: {self._not_open_because}.", code="collections_not_open"
            )
        return self._catalog

    async def _keep_open(self) -> None:
        self._catalog = catalog = await self._open_catalog()
        await self._try_again(catalog)
        self._is_open = True
        log = structlog.get_logger(__name__)
        log.info("collections open", folder=self._place, collections=len(self._collections))
        while True:
            due = min((failure.due for failure in self._failures.values()), default=None)
            with suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                    await self._wake.wait()
            self._wake.clear()
            await self._try_again(catalog)

    async def _open_catalog(self) -> FolderCatalog:
        """Open the folder and list its collections, retrying until that succeeds."""
        reported, retry_s = "", MIN_RETRY_S
        while True:
            try:
                catalog = await asyncio.to_thread(self._open)
                try:
                    for tenant in await asyncio.to_thread(catalog.tenants):
                        await self._list(catalog, tenant)
                except BaseException:
                    catalog.close()
                    raise
                await asyncio.to_thread(self._serving.ballast.take_room)
                return catalog
            except CatalogInUse as error:
                self._not_open_because, reason, pause_s = "another process holds their folder", str(error), LOCK_POLL_S
            except (OSError, FoveaError) as error:
                self._not_open_because, reason, pause_s = "their folder can't be opened", _reason(error), retry_s
                retry_s = min(2 * retry_s, MAX_RETRY_S)
            if reason != reported:  # once, not at each attempt
                structlog.get_logger(__name__).warning(
                    "collections wait for their folder", folder=self._place, reason=reason
                )
            reported = reason
            await asyncio.sleep(pause_s)

    async def _list(self, catalog: FolderCatalog, tenant: str) -> None:
        """Note all collections of a tenant as due for opening."""
        now = time.monotonic()
        try:
            names = await asyncio.to_thread(catalog.names, tenant)
        except OSError as error:
            self._note(CollectionKey(tenant, ALL), _reason(error))
            return
        self._failures.pop(CollectionKey(tenant, ALL), None)
        for name in names:
            self._failures[CollectionKey(tenant, name)] = Failure("not opened yet", 0.0, now, now)

    async def _try_again(self, catalog: FolderCatalog) -> None:
        """Open the collections that are due."""
        for tenant, name in sorted(self._failures):
            if name == ALL and self._failures[CollectionKey(tenant, ALL)].due <= time.monotonic():
                await self._list(catalog, tenant)
        for key in sorted(self._failures):
            if key.name != ALL and self._failures[key].due <= time.monotonic():
                await self._reopen(catalog, key)

    async def _reopen(self, catalog: FolderCatalog, key: CollectionKey) -> None:
        log = structlog.get_logger(__name__).bind(tenant=key.tenant, collection=key.name)
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
            was_failing = self._failures.pop(key).retry_s > 0
            if was_failing:
                log.info("collection open again")

    def _open_store(self, catalog: FolderCatalog, key: CollectionKey) -> ImageStore | None:
        """Open a collection's store; None if the folder is gone."""
        if not catalog.folder(key.name, key.tenant).exists() and key.name not in catalog.names(key.tenant):
            return None
        try:
            return catalog.open_store(key.name, key.tenant)
        except StorageFull:  # SQLite's auxiliary files for an open database need space, too
            with self._serving.ballast.given_up():
                return catalog.open_store(key.name, key.tenant)

    async def _start(self, catalog: FolderCatalog, key: CollectionKey, store: ImageStore) -> None:
        changes = Changes()
        open_checkpoint = partial(
            LocalIndexes.open,
            store,
            catalog.folder(key.name, key.tenant),
            keeping=Keeping(self._options.index, self._options.max_state_bytes, self._serving.fresh),
            changes=changes,
        )
        collection = Collection(
            store,
            self._serving,
            self._options,
            changes,
            open_checkpoint,
            on_failure=lambda error: self._fail(key, collection, error),
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

    def _delete(self, catalog: FolderCatalog, key: CollectionKey) -> None:
        try:
            catalog.delete(key.name, key.tenant)
        except StorageFull:
            with self._serving.ballast.given_up():
                catalog.delete(key.name, key.tenant)

    def _fail(self, key: CollectionKey, collection: Collection, error: DatabaseFailed) -> None:
        """Handle a failure of an open collection: unless all of it is damaged, its intact part stays in use."""
        if self._collections.get(key) is not collection:
            return
        if error.is_partial:
            if key not in self._damaged:
                log = structlog.get_logger(__name__)
                log.error("collection damaged", tenant=key.tenant, collection=key.name, reason=error.reason)
            self._damaged[key] = error.reason
            return
        self._to_close[key] = self._collections.pop(key)
        self._note(key, error.reason)
        self._wake.set()

    def _note(self, key: CollectionKey, reason: str) -> None:
        """Schedule a retry, later if there was a failure shortly before."""
        now, last = time.monotonic(), self._last_failures.get(key)
        is_new = last is None or now - last.noted > 2 * MAX_RETRY_S
        retry_s = MIN_RETRY_S if last is None or is_new else min(2 * last.retry_s, MAX_RETRY_S)
        if last is None or is_new or last.reason != reason:
            structlog.get_logger(__name__).error(
                "collection not open", tenant=key.tenant, collection=key.name or "all", reason=reason
            )
        self._failures[key] = self._last_failures[key] = Failure(reason, retry_s, now + retry_s, now)


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
