"""Immutable versions: `models/<name>/versions/<id>/`, files first, `manifest.json` last.

Local copies, `<cache_dir>/<name>/<id>/`, are read in full and compared before each use.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

import stamina
import structlog

from services.core.settings import DEFAULT_CHECKPOINT_CACHE_BYTES
from services.core.store.checkpoint_files import CheckpointFile, digest_of, read_in_order
from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint, NotFoundInStore, StoreUnavailable
from services.core.store.manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    NAME_PATTERN,
    Manifest,
    StoredFile,
    check_model_name,
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

    def in_place(self, manifest: Manifest) -> Path:
        """Return the version's own folder, every byte checked. Raises InvalidCheckpoint where the store has none."""
        if self._objects.root is None:
            raise InvalidCheckpoint(
                f"FOVEA_CHECKPOINT_CACHE_MAX_BYTES is 0, so {manifest.name}@{manifest.version} is used where it lies, "
                f"which only a store in a folder (file://) has; {self._objects.label} needs room for copies"
            )
        folder = self._objects.root / version_prefix(manifest.name, manifest.version)
        check_copy(folder, manifest)
        return folder

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


# obstore repeats failed requests; this is for an answer that breaks off in the middle.
DOWNLOAD_ATTEMPTS = 3

log = structlog.get_logger(__name__)


def fetch_verified(
    versions: Versions, name: str, version: str, cache_dir: Path, max_bytes: int = DEFAULT_CHECKPOINT_CACHE_BYTES
) -> Path:
    """Return a folder that holds exactly the files of the version, every byte checked in this call.

    An existing copy is read and compared with its own manifest, which its id proves, so that it needs no store; a
    damaged or incomplete copy is deleted and fetched again. A copy appears under its name in one step, and of several
    processes that want it one downloads while the others wait. A `file://` store is copied as well: the files that a
    service loads then can't change under it, and all stores behave alike. Copies of all models together take at most
    `max_bytes`: those used longest ago make room before another is fetched. With 0 there are none, and the folder is
    the store's own, which nothing may change.

    Raises NotFoundInStore, CorruptCheckpoint (the store's own bytes are wrong), InvalidCheckpoint (a version larger
    than `max_bytes`), StoreUnavailable (also for a cache folder that can't be written).
    """
    check_model_name(name)
    if not is_version_id(version):
        raise NotFoundInStore(f"{name} has no version {version!r}")
    folder = cache_dir / name / version
    try:
        if max_bytes == 0:
            return versions.in_place(versions.manifest(name, version))
        if _is_intact(folder, name, version):
            _mark_as_used(folder)
            return folder
        with _only_one_process(cache_dir / name / f".{version}.lock"):
            # The previous holder of the lock may have fetched it.
            if not _is_intact(folder, name, version):
                manifest = versions.manifest(name, version)
                _make_room(cache_dir, manifest, max_bytes)
                _download(versions, manifest, folder)
                _mark_as_used(folder)
    except OSError as error:
        raise StoreUnavailable(f"checkpoint cache {cache_dir}: {error}") from error
    return folder


def copy_verified(versions: Versions, name: str, version: str, folder: Path) -> None:
    """Make a folder of exactly the files of the version and its manifest, every byte checked; it appears in one step.

    A folder that is there already is only compared. Raises NotFoundInStore, CorruptCheckpoint (also for a folder that
    holds anything else), StoreUnavailable (also for a folder that can't be written).
    """
    manifest = versions.manifest(check_model_name(name), version)
    try:
        if not folder.exists():
            _download(versions, manifest, folder)
        check_copy(folder, manifest)
    except OSError as error:
        raise StoreUnavailable(f"{folder}: {error}") from error


def check_copy(folder: Path, manifest: Manifest) -> None:
    """Raises CorruptCheckpoint unless the folder holds exactly the manifest's files, byte for byte."""
    checkpoint = f"{manifest.name}@{manifest.version} in {folder}"
    found_paths = {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()
    }
    for path in sorted(found_paths ^ (manifest.files.keys() | {MANIFEST_FILE})):
        found = "a file" if path in found_paths else "none"
        raise CorruptCheckpoint(checkpoint, path, expected="none" if found == "a file" else "a file", found=found)
    for path, expected in manifest.files.items():
        status = (folder / path).lstat()
        if not stat.S_ISREG(status.st_mode):
            raise CorruptCheckpoint(checkpoint, path, expected="a regular file", found="a link or a special file")
        size_bytes = status.st_size
        if size_bytes != expected.size_bytes:
            raise CorruptCheckpoint(checkpoint, path, expected=f"{expected.size_bytes} bytes", found=f"{size_bytes}")
        sha256 = digest_of(folder / path).sha256
        if sha256 != expected.sha256:
            raise CorruptCheckpoint(checkpoint, path, expected=f"sha256 {expected.sha256}", found=sha256)


def _is_intact(folder: Path, name: str, version: str) -> bool:
    try:
        body = (folder / MANIFEST_FILE).read_bytes()
        check_copy(folder, Manifest.parse(body, name=name, version=version))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except CorruptCheckpoint as error:
        log.warning("damaged checkpoint copy", error=str(error))
        return False
    return True


def _download(versions: Versions, manifest: Manifest, folder: Path) -> None:
    """Fill a folder beside the final one, then rename. Only called by the holder of the lock."""
    for abandoned in folder.parent.glob(f".{manifest.version}.*.part"):
        shutil.rmtree(abandoned, ignore_errors=True)
    part = folder.with_name(f".{manifest.version}.{uuid.uuid4().hex}.part")
    try:
        for path in manifest.files:
            target = part / "files" / path
            target.parent.mkdir(parents=True, exist_ok=True)
            for attempt in stamina.retry_context(on=StoreUnavailable, attempts=DOWNLOAD_ATTEMPTS):
                with attempt, _new_file(target) as file:
                    for chunk in versions.read_file(manifest, path):
                        file.write(chunk)
        (part / "files" / MANIFEST_FILE).write_bytes(manifest.to_json())
        if folder.exists() or folder.is_symlink():
            folder.rename(part / "damaged")
        (part / "files").rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _new_file(path: Path) -> IO[bytes]:
    """Create an empty file in place of one that an earlier attempt left: existing files are never written to."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def _mark_as_used(folder: Path) -> None:
    # A cache that was filled beforehand and mounted read-only is never evicted either.
    with suppress(OSError):
        # The file system's own clock ticks in milliseconds, within which a fast machine uses several copies.
        now_ns = time.time_ns()
        os.utime(folder, ns=(now_ns, now_ns))


def _make_room(cache_dir: Path, manifest: Manifest, max_bytes: int) -> None:
    """Remove the copies used longest ago, of any model. Files that a process has open stay readable to it."""
    if manifest.size_bytes > max_bytes:
        raise InvalidCheckpoint(
            f"{manifest.name}@{manifest.version} takes {manifest.size_bytes} bytes, and copies may take {max_bytes} "
            "together (FOVEA_CHECKPOINT_CACHE_MAX_BYTES)"
        )
    copies = [copy for copy in cache_dir.glob("*/*") if is_version_id(copy.name) and copy.is_dir()]
    # What other processes are fetching counts as far as it has come.
    sizes = {folder: _size_bytes(folder) for folder in [*copies, *cache_dir.glob("*/.*.part")]}
    for copy in sorted(copies, key=_last_use_ns):
        if sum(sizes.values()) + manifest.size_bytes <= max_bytes:
            return
        del sizes[copy]
        shutil.rmtree(copy, ignore_errors=True)


def _size_bytes(folder: Path) -> int:
    """Sum the sizes of a folder's files; one that another process has removed meanwhile takes nothing."""
    size_bytes = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            status = path.lstat()
            size_bytes += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size_bytes


def _last_use_ns(copy: Path) -> int:
    with suppress(FileNotFoundError):
        return copy.stat().st_mtime_ns
    return 0


@contextmanager
def _only_one_process(lock: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
