"""Verified local copies of versions: `<cache_dir>/<name>/<id>/`, read in full and compared before each use."""

import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import stamina
import structlog

from services.core.settings import DEFAULT_CHECKPOINT_CACHE_BYTES
from services.core.store.checkpoint_files import digest_of
from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint, NotFoundInStore, StoreUnavailable
from services.core.store.manifest import MANIFEST_FILE, Manifest, check_model_name, is_version_id
from services.core.store.versions import Versions

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
    `max_bytes`: those used longest ago make room before another is fetched.

    Raises NotFoundInStore, CorruptCheckpoint (the store's own bytes are wrong), InvalidCheckpoint (a version larger
    than `max_bytes`), StoreUnavailable (also for a cache folder that can't be written).
    """
    check_model_name(name)
    if not is_version_id(version):
        raise NotFoundInStore(f"{name} has no version {version!r}")
    folder = cache_dir / name / version
    try:
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
