"""Local files that are complete or absent, also after a power cut, and the opening of files without waiting."""

import errno
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

# Over a hundred thousand keys; a file that grows without end must not take the memory of the process that follows it.
MAX_READ_BYTES = 64 * 1024 * 1024
HALF_WRITTEN = re.compile(r".+#[0-9]+")


@contextmanager
def opened_file(path: Path, flags: int) -> Iterator[int]:
    """Open a regular file with flags of `os.open`, and yield its descriptor. Raises OSError for anything else, too.

    Never waits, as opening a pipe would.
    """
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)


def read_regular_file(path: Path) -> bytes:
    """Read a file of at most `MAX_READ_BYTES` whole. Raises OSError for a larger one, and for what is no regular file
    without waiting."""
    with opened_file(path, os.O_RDONLY) as descriptor, open(descriptor, "rb", closefd=False) as file:
        if len(content := file.read(MAX_READ_BYTES + 1)) > MAX_READ_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_READ_BYTES} bytes", str(path))
        return content


def write_durably(path: Path, chunks: Iterable[bytes]) -> None:
    """Replace `path` by the chunks in one step, on disk when this returns. Raises OSError.

    Readers see the old content or the new, never a part. Folders are made as needed. The half-written file is called
    `<name>#<digits>`, a form that listings of a local object store leave out.
    """
    make_folder_durably(path.parent)
    staged = path.with_name(f"{path.name}#{uuid.uuid4().int >> 64}")
    try:
        with staged.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def delete_durably(path: Path) -> None:
    """Remove a file, which may be gone already, and its folder if that leaves it empty. Raises OSError."""
    path.unlink(missing_ok=True)
    try:
        path.parent.rmdir()
        sync_folder(path.parent.parent)
    except FileNotFoundError:
        return
    except OSError:
        sync_folder(path.parent)


def half_written_files(folder: Path) -> Iterator[Path]:
    """Yield the files under `folder`, at any depth, that `write_durably` is writing, or was when it was killed."""
    return (path for path in folder.rglob("*#*") if HALF_WRITTEN.fullmatch(path.name))


def make_folder_durably(folder: Path) -> None:
    """Make a folder and its parents, every new entry on disk when this returns. Raises OSError."""
    if folder.is_dir():
        return
    make_folder_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's entries on disk (fsync). Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
