"""Requests about the collections of the tenant who asks; tenants may use the same names."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import chain
from time import perf_counter, time
from typing import Any

from PIL.Image import Image

from services.core.audit import AuditLog
from services.core.batching.slices import all_or_first_failure, map_slices
from services.core.cache.result_cache import content_digest
from services.core.errors import NotFound
from services.core.exchange import RequestContext, current_caller
from services.core.http.health import CheckResult
from services.core.images.inputs import DECODED_AT_ONCE
from services.core.images.references import StoredImage as StoredImageReference
from services.embed.collections import answers
from services.embed.collections.answers import CollectionList, CreateRequest, ImageToAdd, SearchQuery, SearchResults
from services.embed.collections.collection import OpenCollection, OpenCollections, prepare_conditions
from services.embed.collections.serving import Serving
from services.embed.collections.storage.catalog import CollectionKey, check_name, is_name, no_collection
from services.embed.collections.storage.database import DatabaseFailed
from services.embed.collections.storage.image_store import Access, Added, CollectionInfo, NewImage, StoredImage

# The audit log names at most this many images of one request, and their total number.
MAX_NAMED_IMAGES = 16


class CollectionService:
    """The collections of the current request's tenant.

    Methods raise Overloaded until the collections are open and for one that can't be opened, and NotFound for one that
    does not exist or belongs to another tenant. Changes are completed even if the client does not wait for the
    response: they are never cancelled halfway. Every change is recorded in the audit log.
    """

    def __init__(self, collections: OpenCollections, serving: Serving, audit: AuditLog) -> None:
        self._collections = collections
        self._serving = serving
        self._audit = audit
        self._inputs = serving.inputs
        self._inputs.stored_image = self._stored_image
        serving.metrics.index_lag_images.set_function(lambda: collections.lag)

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Open the collections, retrying if necessary; close everything at the end."""
        return self._collections.opened()

    def check(self) -> CheckResult:
        """Report to `/readyz` which collections can't be used, and why; they do not make it fail."""
        return self._collections.check()

    async def create(
        self, name: str, creation: CreateRequest, context: RequestContext
    ) -> tuple[answers.Collection, bool]:
        """Create a collection, or confirm it, change its access and index more conditions in advance; also return
        whether it is new.

        Raises InvalidField for an invalid name, NotFound for a model that is not served, Conflict for another one than
        an existing collection's and for one in use that is to become a copy, TooLarge for too many collections or
        conditions, ReadOnly for conditions of a read-only one.
        """
        check_name(name)
        models = self._serving.models
        model = creation.model
        asked = await models.find(model) if model else None
        is_new = False
        try:
            collection = await self._get(name)
        except NotFound:
            async with models.hold(asked or models.residents[0], context, asked=model) as served:
                prepare_conditions(served.engine, creation.conditions)
                created = time() if creation.created is None else creation.created
                info = CollectionInfo(name, served.name, created)
            collection, is_new = await asyncio.shield(self._get_or_make(info))
        if creation.access is not None:
            await asyncio.shield(self._set_access(collection, creation.access))
        await collection.index_ahead(creation.conditions, context, asked)
        return await collection.status(), is_new

    async def list(self) -> CollectionList:
        """List all collections by name. A damaged one does not hide the others."""
        found, unavailable = await self._collections.of(current_caller().tenant)
        statuses = []
        failed = list(unavailable)
        for collection in found:
            try:
                statuses.append(await collection.status())
            except DatabaseFailed:
                failed.append(collection.info.name)
            except NotFound:  # deleted in the meantime
                continue
        return CollectionList(data=statuses, unavailable=sorted(failed))

    async def describe(self, name: str) -> answers.Collection:
        return await (await self._get(name)).status()

    async def delete(self, name: str) -> None:
        """Remove a collection with all its images, once the requests that use it have ended."""
        await self._get(name)
        await asyncio.shield(self._delete(_key(name)))

    async def add(
        self, name: str, images: Sequence[ImageToAdd], context: RequestContext, *, wait: bool, fill: bool = False
    ) -> Added:
        """Store images durably: all of them or none; they survive a crash once this returns.

        With `wait`, returns when every index has them, or shortly before the deadline. Raises the error of an invalid
        image, TooLarge over a limit, and what ImageStore.add raises for an id that has other content and a collection
        that does not take this.
        """
        collection = await self._get(name)
        read = await map_slices(images, partial(self._read, collection.info.model))
        began = perf_counter()
        added = await asyncio.shield(self._add(name, collection, list(chain.from_iterable(read)), fill=fill))
        seconds = perf_counter() - began
        context.timing.add("store", seconds)
        self._serving.metrics.stage_seconds.labels("store").observe(seconds)
        if wait:
            await collection.wait_until_indexed(context.deadline)
        return added

    async def image(self, name: str, image_id: str) -> bytes:
        async with (await self._get(name)).in_use() as store:
            return await asyncio.to_thread(store.data, image_id)

    async def delete_image(self, name: str, image_id: str, *, fill: bool = False) -> None:
        await asyncio.shield(self._delete_image(name, await self._get(name), image_id, fill=fill))

    async def patch_image(self, name: str, image_id: str, changes: Mapping[str, Any]) -> StoredImage:
        """Change an image's metadata durably. Raises what ImageStore.patch raises."""
        return await asyncio.shield(self._patch_image(name, await self._get(name), image_id, changes))

    async def images(self, name: str, *, after: str | None, limit: int) -> Sequence[StoredImage]:
        async with (await self._get(name)).in_use() as store:
            return await asyncio.to_thread(store.images, after, limit)

    async def search(self, name: str, query: SearchQuery, context: RequestContext) -> SearchResults:
        return await (await self._get(name)).search(query, context)

    async def _read(self, model: str, images: Sequence[ImageToAdd]) -> Sequence[NewImage]:
        """Check that the images decode and return their bytes; their pixels are kept for the model's indexer."""
        keep, side = self._keep_pixels(model)

        async def read(asked: ImageToAdd) -> NewImage:
            data = await self._inputs.bytes_of(asked.image.reference, asked.image.param)

            def digest_and_keep(image: Image) -> str:
                digest = content_digest(data)
                keep(digest, image)
                return digest

            digest = await self._inputs.decode(data, asked.image.param, digest_and_keep, side=side)
            image_id = asked.id if asked.id is not None else digest
            return NewImage(image_id, data, digest, asked.metadata, asked.param, asked.created)

        return await all_or_first_failure([read(image) for image in images], at_once=DECODED_AT_ONCE)

    def _keep_pixels(self, model: str) -> tuple[Callable[[str, Image], None], int | None]:
        """Make the function that keeps a decoded image's pixels, or drops them without a checkpoint to transform
        them; returns it with the side that it needs, as in `decode_image`."""
        resident = self._serving.models.named(model)
        if resident is None or not resident.checkpoint.is_loaded:
            return lambda digest, image: None, None
        with resident.checkpoint.lease() as served:
            checkpoint, transform, side = served.digest, served.engine.transform, served.engine.image_side
        return lambda digest, image: self._serving.fresh.put(checkpoint, digest, transform(image)), side

    async def _stored_image(self, reference: StoredImageReference) -> bytes:
        if not is_name(reference.collection):  # in a body, which has no such field
            raise no_collection(reference.collection)
        return await self.image(reference.collection, reference.image_id)

    async def _get(self, name: str) -> OpenCollection:
        return await self._collections.get(_key(name))

    async def _get_or_make(self, info: CollectionInfo) -> tuple[OpenCollection, bool]:
        try:
            return await self._get(info.name), False
        except NotFound:
            pass
        async with self._audit.change("collection.create", collection=info.name) as entry:
            collection, is_new = await self._collections.get_or_make(current_caller().tenant, info)
            entry["created"] = is_new
            return collection, is_new

    async def _set_access(self, collection: OpenCollection, access: Access) -> None:
        name = collection.info.name
        async with collection.in_use() as store:
            if await asyncio.to_thread(store.access) != access:
                async with self._audit.change("collection.access", collection=name, access=access):
                    await asyncio.to_thread(store.set_access, access)

    async def _delete(self, key: CollectionKey) -> None:
        async with self._audit.change("collection.delete", collection=key.name):
            await self._collections.delete(key)

    async def _add(self, name: str, collection: OpenCollection, images: Sequence[NewImage], *, fill: bool) -> Added:
        ids = [image.id for image in images[:MAX_NAMED_IMAGES]]
        async with self._audit.change("images.add", collection=name, images=len(images), ids=ids) as entry:
            added = await collection.add(images, fill=fill)
            entry["added"] = added.added
            return added

    async def _delete_image(self, name: str, collection: OpenCollection, image_id: str, *, fill: bool) -> None:
        async with self._audit.change("images.delete", collection=name, ids=[image_id]):
            await collection.delete(image_id, fill=fill)

    async def _patch_image(
        self, name: str, collection: OpenCollection, image_id: str, changes: Mapping[str, Any]
    ) -> StoredImage:
        async with self._audit.change("images.patch", collection=name, ids=[image_id]):
            return await collection.patch(image_id, changes)


def _key(name: str) -> CollectionKey:
    """Make the key of a collection of the current request's tenant. Raises InvalidField for an invalid name."""
    check_name(name)
    return CollectionKey(current_caller().tenant, name)
