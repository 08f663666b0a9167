"""A backup of all collections of all tenants, while services change them.

First all bytes are copied that the backups lack. Then the collections are opened as of a moment, their lists written,
and the few bytes copied that came meanwhile, so that this moment does not have to be held for long.
"""

import hashlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import IO, Any

from services.embed.collections.storage.backed_up import BackedUp, CollectionAsOf, Content
from services.embed.collections.storage.image_store import StoredImage
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
from services.embed.transfer.portable import manifest_line
from services.jobs.progress import Bar, Bars

# Images read and written at a time.
AT_ONCE = 16
# Bytes of a snapshot may be swept away before they are read; then another snapshot is taken.
MAX_SNAPSHOTS = 5


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
