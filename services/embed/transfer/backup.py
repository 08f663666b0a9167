"""A backup of all collections of all tenants, while services change them, and a backup put back.

First all bytes are copied that the backups lack. Then the collections are opened as of a moment, their lists written,
and the few bytes copied that came meanwhile, so that this moment does not have to be held for long. While a backup is
put back, each collection is a copy that is being filled, which a repeated command recognises and continues.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import IO, Any

from services.core.exchange import DEFAULT_TENANT
from services.embed.bulk.collection_client import BATCH_SIZE, MAX_BATCH_BYTES
from services.embed.collections.storage.backed_up import BackedUp, CollectionAsOf, Content
from services.embed.collections.storage.catalog import Catalog
from services.embed.collections.storage.image_store import (
    CollectionInfo,
    CollectionLimits,
    ImageStore,
    NewImage,
    StoredImage,
)
from services.embed.transfer.backup_folder import (
    FORMAT,
    Backup,
    BackupFolder,
    SavedCollection,
    SavedCondition,
    content_key,
    new_id,
)
from services.embed.transfer.entries import Entry, Total, TransferError, canonical
from services.embed.transfer.portable import Line, manifest_line
from services.jobs.progress import Bar, Bars

# Images read and written at a time.
AT_ONCE = 16
# Bytes of a snapshot may be swept away before they are read; then another snapshot is taken.
MAX_SNAPSHOTS = 5
PAGE = 1000
# What was stored once fits, whatever the limits are now.
_BOUNDLESS = CollectionLimits(*[2**62] * 4)


class Gone(Exception):
    """Bytes of the snapshot are not there any more."""


class BackupRun:
    """One backup. Methods raise TransferError, StoreUnavailable, Overloaded."""

    def __init__(self, source: BackedUp, folder: BackupFolder, bars: Bars) -> None:
        self._source = source
        self._folder = folder
        self._bars = bars
        self._num_new = 0
        self._num_new_bytes = 0

    def run(self, *, verify: bool = False) -> dict[str, Any]:
        """Copy what the backups lack, and list the collections. Returns the numbers.

        Stored bytes of another length than the image's are copied again; to `verify`, also those of another SHA-256.
        """
        for unfinished in set(self._folder.ids()) - set(self._folder.finished()):
            self._folder.remove(unfinished)
        stored = self._folder.contents()
        with ThreadPoolExecutor(AT_ONCE, "backup") as threads:
            if verify:
                self._forget_damaged(stored, threads)
            with self._bars.bar("Copying images", "images") as bar:
                for page in self._source.contents():
                    self._copy(page, stored, threads, bar)
            for _ in range(MAX_SNAPSHOTS):
                backup_id = new_id()
                try:
                    backup = self._list(backup_id, stored, threads)
                except Gone:
                    self._folder.remove(backup_id)
                    continue
                self._folder.write_description(backup_id, backup)
                return self._told(backup_id, backup)
        raise TransferError("bytes of listed images are missing, each time that the collections were listed anew")

    def _forget_damaged(self, stored: dict[str, int], threads: ThreadPoolExecutor) -> None:
        with self._bars.bar("Verifying the backups' images", "images", total=len(stored)) as bar:
            digests = list(stored)
            for digest, is_whole in zip(digests, threads.map(self._folder.is_whole, digests), strict=True):
                if not is_whole:
                    del stored[digest]
                bar.advance()

    def _list(self, backup_id: str, stored: dict[str, int], threads: ThreadPoolExecutor) -> Backup:
        """List the collections as of a moment, and copy the bytes that are still missing. Raises Gone."""
        saved = []
        with self._source.snapshot() as collections:
            for number, collection in enumerate(collections):
                with (
                    tempfile.TemporaryFile() as lines,
                    self._bars.bar(f"Listing {collection.info.name}", "images") as bar,
                ):
                    total = Total()
                    for page in _pages(collection.images):
                        _write_lines(page, lines, total)
                        for image, content in page:
                            if stored.get(content.digest, image.num_bytes) != image.num_bytes:
                                del stored[content.digest]
                        bar.advance(len(page))
                        missing = self._copy([content for _, content in page], stored, threads, None)
                        if missing:
                            raise Gone
                    file = f"{number:06}.jsonl"
                    sha256 = self._folder.write_manifest(backup_id, file, lines)
                    saved.append(_saved(collection, total, file, sha256))
        return Backup(format=FORMAT, kind=self._source.kind, time=backup_id, collections=saved)

    def _copy(
        self, contents: Iterable[Content], stored: dict[str, int], threads: ThreadPoolExecutor, bar: Bar | None
    ) -> list[Content]:
        """Copy the bytes that are not stored yet; return those that are gone."""
        lacking = list({one.digest: one for one in contents if one.digest not in stored}.values())
        gone = []
        for begin in range(0, len(lacking), AT_ONCE):
            some = lacking[begin : begin + AT_ONCE]
            found = self._source.read(some)
            there = [(one.digest, data) for one, data in zip(some, found, strict=True) if data is not None]
            gone += [one for one, data in zip(some, found, strict=True) if data is None]
            list(threads.map(self._put, there))
            stored.update((digest, len(data)) for digest, data in there)
            self._num_new += len(there)
            self._num_new_bytes += sum(len(data) for _, data in there)
            if bar is not None:
                bar.advance(len(there))
        return gone

    def _put(self, what: tuple[str, bytes]) -> None:
        digest, data = what
        if hashlib.sha256(data).hexdigest() != digest:
            raise TransferError(f"the stored bytes of the image with SHA-256 {digest} are damaged")
        self._folder.put(digest, data)

    def _told(self, backup_id: str, backup: Backup) -> dict[str, Any]:
        return {
            "backup": backup_id,
            "kind": backup.kind,
            **backup.totals(),
            "new_contents": self._num_new,
            "new_bytes": self._num_new_bytes,
            "place": self._folder.label,
        }


def entry_of(image: StoredImage) -> Entry:
    """Describe a stored image."""
    return Entry(image.id, image.digest, image.num_bytes, canonical(image.metadata), image.created)


def _pages(images: Iterator[tuple[StoredImage, Content]]) -> Iterator[list[tuple[StoredImage, Content]]]:
    page = []
    for one in images:
        page.append(one)
        if len(page) == 1000:
            yield page
            page = []
    if page:
        yield page


def _write_lines(page: Sequence[tuple[StoredImage, Content]], lines: IO[bytes], total: Total) -> None:
    for image, content in page:
        entry = entry_of(image)
        total.add(entry)
        lines.write(manifest_line(replace(entry, file=content_key(content.digest))))


def _saved(collection: CollectionAsOf, total: Total, file: str, sha256: str) -> SavedCollection:
    return SavedCollection(
        tenant=collection.tenant,
        name=collection.info.name,
        model=collection.info.model,
        created=collection.info.created,
        access=collection.access,
        conditions=[
            SavedCondition(text=one.text, pinned=one.is_pinned, used=one.used) for one in collection.conditions
        ],
        images=total.num_images,
        bytes=total.num_bytes,
        digest=total.digest,
        file=file,
        sha256=sha256,
    )


class Restore:
    """One restoration. Methods raise TransferError, StoreUnavailable, Overloaded."""

    def __init__(self, folder: BackupFolder, backup_id: str, catalog: Catalog, bars: Bars) -> None:
        self._folder = folder
        self._backup_id = backup_id
        self._catalog = catalog
        self._bars = bars

    def run(self) -> dict[str, Any]:
        """Restore all collections, compare them with the backup, and open them. Returns the numbers."""
        backup = self._folder.describe(self._backup_id)
        self._check_is_empty(backup)
        for saved in backup.collections:
            with self._folder.manifest(self._backup_id, saved) as manifest, closing(self._store(saved)) as store:
                if store.access() != "copy":  # and the same, which was checked
                    continue
                with self._bars.bar(f"Restoring {saved.name}", "images", total=saved.images) as bar:
                    self._fill(store, manifest, bar)
                self._check(store, saved)
                for condition in sorted(saved.conditions, key=lambda one: one.used):
                    store.put_condition(condition.text, is_pinned=condition.pinned)
        for saved in backup.collections:
            with closing(self._store(saved)) as store:
                store.set_access(saved.access)
        return {"backup": self._backup_id, **backup.totals()}

    def _check_is_empty(self, backup: Backup) -> None:
        """Raises TransferError if the target holds anything that is not from this backup."""
        expected = {(saved.tenant, saved.name): saved for saved in backup.collections}
        for tenant in self._catalog.tenants():
            for name in self._catalog.names(tenant):
                saved = expected.get((tenant, name))
                of = f"{name!r}" + (f" of the tenant {tenant!r}" if tenant != DEFAULT_TENANT else "")
                if saved is None:
                    raise TransferError(f"the target is not empty: it has a collection {of}; nothing is overwritten")
                with closing(self._catalog.open_store(name, tenant)) as store:
                    if store.access() != "copy" and _total(store).digest != saved.digest:
                        raise TransferError(f"the target has another collection {of}; nothing is overwritten")

    def _store(self, saved: SavedCollection) -> ImageStore:
        """Open a collection, which is made if it does not exist."""
        try:
            store = self._catalog.create(CollectionInfo(saved.name, saved.model, saved.created), saved.tenant)
        except FileExistsError:
            return self._catalog.open_store(saved.name, saved.tenant)
        store.set_access("copy")
        return store

    def _fill(self, store: ImageStore, manifest: IO[bytes], bar: Bar) -> None:
        """Add the images that the store lacks. They are added in order, so that it has the first of them."""
        entries = _entries(manifest)
        num_there, _ = store.size()
        bar.advance(sum(1 for _ in islice(entries, num_there)))
        while batch := self._next_images(entries):
            store.add(batch, _BOUNDLESS, fill=True)
            bar.advance(len(batch))

    def _next_images(self, entries: Iterator[Entry]) -> list[NewImage]:
        images, num_bytes = [], 0
        for entry in islice(entries, BATCH_SIZE):
            images.append(self._image(entry))
            num_bytes += entry.num_bytes
            if num_bytes >= MAX_BATCH_BYTES:
                break
        return images

    def _image(self, entry: Entry) -> NewImage:
        metadata = json.loads(entry.metadata or "{}")
        return NewImage(entry.id, self._folder.data(entry.sha256), entry.sha256, metadata, entry.id, entry.created)

    def _check(self, store: ImageStore, saved: SavedCollection) -> None:
        found = _total(store)
        if (found.num_images, found.digest) != (saved.images, saved.digest):
            raise TransferError(
                f"{saved.name!r} has {found.num_images} images and the digest {found.digest} after it was restored,"
                f" not {saved.images} and {saved.digest}"
            )


def _entries(manifest: IO[bytes]) -> Iterator[Entry]:
    for text in manifest:
        line = Line.model_validate_json(text)
        yield Entry(line.id or "", line.sha256 or "", line.bytes or 0, canonical(line.metadata or {}), line.created)


def _total(store: ImageStore) -> Total:
    """Sum up what a store holds."""
    total = Total()
    after: str | None = None
    while images := store.images(after, PAGE):
        for image in images:
            total.add(entry_of(image))
        after = images[-1].id
    return total
