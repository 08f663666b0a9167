"""A backup of all collections of all tenants, while services change them, and a backup put back.

First all bytes are copied that the backups lack. Then the collections are opened as of a moment, their lists written,
and the few bytes copied that came meanwhile, so that this moment does not have to be held for long. While a backup is
put back, each collection is a copy that is being filled, which a repeated command recognises and continues.

A folder or a bucket of backups, in which equal images of all of them are stored once:

    contents/ab/abcd…            bytes, by their SHA-256
    backups/<time>/<n>.jsonl     images of a collection, as in `images.jsonl` of an export
    backups/<time>/backup.json   which collections, written last: without it, a backup is unfinished
"""

import hashlib
import io
import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ValidationError

from services.core.errors import NotFound
from services.core.exchange import DEFAULT_TENANT
from services.core.store.errors import NotFoundInStore
from services.core.store.objects import READ_CHUNK_BYTES, Objects
from services.embed.bulk.collection_client import BATCH_SIZE, MAX_BATCH_BYTES
from services.embed.collections.storage.catalog import BackedUp, Catalog
from services.embed.collections.storage.folder_catalog import LOCK_NAME, FolderBackedUp, FolderCatalog
from services.embed.collections.storage.image_store import (
    Access,
    CollectionInfo,
    CollectionLimits,
    ImageStore,
    NewImage,
    StoredImage,
)
from services.embed.transfer.entries import Entry, Total, TransferError, canonical
from services.embed.transfer.portable import Line, manifest_line
from services.jobs.progress import Bar, Bars

FORMAT = "fovea-backup/1"
BACKUPS, CONTENTS, DESCRIPTION = "backups", "contents", "backup.json"

_ID = re.compile(r"[0-9]{8}T[0-9]{6}(\.[0-9]+)?Z")
_URL = re.compile(r"[a-z0-9]+://")
DEFAULT_STORE = Path("~/.fovea/store")
# Images read and written at a time.
AT_ONCE = 16
# Bytes of a snapshot may be swept away before they are read; then another snapshot is taken.
MAX_SNAPSHOTS = 5
PAGE = 1000
# What was stored once fits, whatever the limits are now.
_BOUNDLESS = CollectionLimits(*[2**62] * 4)


class SavedCondition(BaseModel):
    text: str
    pinned: bool
    used: float


class SavedCollection(BaseModel):
    """A collection of a backup; `file` lists its images and has the digest `sha256`."""

    tenant: str
    name: str
    model: str
    created: float
    access: Access
    conditions: list[SavedCondition]
    images: int
    bytes: int
    digest: str
    file: str
    sha256: str


class Backup(BaseModel):
    """`backup.json`; `kind` tells whether it was made of `local` or `cluster` collections."""

    format: str
    kind: str
    time: str
    collections: list[SavedCollection]

    def totals(self) -> dict[str, int]:
        """Count collections, images and bytes."""
        return {
            "collections": len(self.collections),
            "images": sum(one.images for one in self.collections),
            "bytes": sum(one.bytes for one in self.collections),
        }


class BackupFolder:
    """The backups in one folder or bucket. Methods raise StoreUnavailable."""

    def __init__(self, target: str) -> None:
        """`target` is a path or a URL."""
        self.objects = Objects(target if _URL.match(target) else Path(target).absolute().as_uri(), {})
        self.label = self.objects.label if _URL.match(target) else target

    def contents(self) -> dict[str, int]:
        """Return which bytes are stored, and how many, by their SHA-256."""
        return {entry.key.rsplit("/", 1)[-1]: entry.size_bytes for entry in self.objects.entries(CONTENTS)}

    def is_whole(self, digest: str) -> bool:
        """Read bytes, and tell whether they have their SHA-256."""
        with suppress(TransferError):
            self.data(digest)
            return True
        return False

    def put(self, digest: str, data: bytes) -> None:
        self.objects.write(content_key(digest), [data], len(data))

    def data(self, digest: str) -> bytes:
        """Read bytes. Raises TransferError if they are missing or damaged."""
        found = io.BytesIO()
        self._copy(content_key(digest), digest, found)
        return found.getvalue()

    def ids(self) -> list[str]:
        """List the backups, oldest first, also unfinished ones."""
        return [name for name in self.objects.children(BACKUPS) if _ID.fullmatch(name)]

    def is_finished(self, backup_id: str) -> bool:
        try:
            self.objects.size_bytes(_key(backup_id, DESCRIPTION))
        except NotFoundInStore:
            return False
        return True

    def finished(self) -> list[str]:
        """List the complete backups, oldest first."""
        return [backup_id for backup_id in self.ids() if self.is_finished(backup_id)]

    def describe(self, backup_id: str) -> Backup:
        """Raises TransferError if there is none, or if this version can't read it."""
        try:
            text = b"".join(self.objects.read_chunks(_key(backup_id, DESCRIPTION)))
            found = Backup.model_validate_json(text)
        except NotFoundInStore:
            raise TransferError(f"{self.label} has no complete backup {backup_id!r}") from None
        except ValidationError as error:
            raise TransferError(f"{self.label}: the description of {backup_id!r} is damaged: {error}") from None
        if found.format != FORMAT:
            raise TransferError(f"{self.label} has the format {found.format!r}; this version reads {FORMAT!r}")
        return found

    def write_description(self, backup_id: str, backup: Backup) -> None:
        text = backup.model_dump_json(indent=2).encode()
        self.objects.write(_key(backup_id, DESCRIPTION), [text], len(text))

    def write_manifest(self, backup_id: str, name: str, lines: IO[bytes]) -> str:
        """Write a list of images from a file; return its digest."""
        digest = hashlib.sha256()
        lines.seek(0)
        for chunk in _chunks(lines):
            digest.update(chunk)
        size = lines.tell()
        lines.seek(0)
        self.objects.write(_key(backup_id, name), _chunks(lines), size)
        return digest.hexdigest()

    @contextmanager
    def manifest(self, backup_id: str, saved: SavedCollection) -> Iterator[IO[bytes]]:
        """Provide a copy of a list of images in a temporary file. Raises TransferError if it is damaged."""
        with tempfile.TemporaryFile() as copy:
            self._copy(_key(backup_id, saved.file), saved.sha256, copy)
            copy.seek(0)
            yield copy

    def _copy(self, key: str, sha256: str, to: IO[bytes]) -> None:
        digest = hashlib.sha256()
        try:
            for chunk in self.objects.read_chunks(key):
                to.write(chunk)
                digest.update(chunk)
        except NotFoundInStore:
            raise TransferError(f"{self.label} has no {key}") from None
        if digest.hexdigest() != sha256:
            raise TransferError(f"{self.label}/{key} is damaged: its SHA-256 is another one")

    def remove(self, backup_id: str) -> None:
        """Remove an unfinished backup's lists; bytes stay for the next one."""
        self.objects.delete([entry.key for entry in self.objects.entries(f"{BACKUPS}/{backup_id}")])


def new_id() -> str:
    """Name a backup by the current time, so that names sort by time."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def content_key(digest: str) -> str:
    """Name the object with the bytes of this SHA-256."""
    return f"{CONTENTS}/{digest[:2]}/{digest}"


def _key(backup_id: str, name: str) -> str:
    return f"{BACKUPS}/{backup_id}/{name}"


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(READ_CHUNK_BYTES):
        yield chunk


@dataclass(frozen=True)
class Storage:
    """A folder, or with a `database` shared collections. Methods raise what opening these raises."""

    folder: Path
    database: str | None
    images_url: str | None
    store_url: str | None

    def backed_up(self) -> BackedUp:
        """Open the collections to be read, beside the services that use them."""
        if self.database is not None:
            return self._shared(is_changing=False)
        folder = self.folder.expanduser()
        if not folder.is_dir():
            raise TransferError(f"there are no collections in {folder}; name another with --collections-dir")
        return FolderBackedUp(folder)

    def empty_catalog(self) -> Catalog:
        """Open what collections are to be restored into, which may have been begun.

        Raises TransferError for a folder of other things, CatalogInUse if a service has the folder open.
        """
        folder = self.folder.expanduser()
        if self.database is None and folder.is_dir() and any(folder.iterdir()) and not (folder / LOCK_NAME).exists():
            raise TransferError(f"{folder} is not empty, and is no folder of collections")
        return self.catalog()

    def catalog(self) -> Catalog:
        """Open the collections to be written. Raises CatalogInUse if a service has the folder open."""
        if self.database is not None:
            return self._shared(is_changing=True)
        return FolderCatalog.open(self.folder.expanduser())

    def _shared(self, *, is_changing: bool) -> BackedUp:
        from services.embed.collections.cluster.catalog import PostgresCatalog

        assert self.database is not None, "shared collections have a database"
        images = Objects(self.images_url or self.store_url or DEFAULT_STORE.expanduser().as_uri(), {})
        return PostgresCatalog.open(self.database, images, is_changing=is_changing)


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
                for _, store in _stores(self._source):
                    for page in _pages(store):
                        self._copy(store, page, stored, threads, bar)
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
        with self._source.snapshot() as catalog:
            for number, (tenant, store) in enumerate(_stores(catalog)):
                with tempfile.TemporaryFile() as lines, self._bars.bar(f"Listing {store.info.name}", "images") as bar:
                    total = Total()
                    for page in _pages(store):
                        _write_lines(page, lines, total)
                        for image in page:
                            if stored.get(image.digest, image.num_bytes) != image.num_bytes:
                                del stored[image.digest]
                        bar.advance(len(page))
                        if self._copy(store, page, stored, threads, None):
                            raise Gone
                    file = f"{number:06}.jsonl"
                    sha256 = self._folder.write_manifest(backup_id, file, lines)
                    saved.append(_saved(tenant, store, total, file, sha256))
        return Backup(format=FORMAT, kind=self._source.kind, time=backup_id, collections=saved)

    def _copy(
        self,
        store: ImageStore,
        images: Iterable[StoredImage],
        stored: dict[str, int],
        threads: ThreadPoolExecutor,
        bar: Bar | None,
    ) -> int:
        """Copy the bytes that are not stored yet; return of how many images they are gone."""
        lacking = list({one.digest: one for one in images if one.digest not in stored}.values())
        num_gone = 0
        for begin in range(0, len(lacking), AT_ONCE):
            digests = {one.row: one.digest for one in lacking[begin : begin + AT_ONCE]}
            there = [(digests[row], data) for row, data in store.data_by_rows(digests).items()]
            num_gone += len(digests) - len(there)
            list(threads.map(self._put, there))
            stored.update((digest, len(data)) for digest, data in there)
            self._num_new += len(there)
            self._num_new_bytes += sum(len(data) for _, data in there)
            if bar is not None:
                bar.advance(len(there))
        return num_gone

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


def _stores(catalog: Catalog) -> Iterator[tuple[str, ImageStore]]:
    """Open the collections of all tenants one after the other, except those that are deleted meanwhile."""
    for tenant in catalog.tenants():
        for name in catalog.names(tenant):
            with suppress(NotFound):
                store = catalog.open_store(name, tenant)
                with closing(store):
                    yield tenant, store


def _pages(store: ImageStore) -> Iterator[list[StoredImage]]:
    """List a collection's images, ascending by id."""
    after: str | None = None
    while images := store.images(after, PAGE):
        yield images
        after = images[-1].id


def _write_lines(images: Sequence[StoredImage], lines: IO[bytes], total: Total) -> None:
    for image in images:
        entry = entry_of(image)
        total.add(entry)
        lines.write(manifest_line(replace(entry, file=content_key(image.digest))))


def _saved(tenant: str, store: ImageStore, total: Total, file: str, sha256: str) -> SavedCollection:
    return SavedCollection(
        tenant=tenant,
        name=store.info.name,
        model=store.info.model,
        created=store.info.created,
        access=store.access(),
        conditions=[SavedCondition(text=one.text, pinned=one.is_pinned, used=one.used) for one in store.conditions()],
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
            data, metadata = self._folder.data(entry.sha256), json.loads(entry.metadata or "{}")
            images.append(NewImage(entry.id, data, entry.sha256, metadata, entry.id, entry.created))
            num_bytes += entry.num_bytes
            if num_bytes >= MAX_BATCH_BYTES:
                break
        return images

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
    for page in _pages(store):
        for image in page:
            total.add(entry_of(image))
    return total
