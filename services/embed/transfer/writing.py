"""Writers of the portable form: a folder that an interrupted export continues, or a tar that appears when complete."""

import io
import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, Protocol

from services.core.durable_files import write_durably
from services.embed.transfer.entries import TransferError
from services.embed.transfer.portable import DESCRIPTION, MANIFEST, UNFINISHED, file_name

# Ends the name of what is being written.
PART = ".part"


class Writer(Protocol):
    """Methods raise OSError. `names` are the files of the images that are there already, by digest."""

    names: dict[str, str]

    def put(self, sha256: str, data: bytes) -> None:
        """Write the bytes of an image, once."""

    def finish(self, lines: Iterable[bytes], description: dict[str, Any]) -> None:
        """Write the manifest and the description; the form is complete when this returns."""

    def close(self) -> None:
        """End the writing, whether or not it is finished."""


class FolderWriter(Writer):
    """A folder. What an earlier export of the same collection has written there is kept."""

    def __init__(self, path: Path, origin: dict[str, str]) -> None:
        """Raises TransferError for a folder that holds something else than an unfinished export of `origin`."""
        self._path = path
        if path.exists() and not path.is_dir():
            raise TransferError(f"{path} is a file")
        if path.exists() and any(path.iterdir()):
            self._check_is_continued(origin)
        path.mkdir(parents=True, exist_ok=True)
        (path / UNFINISHED).write_text(json.dumps(origin))
        (path / "images").mkdir(exist_ok=True)
        self.names = {}
        for file in (path / "images").glob("*/*"):
            if file.suffix == PART:
                file.unlink()
            else:
                self.names[file.stem] = str(file.relative_to(path))

    def put(self, sha256: str, data: bytes) -> None:
        name = file_name(sha256, data)
        path = self._path / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(PART)
        part.write_bytes(data)
        part.replace(path)
        self.names[sha256] = name

    def finish(self, lines: Iterable[bytes], description: dict[str, Any]) -> None:
        os.sync()  # cheaper than for each of many files
        write_durably(self._path / MANIFEST, lines)
        write_durably(self._path / DESCRIPTION, [_text(description)])
        (self._path / UNFINISHED).unlink()

    def close(self) -> None:
        pass

    def _check_is_continued(self, origin: dict[str, str]) -> None:
        try:
            begun = json.loads((self._path / UNFINISHED).read_text())
        except (OSError, ValueError):
            begun = None
        if begun is None:
            raise TransferError(f"{self._path} is not empty; an export is never written over")
        if begun != origin:
            raise TransferError(f"{self._path} holds an unfinished export of {begun.get('collection')!r}")


class TarWriter(Writer):
    """An uncompressed tar, written under another name until it is complete; begun again after an interruption."""

    def __init__(self, path: Path) -> None:
        """Raises TransferError if it exists."""
        if path.exists():
            raise TransferError(f"{path} exists; an export is never written over")
        self._path = path
        self._part = path.with_name(f"{path.name}{PART}")
        self._file: IO[bytes] = self._part.open("wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.names = {}

    def put(self, sha256: str, data: bytes) -> None:
        if sha256 not in self.names:
            self.names[sha256] = file_name(sha256, data)
            self._add(self.names[sha256], len(data), io.BytesIO(data))

    def finish(self, lines: Iterable[bytes], description: dict[str, Any]) -> None:
        with self._path.with_name(f"{self._path.name}.{MANIFEST}{PART}").open("w+b") as manifest:
            try:
                manifest.writelines(lines)
                size = manifest.tell()
                manifest.seek(0)
                self._add(MANIFEST, size, manifest)
            finally:
                Path(manifest.name).unlink()
        text = _text(description)
        self._add(DESCRIPTION, len(text), io.BytesIO(text))
        self._tar.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._part.replace(self._path)

    def close(self) -> None:
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _add(self, name: str, size: int, content: IO[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o644
        self._tar.addfile(member, content)


def _text(description: dict[str, Any]) -> bytes:
    return json.dumps(description, ensure_ascii=False, indent=2).encode() + b"\n"
