"""All collections of a process: opened when it starts, made and removed by name."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path
from time import perf_counter, time

import structlog
from PIL.Image import Image

from services.core.cache import content_digest
from services.core.errors import NotFound, Overloaded, TooLarge
from services.core.exchange import Timing
from services.core.image_inputs import DECODED_AT_ONCE
from services.core.images import StoredImage as StoredImageReference
from services.core.slices import all_or_first_failure, in_slices
from services.embed.collections.answers import CollectionStatus, ImageToAdd, SearchAnswer, SearchQuery
from services.embed.collections.catalog import Catalog, CatalogInUse, check_name
from services.embed.collections.collection import Collection, CollectionOptions, Serving, prepare_conditions
from services.embed.collections.database import IncompatibleDatabase, StorageFull
from services.embed.collections.image_store import Added, CollectionInfo, NewImage, StoredImage

# How often the folder is asked for again while another process, the one that this one replaces, still holds it.
LOCK_POLL_S = 0.5
# How often a collection that could not be opened is tried again.
REOPEN_S = 5.0


class Library:
    """Every method raises Overloaded until the folder is open, and NotFound for a collection that is not there.

    What is added or deleted stays so even where the client does not wait for the answer: such work is never
    cancelled halfway.
    """

    def __init__(self, root: Path, serving: Serving, options: CollectionOptions, *, max_collections: int) -> None:
        self._root = root
        self._serving = serving
        self._options = options
        self._max_collections = max_collections
        self._catalog: Catalog | None = None
        self._inputs = serving.inputs
        self._inputs.stored_image = self._stored_image
        self._collections: dict[str, Collection] = {}
        self._closed: set[str] = set()
        self._is_open = False
        self._is_waiting = False
        self._changing = asyncio.Lock()
        serving.metrics.index_lag_images.set_function(
            lambda: sum(max(0, collection.lag) for collection in self._collections.values())
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open the folder, or go on trying while another process holds it; close everything at the end."""
        opening = asyncio.create_task(self._open())
        try:
            yield
        finally:
            opening.cancel()
            with suppress(asyncio.CancelledError):
                await opening
            await asyncio.gather(*[collection.close() for collection in self._collections.values()])
            self._serving.close()
            if self._catalog is not None:
                self._catalog.close()

    async def create(self, name: str, model: str | None, conditions: Sequence[str]) -> tuple[CollectionStatus, bool]:
        """Make a collection, or confirm it and index more conditions ahead; whether it was made.

        Raises InvalidField for a name that can't be one, NotFound for a model that is not served, TooLarge for too
        many collections or conditions.
        """
        check_name(name)
        with self._serving.checkpoint.lease() as served:
            known = (served.name, f"{served.name}@{self._serving.checkpoint.alias}", f"{served.name}@{served.version}")
            if model is not None and model not in known:
                raise NotFound(
                    f"There is no model {model!r}: this service answers with {served.name!r}.",
                    param="model",
                    code="model_not_found",
                )
            prepare_conditions(served.engine, conditions)
            info = CollectionInfo(name, served.name, time())
        collection, is_new = await asyncio.shield(self._get_or_make(info))
        await collection.index_ahead(conditions)
        return await collection.status(), is_new

    async def list(self) -> Sequence[CollectionStatus]:
        """All collections, by name."""
        self._open_catalog()
        return [await self._collections[name].status() for name in sorted(self._collections)]

    async def describe(self, name: str) -> CollectionStatus:
        return await self._get(name).status()

    async def delete(self, name: str) -> None:
        """Remove a collection with all its images, once the requests that use it have ended."""
        self._get(name)
        await asyncio.shield(self._delete(name))

    async def add(
        self, name: str, images: Sequence[ImageToAdd], *, deadline: float, timing: Timing, wait: bool
    ) -> Added:
        """Store images; they survive a crash when this returns. All are stored, or none is.

        With `wait`, returns when every index has them, or shortly before the deadline. Raises what is wrong with one
        of them, Conflict for an id that has other content, TooLarge over a limit.
        """
        collection = self._get(name)
        read = await in_slices(images, self._read)
        began = perf_counter()
        added = await asyncio.shield(collection.add(list(chain.from_iterable(read))))
        seconds = perf_counter() - began
        timing.add("store", seconds)
        self._serving.metrics.stage_seconds.labels("store").observe(seconds)
        if wait:
            await collection.wait_until_indexed(deadline)
        return added

    async def image(self, name: str, image_id: str) -> bytes:
        async with self._get(name).in_use() as store:
            return await asyncio.to_thread(store.data, image_id)

    async def delete_image(self, name: str, image_id: str) -> None:
        await asyncio.shield(self._get(name).delete(image_id))

    async def images(self, name: str, *, after: str | None, limit: int) -> Sequence[StoredImage]:
        async with self._get(name).in_use() as store:
            return await asyncio.to_thread(store.images, after, limit)

    async def search(self, name: str, query: SearchQuery, *, deadline: float, timing: Timing) -> SearchAnswer:
        return await self._get(name).search(query, deadline=deadline, timing=timing)

    async def _read(self, images: Sequence[ImageToAdd]) -> Sequence[NewImage]:
        """Their bytes, once it is sure that they decode; their pixels are left where the indexer finds them."""
        keep = self._keep_pixels()

        async def read(asked: ImageToAdd) -> NewImage:
            data = await self._inputs.bytes_of(asked.image.reference, asked.image.param)

            def digest_and_keep(image: Image) -> str:
                digest = content_digest(data)
                keep(digest, image)
                return digest

            digest = await self._inputs.decode(data, asked.image.param, digest_and_keep)
            return NewImage(asked.id if asked.id is not None else digest, data, digest, asked.metadata, asked.param)

        return await all_or_first_failure([read(image) for image in images], at_once=DECODED_AT_ONCE)

    def _keep_pixels(self) -> Callable[[str, Image], None]:
        """What is done with an image of a digest: nothing, while no checkpoint is there to say how it shall look."""
        try:
            with self._serving.checkpoint.lease() as served:
                checkpoint, transform = served.digest, served.engine.transform
        except Overloaded:
            return lambda digest, image: None
        return lambda digest, image: self._serving.fresh.put(checkpoint, digest, transform(image))

    async def _stored_image(self, reference: StoredImageReference) -> bytes:
        return await self.image(reference.collection, reference.image_id)

    async def _open(self) -> None:
        """Open the folder and start what is in it. Tries again while another process holds it."""
        log = structlog.get_logger(__name__)
        while self._catalog is None:
            try:
                self._catalog = await asyncio.to_thread(Catalog.open, self._root)
            except CatalogInUse as error:
                if not self._is_waiting:
                    log.warning("collections wait for another process", folder=str(self._root), reason=str(error))
                self._is_waiting = True
                await asyncio.sleep(LOCK_POLL_S)
        self._closed = set(self._catalog.names())
        await self._open_stores(self._catalog)
        self._is_open = True
        log.info("collections open", folder=str(self._root), collections=len(self._collections))
        while self._closed:
            await asyncio.sleep(REOPEN_S)
            await self._open_stores(self._catalog)

    async def _open_stores(self, catalog: Catalog) -> None:
        """Start what is not open yet. One that can't be opened, on a full disk say, leaves the others alone."""
        for name in sorted(self._closed):
            try:
                store = await asyncio.to_thread(catalog.open_store, name)
            except (StorageFull, IncompatibleDatabase, sqlite3.DatabaseError) as error:
                structlog.get_logger(__name__).error("collection not opened", collection=name, reason=str(error))
                continue
            await self._start(name, Collection(store, catalog.folder(name), self._serving, self._options))
            self._closed.discard(name)

    async def _start(self, name: str, collection: Collection) -> None:
        await collection.start()
        self._collections[name] = collection

    async def _get_or_make(self, info: CollectionInfo) -> tuple[Collection, bool]:
        async with self._changing:
            catalog = self._open_catalog()
            if info.name in self._closed:
                raise _not_opened(info.name)
            if (existing := self._collections.get(info.name)) is not None:
                return existing, False
            if len(self._collections) >= self._max_collections:
                raise TooLarge(
                    f"There would be {len(self._collections) + 1} collections; the limit is {self._max_collections}.",
                    param="name",
                )
            store = await asyncio.to_thread(catalog.create, info)
            collection = Collection(store, catalog.folder(info.name), self._serving, self._options)
            await self._start(info.name, collection)
            return collection, True

    async def _delete(self, name: str) -> None:
        async with self._changing:
            catalog = self._open_catalog()
            collection = self._collections.pop(name, None)
            if collection is None:
                raise _no_collection(name)
            await collection.close()
            await asyncio.to_thread(catalog.delete, name)

    def _get(self, name: str) -> Collection:
        self._open_catalog()
        if name in self._closed:
            raise _not_opened(name)
        try:
            return self._collections[name]
        except KeyError:
            raise _no_collection(name) from None

    def _open_catalog(self) -> Catalog:
        if self._catalog is None or not self._is_open:
            reason = "another process holds their folder" if self._is_waiting else "they are being opened"
            raise Overloaded(f"The collections can't be used yet: {reason}.", code="collections_not_open")
        return self._catalog


def _not_opened(name: str) -> Overloaded:
    return Overloaded(
        f"The collection {name!r} can't be opened at the moment; the server's log says why.",
        param="collection",
        code="collection_not_open",
    )


def _no_collection(name: str) -> NotFound:
    return NotFound(f"There is no collection {name!r}.", param="collection", code="collection_not_found")
