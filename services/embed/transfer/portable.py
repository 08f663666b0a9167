"""A collection as files that plain tools read and write: a folder, or a tar of it.

    collection.json     {"format": "fovea-collection/1", "name", "model", "created", "conditions", "images"}
    images.jsonl        {"id", "file", "sha256", "bytes", "metadata", "created"} of each image, in order of the ids
    images/ab/abcd….jpg the bytes, once for equal images

`collection.json` is written last: a folder without it is unfinished.
"""

import codecs
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.core.durable_files import write_durably
from services.core.errors import InvalidField
from services.core.images.headers import media_type_of
from services.core.printable import json_line
from services.embed.collections.storage.image_store import check_image_id
from services.embed.transfer.entries import Entry, TransferError, canonical

ModelT = TypeVar("ModelT", bound=BaseModel)

FORMAT = "fovea-collection/1"
DESCRIPTION, MANIFEST, UNFINISHED = "collection.json", "images.jsonl", "unfinished.json"
TAR = ".tar"
SUFFIXES = {"image/jpeg": ".jpg", "image/png": ".png", "image/webp": ".webp", "image/gif": ".gif", "image/bmp": ".bmp"}
LAST_SECOND = 253402300800
# Ends the name of what is being written.
PART = ".part"


class Condition(BaseModel):
    """A condition that is indexed; a pinned one is never dropped."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str
    pinned: bool = True


class Description(BaseModel):
    """`collection.json`; all but the format may be missing. `images` is the number of lines of `images.jsonl`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: str
    name: str | None = None
    model: str | None = None
    created: float | None = Field(None, ge=0, lt=LAST_SECOND)
    conditions: list[Condition] = []
    images: int | None = None


class Line(BaseModel):
    """A line of `images.jsonl`. Without an id it is the file's name, without a digest that of the file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    file: str
    id: str | None = None
    sha256: str | None = Field(None, pattern="^[0-9a-f]{64}$")
    bytes: int | None = None
    metadata: dict[str, Any] | None = None
    created: float | None = Field(None, ge=0, lt=LAST_SECOND)


class Folder:
    """The files of a collection in a folder, to be read. Methods raise TransferError for a file that is missing or
    outside."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = path

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the manifest."""
        self._check(MANIFEST)
        with (self._path / MANIFEST).open("rb") as file:
            yield from file

    def has(self, name: str) -> bool:
        return (self._path / name).is_file()

    def read(self, name: str) -> bytes:
        self._check(name)
        return (self._path / name).read_bytes()

    def close(self) -> None:
        pass

    def _check(self, name: str) -> None:
        path = (self._path / name).resolve()
        if not path.is_relative_to(self._path.resolve()):
            raise TransferError(f"{self.label}: {name} leads out of the folder")
        if not path.is_file():
            raise TransferError(f"{self.label} has no file {name}")


class Tar:
    """The files of a collection in an uncompressed tar, as `Folder` reads them; names may begin with `./`."""

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        try:
            self._tar = tarfile.open(path, "r:")  # noqa: SIM115 - closed by `close`
            self._members = {str(PurePosixPath(one.name)): one for one in self._tar if one.isreg()}
        except (tarfile.TarError, ValueError, ArithmeticError) as error:
            raise TransferError(f"{path} is not an uncompressed tar: {error}") from None
        size = path.stat().st_size
        for name, one in self._members.items():
            if one.issparse() or one.offset_data + one.size > size:
                self._tar.close()
                raise TransferError(f"{path}: {name} says that it has {one.size} bytes, which are not in the tar")

    def lines(self) -> Iterator[bytes]:
        yield from self._open(MANIFEST)

    def has(self, name: str) -> bool:
        return str(PurePosixPath(name)) in self._members

    def read(self, name: str) -> bytes:
        return bytes(self._open(name).read())

    def close(self) -> None:
        self._tar.close()

    def _open(self, name: str) -> Any:
        member = self._members.get(str(PurePosixPath(name)))
        if member is None:
            raise TransferError(f"{self.label} has no file {name}")
        return self._tar.extractfile(member)


Form = Folder | Tar


def open_form(path: Path) -> Form:
    """Open a folder or a tar. Raises TransferError."""
    if path.is_dir():
        return Folder(path)
    if path.is_file():
        return Tar(path)
    raise TransferError(f"there is no folder and no tar {path}")


def read_description(form: Form) -> Description:
    """Read what the collection is; without `collection.json`, nothing is known. Raises TransferError."""
    if form.has(UNFINISHED):
        raise TransferError(f"{form.label} is an unfinished export; run the same export again")
    if not form.has(DESCRIPTION):
        return Description(format=FORMAT)
    found = _validated(lambda: Description.model_validate_json(form.read(DESCRIPTION)), f"{form.label}/{DESCRIPTION}")
    if found.format != FORMAT:
        raise TransferError(f"{form.label} has the format {found.format!r}; this version reads {FORMAT!r}")
    return found


def read_manifest(form: Form) -> Iterator[Entry]:
    """Yield the images of the manifest as they stand there. Raises TransferError that names the line and the field."""
    for number, line in enumerate(form.lines(), 1):
        place = f"{form.label}/{MANIFEST}, line {number}"
        text = line.removeprefix(codecs.BOM_UTF8)  # editors on Windows begin files with it
        found = _validated(lambda text=text: Line.model_validate_json(text), place)  # type: ignore[misc]
        if found.id is None:
            found.id = found.file
        try:
            check_image_id(found.id, "id")
        except InvalidField as error:
            raise TransferError(f"{place}, id: {error.message}") from None
        metadata = None if found.metadata is None else canonical(found.metadata)
        yield Entry(found.id, found.sha256 or "", found.bytes or 0, metadata, found.created, found.file)


def checked_bytes(form: Form, entry: Entry) -> bytes:
    """Read an image. Raises TransferError if it is missing or not what the manifest says."""
    data = form.read(entry.file)
    of = f"{form.label}/{MANIFEST}, image {entry.id!r}"
    if entry.num_bytes and len(data) != entry.num_bytes:
        raise TransferError(f"{of}, bytes: {entry.file} has {len(data):,}, not {entry.num_bytes:,}")
    if entry.sha256 and hashlib.sha256(data).hexdigest() != entry.sha256:
        raise TransferError(f"{of}, sha256: that of {entry.file} is another one")
    return data


def file_name(sha256: str, data: bytes) -> str:
    """Name the file of an image."""
    return f"images/{sha256[:2]}/{sha256}{SUFFIXES.get(media_type_of(data) or '', '')}"


def manifest_line(entry: Entry) -> bytes:
    """Write a line of the manifest."""
    assert entry.metadata is not None
    known = {
        "id": entry.id,
        "file": entry.file,
        "sha256": entry.sha256,
        "bytes": entry.num_bytes,
        "metadata": json.loads(entry.metadata),
        "created": entry.created,
    }
    return json_line(json.dumps(known, ensure_ascii=False))


def _validated(read: Callable[[], ModelT], place: str) -> ModelT:
    try:
        return read()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        told = "there is no such field" if first["type"] == "extra_forbidden" else first["msg"]
        raise TransferError(f"{place}{f', {field}' if field else ''}: {told}") from None


class FolderWriter:
    """Writes a folder. What an earlier export of the same collection has written there is kept.

    `names` are the files of the images that are there already, by digest. Methods raise OSError.
    """

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
        self.names: dict[str, str] = {}
        for file in (path / "images").glob("*/*"):
            if file.suffix == PART:
                file.unlink()
            else:
                self.names[file.stem] = str(file.relative_to(path))

    def put(self, sha256: str, data: bytes) -> None:
        """Write the bytes of an image, once."""
        name = file_name(sha256, data)
        path = self._path / name
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(PART)
        part.write_bytes(data)
        part.replace(path)
        self.names[sha256] = name

    def finish(self, lines: Iterable[bytes], description: dict[str, Any]) -> None:
        """Write the manifest and the description; the form is complete when this returns."""
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


class TarWriter:
    """Writes an uncompressed tar as `FolderWriter` a folder, under another name until it is complete; begun again after
    an interruption."""

    def __init__(self, path: Path) -> None:
        """Raises TransferError if it exists."""
        if path.exists():
            raise TransferError(f"{path} exists; an export is never written over")
        self._path = path
        self._part = path.with_name(f"{path.name}{PART}")
        self._file: IO[bytes] = self._part.open("wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.names: dict[str, str] = {}

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


Writer = FolderWriter | TarWriter


def _text(description: dict[str, Any]) -> bytes:
    return json.dumps(description, ensure_ascii=False, indent=2).encode() + b"\n"
