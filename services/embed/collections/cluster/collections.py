"""The collections that this process shares with others: opened when they are asked for or have images to index.

A name is looked up in PostgreSQL for each request, so that what other processes have created or deleted is known.
"""

import asyncio
import fcntl
import itertools
import os
import random
import shutil
import socket
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import structlog

from services.core.backoff import backoff_s
from services.core.errors import FoveaError, NotFound, Overloaded
from services.core.http.health import CheckResult
from services.core.store.objects import Objects
from services.embed.collections.cluster.catalog import PostgresCatalog, sweep
from services.embed.collections.cluster.connections import place_of
from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.cluster.indexes import SharedIndexes, Sharing
from services.embed.collections.collection import OpenCollection, OpenCollections, describe_problems
from services.embed.collections.indexes import Changes, stem_of
from services.embed.collections.serving import Serving
from services.embed.collections.storage.catalog import CollectionKey, check_tenant, is_name, no_collection
from services.embed.collections.storage.database import DatabaseUnreachable, IncompatibleDatabase
from services.embed.collections.storage.image_store import CollectionInfo

LOCK_NAME = ".lock"
# Time between looks at what others have added.
FOLLOW_S = 1.0
SETTING = "FOVEA_EMBED_COLLECTIONS_URL"
MIN_RETRY_S, MAX_RETRY_S = 1.0, 30.0
# Time between sweeps of one process; whichever is first sweeps for all.
SWEEP_EVERY_S = 60.0


class OwnFolder:
    """A folder that no other process uses as long as this one has it open."""

    def __init__(self, root: Path) -> None:
        """Take the first folder below `root` that no process has, so that one that is restarted finds its files.

        Raises OSError.
        """
        for number in itertools.count():
            self._path = root / f"replica-{number}"
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = (self._path / LOCK_NAME).open("w")
            with suppress(BlockingIOError):
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            self._lock.close()

    def close(self) -> None:
        """Let another process use it."""
        self._lock.close()

    def of(self, store: PostgresImageStore) -> Path:
        """Return the folder of a collection; one that is made anew under the same name has another."""
        return self._path / _name(store)

    def remove_others(self, stores: Iterable[PostgresImageStore]) -> None:
        """Remove the folders of all other collections, as far as the disk allows it."""
        names = {_name(store) for store in stores}
        with suppress(OSError):
            for path in self._path.iterdir():
                if path.name not in names and path.name != LOCK_NAME:
                    shutil.rmtree(path, ignore_errors=True)


def _name(store: PostgresImageStore) -> str:
    # numbers begin anew in a new database, times do not
    return f"{store.collection}-{store.info.created.hex()}"


@dataclass(frozen=True, eq=False)
class _Opened:
    """The parts that are there once PostgreSQL has been reached."""

    catalog: PostgresCatalog
    sharing: Sharing
    own_folder: OwnFolder | None


class SharedCollections(OpenCollections):
    """Collections in PostgreSQL and an object store."""

    def __init__(self, serving: Serving) -> None:
        """Raises ValueError for a URL of the database that can't be read."""
        super().__init__(serving)
        settings = serving.settings
        assert settings.collections_url is not None, "shared collections have a database"
        try:
            self._place = place_of(settings.collections_url)
        except ValueError as error:
            raise ValueError(f"{SETTING} {error}") from None
        objects = Objects(settings.collections_store_url or settings.store_url, {})
        self._open_catalog = partial(PostgresCatalog.open, settings.collections_url, objects)
        self._opened: _Opened | None = None
        self._numbers: dict[CollectionKey, int] = {}
        self._checkpoints: dict[str, str] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def _close_all(self) -> None:
        await asyncio.gather(*self._closing)
        if self._opened is not None:
            await asyncio.to_thread(_close, self._opened)

    def check(self) -> CheckResult:
        found = [f"{len(self._collections)} open here"]
        if self._opened is None:
            found = [f"not open: {self._problem}"]
        elif self._problem:
            found = [f"not usable: {self._problem}", *found]
        return True, "; ".join([*found, *describe_problems(self._damaged)])

    async def get(self, key: CollectionKey) -> OpenCollection:
        opened = self._check_open()
        check_tenant(key.tenant)
        if not is_name(key.name):
            raise no_collection(key.name)
        try:
            store = await asyncio.to_thread(opened.catalog.open_store, key.name, key.tenant)
        except NotFound:
            self._close(key)
            raise
        return await self._of_store(opened, key, store)

    async def of(self, tenant: str) -> tuple[Sequence[OpenCollection], Sequence[str]]:
        opened = self._check_open()
        check_tenant(tenant)
        stores = await asyncio.to_thread(opened.catalog.open_stores, tenant)
        return [await self._of_store(opened, CollectionKey(tenant, store.info.name), store) for store in stores], []

    async def get_or_make(self, tenant: str, info: CollectionInfo) -> tuple[OpenCollection, bool]:
        opened = self._check_open()
        key = CollectionKey(tenant, info.name)
        with suppress(NotFound):
            return await self.get(key), False
        self._check_number(len(await asyncio.to_thread(opened.catalog.names, tenant)) + 1)
        try:
            store = await asyncio.to_thread(opened.catalog.create, info, tenant)
        except FileExistsError:  # by another process at the same time
            return await self.get(key), False
        return await self._of_store(opened, key, store), True

    async def delete(self, key: CollectionKey) -> None:
        """Remove a collection; what other processes do with it fails from now on."""
        opened = self._check_open()
        await asyncio.to_thread(opened.catalog.delete, key.name, key.tenant)
        self._close(key)

    def _check_open(self) -> _Opened:
        if self._opened is None:
            raise self._not_open()
        return self._opened

    async def _of_store(self, opened: _Opened, key: CollectionKey, store: PostgresImageStore) -> OpenCollection:
        """Return the open collection of a store, opening it if necessary instead of an older one of its name."""
        if self._numbers.get(key) == store.collection:
            return self._collections[key]
        async with self._changing:
            # a newer one was made since the store was looked up
            if self._numbers.get(key, 0) >= store.collection:
                return self._collections[key]
            self._close(key)
            return await self._start(opened, key, store)

    async def _start(self, opened: _Opened, key: CollectionKey, store: PostgresImageStore) -> OpenCollection:
        changes = Changes()
        folder = opened.own_folder.of(store) if opened.own_folder is not None else Path()
        collection = OpenCollection(
            store,
            self._serving,
            changes,
            partial(SharedIndexes, store, folder, sharing=opened.sharing, changes=changes),
            on_failure=lambda error: self._note_damage(key, error),
        )
        await collection.start()
        self._collections[key], self._numbers[key] = collection, store.collection
        return collection

    def _close(self, key: CollectionKey) -> None:
        """Close a collection that was deleted, once the requests that use it have ended."""
        collection = self._collections.pop(key, None)
        self._numbers.pop(key, None)
        self._damaged.pop(key, None)
        if collection is not None:
            closing = asyncio.create_task(collection.close(no_collection(key.name)))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _keep_open(self) -> None:
        opened = await self._open()
        swept = time.monotonic()
        while True:
            try:
                await self._follow(opened)
                self._problem = self._reported = ""
                if time.monotonic() - swept > SWEEP_EVERY_S:
                    swept = time.monotonic()
                    await self._close_deleted(opened)
                    await self._sweep(opened)
            except FoveaError as error:
                self._note_problem(error)
            except Exception:  # noqa: BLE001 - whatever went wrong may be mended by the next attempt
                structlog.get_logger(__name__).error("collections not followed", exc_info=True)
            # replicas that were started together do not ask together
            await asyncio.sleep(FOLLOW_S * random.uniform(0.8, 1.2))

    async def _open(self) -> _Opened:
        """Connect, retrying until that succeeds."""
        for num_failures in itertools.count(1):
            try:
                self._opened = await asyncio.to_thread(self._connect)
            except (IncompatibleDatabase, OSError, FoveaError) as error:
                self._note_problem(error)
            else:
                self._problem = self._reported = ""
                structlog.get_logger(__name__).info("collections open", **self._place)
                return self._opened
            await asyncio.sleep(backoff_s(num_failures, MIN_RETRY_S, MAX_RETRY_S))
        raise AssertionError("numbers do not end")

    def _connect(self) -> _Opened:
        catalog = self._open_catalog()
        try:
            own_folder = self._open_folder()
            if own_folder is not None:
                own_folder.remove_others(catalog.open_stores(None))
        except BaseException:
            catalog.close()
            raise
        sharing = Sharing(
            catalog.connections,
            self._serving,
            f"{socket.gethostname()}-{os.getpid()}",
            self._serving.settings.collection_state_bytes if own_folder is not None else 0,
        )
        return _Opened(catalog, sharing, own_folder)

    def _open_folder(self) -> OwnFolder | None:
        try:
            return OwnFolder(self._serving.settings.collections_dir / ".shared")
        except OSError as error:
            structlog.get_logger(__name__).warning("image states are not kept", reason=str(error))
            return None

    async def _follow(self, opened: _Opened) -> None:
        """Let the collections that have images to index do so."""
        for resident in self._serving.models.residents:
            with suppress(Overloaded), resident.checkpoint.lease() as served:
                self._checkpoints[resident.checkpoint.name] = stem_of(served)
        for key in await asyncio.to_thread(opened.catalog.to_index, self._checkpoints):
            with suppress(NotFound):
                (await self.get(key)).wake()

    async def _close_deleted(self, opened: _Opened) -> None:
        """Close what other processes have deleted."""
        stores = await asyncio.to_thread(opened.catalog.open_stores, None)
        numbers = {store.collection for store in stores}
        newest = max(numbers, default=0)
        for key, number in list(self._numbers.items()):
            if number not in numbers and number <= newest:
                self._close(key)

    async def _sweep(self, opened: _Opened) -> None:
        try:
            await asyncio.to_thread(sweep, opened.catalog)
        except DatabaseUnreachable:
            raise
        except Overloaded as error:  # of the objects: the collections can be used
            structlog.get_logger(__name__).warning("what was deleted is removed later", reason=error.message)

    def _note_problem(self, error: Exception) -> None:
        """Keep what clients are told, and log what the operator has to know: once, not at each attempt."""
        self._problem = (error.message if isinstance(error, FoveaError) else str(error)).rstrip(".")
        reason = error.reason if isinstance(error, DatabaseUnreachable) else self._problem
        if reason != self._reported:
            log = structlog.get_logger(__name__).bind(setting=SETTING, **self._place)
            log.warning("collections wait for their database", reason=reason)
        self._reported = reason


def _close(opened: _Opened) -> None:
    opened.catalog.close()
    if opened.own_folder is not None:
        opened.own_folder.close()
