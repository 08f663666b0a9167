"""The backups in a folder or a bucket, in which equal images of all backups are stored once.

contents/ab/abcd…            bytes, by their SHA-256
backups/<time>/<n>.jsonl     images of a collection, as in `images.jsonl` of an export
backups/<time>/backup.json   which collections, written last: without it, a backup is unfinished
"""

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ValidationError

from services.core.store.errors import NotFoundInStore
from services.core.store.objects import READ_CHUNK_BYTES, Objects
from services.embed.collections.storage.image_store import Access
from services.embed.transfer.entries import TransferError

FORMAT = "fovea-backup/1"
BACKUPS, CONTENTS, DESCRIPTION = "backups", "contents", "backup.json"

_ID = re.compile(r"[0-9]{8}T[0-9]{6}(\.[0-9]+)?Z")
_URL = re.compile(r"[a-z0-9]+://")


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
        found = hashlib.sha256()
        for chunk in self.objects.read_chunks(content_key(digest)):
            found.update(chunk)
        return found.hexdigest() == digest

    def put(self, digest: str, data: bytes) -> None:
        self.objects.write(content_key(digest), [data], len(data))

    def data(self, digest: str) -> bytes:
        """Read bytes. Raises TransferError if they are missing or damaged."""
        key = content_key(digest)
        try:
            data = b"".join(self.objects.read_chunks(key))
        except NotFoundInStore:
            raise TransferError(f"{self.label} has no {key}") from None
        if hashlib.sha256(data).hexdigest() != digest:
            raise TransferError(f"{self.label}/{key} is damaged: its SHA-256 is another one")
        return data

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
        key = _key(backup_id, saved.file)
        digest = hashlib.sha256()
        with tempfile.TemporaryFile() as copy:
            try:
                for chunk in self.objects.read_chunks(key):
                    copy.write(chunk)
                    digest.update(chunk)
            except NotFoundInStore:
                raise TransferError(f"{self.label} has no {key}") from None
            if digest.hexdigest() != saved.sha256:
                raise TransferError(f"{self.label}/{key} is damaged: its SHA-256 is another one")
            copy.seek(0)
            yield copy

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
