"""Immutable versions: `models/<name>/versions/<id>/`, files first, `manifest.json` last."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from services.core.store.checkpoint_files import CheckpointFile, read_in_order
from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint, NotFoundInStore
from services.core.store.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    NAME_PATTERN,
    Manifest,
    StoredFile,
    is_version_id,
)
from services.core.store.objects import Entry, Objects


@dataclass(frozen=True)
class Version:
    """A complete version as a listing shows it; `published` is the time of its manifest by the store's clock."""

    name: str
    id: str
    published: datetime
    size_bytes: int
    num_files: int

    def __str__(self) -> str:
        return f"{self.name}@{self.id}"


@dataclass(frozen=True)
class Upload:
    """A version's folder without a manifest: an upload in progress, or an aborted one."""

    name: str
    id: str
    last_written: datetime
    size_bytes: int


class Versions:
    """The versions of all models. Every method may raise StoreUnavailable."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def names(self) -> list[str]:
        return [name for name in self._objects.children("models") if NAME_PATTERN.fullmatch(name)]

    def list(self, name: str) -> tuple[list[Version], list[Upload]]:
        """Return the complete versions, newest first, and uploads without a manifest."""
        folders: dict[str, list[Entry]] = {}
        prefix = f"models/{name}/versions"
        for entry in self._objects.entries(prefix):
            folders.setdefault(entry.key[len(prefix) + 1 :].split("/", 1)[0], []).append(entry)
        complete: list[Version] = []
        uploads: list[Upload] = []
        for version, entries in folders.items():
            if not is_version_id(version):  # not ours
                continue
            manifests = [entry for entry in entries if entry.key == manifest_key(name, version)]
            size_bytes = sum(entry.size_bytes for entry in entries)
            if not manifests:
                last_written = max(entry.modified for entry in entries)
                uploads.append(Upload(name, version, last_written, size_bytes))
                continue
            size_bytes -= manifests[0].size_bytes
            complete.append(Version(name, version, manifests[0].modified, size_bytes, len(entries) - 1))
        return sorted(complete, key=lambda version: (version.published, version.id), reverse=True), uploads

    def exists(self, name: str, version: str) -> bool:
        """Whether the version is complete, that is, has a manifest."""
        try:
            self._objects.size_bytes(manifest_key(name, version))
        except NotFoundInStore:
            return False
        return True

    def manifest(self, name: str, version: str) -> Manifest:
        """Read a manifest. Raises NotFoundInStore, and CorruptCheckpoint for one that is not this version's."""
        if not is_version_id(version):
            raise NotFoundInStore(f"{name} has no version {version!r}")
        key = manifest_key(name, version)
        try:
            if self._objects.size_bytes(key) > MAX_MANIFEST_BYTES:
                raise CorruptCheckpoint(
                    f"{name}@{version}", MANIFEST_FILE, expected=f"at most {MAX_MANIFEST_BYTES} bytes", found="more"
                )
            stored = self._objects.read(key)
        except NotFoundInStore:
            raise NotFoundInStore(f"{name} has no version {version}") from None
        return Manifest.parse(stored.body, name=name, version=version)

    def read_file(self, manifest: Manifest, path: str) -> Iterator[bytes]:
        """Yield a file's bytes in order, never more than the manifest says.

        Raises CorruptCheckpoint: at once for a wrong size, after the last byte for a wrong digest. Bytes read before
        that must not be used.
        """
        checkpoint = f"{manifest.name}@{manifest.version}"
        expected = manifest.files[path]
        key = file_key(manifest.name, manifest.version, path)
        try:
            size_bytes = self._objects.size_bytes(key)
        except NotFoundInStore:
            raise CorruptCheckpoint(checkpoint, path, expected="a file", found="none") from None
        if size_bytes != expected.size_bytes:
            raise CorruptCheckpoint(checkpoint, path, expected=f"{expected.size_bytes} bytes", found=f"{size_bytes}")
        sha256 = hashlib.sha256()
        num_read = 0
        for chunk in self._objects.read_chunks(key):
            num_read += len(chunk)
            if num_read > expected.size_bytes:
                raise CorruptCheckpoint(checkpoint, path, expected=f"{expected.size_bytes} bytes", found="more")
            sha256.update(chunk)
            yield chunk
        if sha256.hexdigest() != expected.sha256:
            raise CorruptCheckpoint(checkpoint, path, expected=f"sha256 {expected.sha256}", found=sha256.hexdigest())

    def verify(self, name: str, version: str) -> Manifest:
        """Read every byte of a version. Raises CorruptCheckpoint, NotFoundInStore."""
        manifest = self.manifest(name, version)
        for path in manifest.files:
            for _ in self.read_file(manifest, path):
                pass
        return manifest

    def upload(self, manifest: Manifest, file: CheckpointFile) -> None:
        """Write a file, which counts once the manifest is written. Raises InvalidCheckpoint if it changes meanwhile."""
        sha256 = hashlib.sha256()
        size_bytes = 0

        def chunks() -> Iterator[bytes]:
            nonlocal size_bytes
            try:
                for chunk in read_in_order(file.source):
                    sha256.update(chunk)
                    size_bytes += len(chunk)
                    yield chunk
            except OSError as error:
                raise InvalidCheckpoint(f"{file.source}: {error.strerror}") from error

        key = file_key(manifest.name, manifest.version, file.path)
        self._objects.write(key, chunks(), file.stored.size_bytes)
        if StoredFile(sha256=sha256.hexdigest(), size_bytes=size_bytes) != file.stored:
            raise InvalidCheckpoint(f"{file.source} changed during publication")

    def is_uploaded(self, manifest: Manifest) -> bool:
        """Whether every file of the manifest is in the store in its full size."""
        prefix = version_prefix(manifest.name, manifest.version)
        sizes = {entry.key: entry.size_bytes for entry in self._objects.entries(prefix)}
        return all(sizes.get(f"{prefix}/{path}") == file.size_bytes for path, file in manifest.files.items())

    def write_manifest(self, manifest: Manifest) -> None:
        body = manifest.to_json()
        if len(body) > MAX_MANIFEST_BYTES:
            raise InvalidCheckpoint(f"the manifest would have {len(body)} bytes, at most {MAX_MANIFEST_BYTES}")
        self._objects.write(manifest_key(manifest.name, manifest.version), [body], len(body))

    def remove(self, name: str, version: str) -> None:
        """Remove a version, manifest first, so that a crash leaves an aborted upload and not a damaged version."""
        manifest = manifest_key(name, version)
        self._objects.delete([manifest])
        self._objects.delete(entry.key for entry in self._objects.entries(version_prefix(name, version)))


def version_prefix(name: str, version: str) -> str:
    return f"models/{name}/versions/{version}"


def file_key(name: str, version: str, path: str) -> str:
    return f"{version_prefix(name, version)}/{path}"


def manifest_key(name: str, version: str) -> str:
    return file_key(name, version, MANIFEST_FILE)
