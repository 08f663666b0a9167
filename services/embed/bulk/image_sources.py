"""Images in folders, webdataset tar shards and object stores: listed first, in a reproducible order, and read later.

The id of an image in a folder is its path in the folder, with forward slashes; that of an image in a tar is its key,
the name up to the first dot of its last part. A `.json` of the same key in the tar is its metadata. Stores are named by
URLs like those of the model store: `s3://bucket/photos?endpoint=https://…`.
"""

import hashlib
import io
import json
import math
import os
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from stat import S_ISREG
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit, urlunsplit

import orjson
import structlog

from services.core.store.errors import StoreError
from services.core.store.objects import SCHEMES, UNREADABLE_KEY, Entry, Objects

# What is fetched at once while only the names in a tar file are wanted.
READ_AHEAD_BYTES = 256 * 1024
IMAGE_SUFFIXES = ("jpg", "jpeg", "png", "webp", "gif", "bmp")
_BRACE_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """An object: the URL of what it is listed in, its key below that, its size, and the store's time of it."""

    url: str
    key: str
    num_bytes: int
    modified_ns: int

    def __str__(self) -> str:
        return f"{_objects(self.url).label}/{self.key}"

    def read(self, start: int, num_bytes: int) -> bytes:
        """Read this many bytes, fewer at its end. Raises StoreError.

        A whole object needs no range, which some servers do not know.
        """
        num_bytes = min(num_bytes, self.num_bytes - start)
        if num_bytes == self.num_bytes:
            return b"".join(_objects(self.url).read_chunks(self.key))
        return _objects(self.url).read_range(self.key, start, num_bytes) if num_bytes > 0 else b""

    def open(self, _mode: Literal["rb"]) -> io.BufferedReader:
        """Open it to be read here and there, with a read-ahead."""
        return io.BufferedReader(_Opened(self), READ_AHEAD_BYTES)


class _Opened(io.RawIOBase):
    def __init__(self, file: StoredFile) -> None:
        self._file = file
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.num_bytes}[whence]
        self._place = begin + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._file.read(self._place, len(buffer))
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def is_url(source: str) -> bool:
    """Whether a source is in an object store."""
    return source.partition("://")[0] in SCHEMES


def stored_tar(url: str) -> StoredFile | None:
    """Return the tar file that a URL names, None if it names none. Raises StoreError if it does not exist."""
    parts = urlsplit(url)
    folder, _, key = parts.path.rpartition("/")
    if not key.endswith(".tar"):
        return None
    parent = urlunsplit(parts._replace(path=folder))
    return _stored(parent, _objects(parent).entry(key))


def list_stored(url: str) -> tuple[list[StoredFile], list[str]]:
    """List the objects below a URL, in the order of their keys, and the names of unreadable ones. Raises StoreError."""
    listing = _objects(url).listing(None)
    return [_stored(url, entry) for entry in sorted(listing.entries, key=lambda one: one.key)], listing.unreadable


def _stored(url: str, entry: Entry) -> StoredFile:
    modified_ns = int(entry.modified.timestamp() * 1_000_000) * 1000
    return StoredFile(url, entry.key, entry.size_bytes, modified_ns)


@cache
def _objects(url: str) -> Objects:
    """Open a store once in a process; what the URL leaves out is in the environment, such as its secrets."""
    return Objects(url, {})


class SourceError(Exception):
    """A source that does not exist, has no images, or has two with the same id; the message can be shown to users."""


class Unreadable(Exception):
    """One image that can't be read; the message gives the reason for the list of skipped images."""


class ByteRange(NamedTuple):
    """The byte range of a member in a tar file."""

    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ListedImage:
    """An image file, or a part of a tar file; `name` and `place` are then its name and place in the tar.

    `num_bytes` and `modified_ns` (Unix time) are those of the image; in a tar the time is that of the tar.
    """

    id: str
    name: str
    file: Path | StoredFile
    num_bytes: int
    modified_ns: int
    place: ByteRange | None = None
    metadata: ByteRange | None = None

    def __str__(self) -> str:
        return str(self.file) if self.place is None else f"{self.name} in {self.file}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A skipped image and the reason; `id` is an image's, or the name of a file or folder that could not be listed."""

    id: str
    reason: str


@dataclass(frozen=True)
class Listing:
    images: list[ListedImage]
    skipped: list[Skipped]


def list_images(sources: Sequence[str], suffixes: Sequence[str] = IMAGE_SUFFIXES) -> Listing:
    """List every image in `sources`, each a tar file, a range of them (`shards-{000..010}.tar`), or a folder with tar
    files and with images at any depth; also those of an object store, by their URLs.

    Images are files whose names end in one of `suffixes`, in upper or lower case; names that begin with a dot are
    ignored. Images of a folder are in the order of their ids, those of a tar in its own order. What can't be listed is
    skipped. Raises SourceError for a source that does not exist, no images at all, and an id that two images have.
    """
    endings = tuple(f".{suffix.lower().lstrip('.')}" for suffix in suffixes)
    images: dict[str, ListedImage] = {}
    skipped: list[Skipped] = []
    for found_in_source in (_list_source(source, endings) for source in sources):
        for found in found_in_source:
            if isinstance(found, Skipped):
                skipped.append(found)
            elif other := images.get(found.id):
                raise SourceError(f"two images have the id {found.id!r}: {other}, and {found}")
            elif not _is_text(found.id):
                skipped.append(Skipped(ascii(found.id)[1:-1], "its name is not UTF-8"))
            else:
                images[found.id] = found
    if not images:
        reason = f" ({skipped[0].id}: {skipped[0].reason})" if skipped else ""
        raise SourceError(f"there are no images in {', '.join(sources)}{reason}")
    return Listing(list(images.values()), skipped)


def read_image(image: ListedImage, max_bytes: int) -> bytes:
    """Read the file. Raises Unreadable, also for more than `max_bytes`."""
    if image.num_bytes > max_bytes:
        raise Unreadable(f"the file has {image.num_bytes} bytes; the limit is {max_bytes} bytes")
    return _read(image.file, image.place)


def read_metadata(image: ListedImage) -> dict[str, Any] | None:
    """Read the `.json` beside the image, None if there is none. Raises Unreadable if it is not a JSON object.

    Fields with NaN or Infinity, which Python writes and JSON does not have, are left out, and a warning names them.
    """
    if image.metadata is None:
        return None
    try:
        metadata = json.loads(_read(image.file, image.metadata))
        if not isinstance(metadata, dict):
            raise Unreadable("its metadata is not a JSON object")
        metadata, left_out = _finite(metadata)
        orjson.dumps(metadata)  # it writes less deep nesting than is read
    except (ValueError, RecursionError, orjson.JSONEncodeError) as error:
        raise Unreadable(f"its metadata is not JSON: {error}") from None
    if left_out:
        structlog.get_logger(__name__).warning("metadata is left out: not finite", image=image.id, fields=left_out)
    return metadata


def _finite(fields: dict[str, Any], at: str = "") -> tuple[dict[str, Any], list[str]]:
    """Return fields without those that hold NaN or Infinity, and the paths of these."""
    kept: dict[str, Any] = {}
    left_out: list[str] = []
    for name, value in fields.items():
        if isinstance(value, dict):
            kept[name], inner = _finite(value, f"{at}{name}.")
            left_out += inner
        elif _is_finite(value):
            kept[name] = value
        else:
            left_out.append(f"{at}{name}")
    return kept, left_out


def _is_finite(value: Any) -> bool:
    if isinstance(value, list | dict):
        return all(map(_is_finite, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, float) or math.isfinite(value)


def fingerprint(images: Iterable[ListedImage]) -> str:
    """Compute the sha256 in hex of ids, sizes, times and places: unchanged if a folder is moved but not modified."""
    sha256 = hashlib.sha256()
    for image in images:
        line = [image.id, image.num_bytes, image.modified_ns, image.place, image.metadata]
        sha256.update(json.dumps(line).encode() + b"\n")
    return sha256.hexdigest()


def _list_source(source: str, endings: tuple[str, ...]) -> Iterator[ListedImage | Skipped]:
    """List a folder, its tar files first, or a tar file. Raises SourceError if it does not exist."""
    if (braces := _BRACE_RANGE.search(source)) and not Path(source).exists():
        first, last = braces.groups()
        width = len(first) if first.startswith("0") else 0
        for number in range(int(first), int(last) + 1):
            yield from _list_source(f"{source[: braces.start()]}{number:0{width}d}{source[braces.end() :]}", endings)
    elif is_url(source):
        yield from _list_url(source, endings)
    elif (path := Path(source)).is_dir():
        for tar in sorted(path.glob("*.tar")):
            yield from _list_tar(tar, endings)
        yield from sorted(_walk(path, "", (), endings), key=lambda found: found.id)
    elif path.exists():
        yield from _list_tar(path, endings)
    else:
        raise SourceError(f"there is no {source}")


def _list_url(url: str, endings: tuple[str, ...]) -> Iterator[ListedImage | Skipped]:
    """List the objects below a URL, or a tar file. Raises SourceError if the store fails or has none."""
    try:
        if (tar := stored_tar(url)) is not None:
            yield from _list_tar(tar, endings)
            return
        files, unreadable = list_stored(url)
    except StoreError as error:
        raise SourceError(str(error)) from None
    yield from (Skipped(name, UNREADABLE_KEY) for name in unreadable if name.lower().endswith(endings))
    for file in files:
        if "/" not in file.key and file.key.endswith(".tar"):
            yield from _list_tar(file, endings)
    for file in files:
        is_hidden = any(part.startswith(".") for part in file.key.split("/"))
        if not is_hidden and file.key.lower().endswith(endings):
            yield ListedImage(file.key, file.key, file, file.num_bytes, file.modified_ns)


def _walk(
    folder: Path, prefix: str, above: tuple[tuple[int, int], ...], endings: tuple[str, ...]
) -> Iterator[ListedImage | Skipped]:
    """Walk a folder. Links are followed, except to a folder that contains them (`above`: device and inode of those)."""
    try:
        itself = folder.stat()
        entries = list(os.scandir(folder))
    except OSError as error:
        yield Skipped(prefix or str(folder), str(error.strerror))
        return
    key = (itself.st_dev, itself.st_ino)
    if key in above:
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _walk(Path(entry.path), f"{name}/", (*above, key), endings)
        elif entry.name.lower().endswith(endings):
            yield _listed_file(Path(entry.path), name)


def _listed_file(path: Path, name: str) -> ListedImage | Skipped:
    try:
        stat = path.stat()
    except OSError as error:
        return Skipped(name, str(error.strerror))
    if not S_ISREG(stat.st_mode):
        return Skipped(name, "it is not a file")
    return ListedImage(name, name, path, stat.st_size, stat.st_mtime_ns)


def _list_tar(path: Path | StoredFile, endings: tuple[str, ...]) -> Iterator[ListedImage | Skipped]:
    images: list[tuple[str, str, ByteRange]] = []
    metadata: dict[str, ByteRange] = {}
    damage: Skipped | None = None
    try:
        modified_ns = path.modified_ns if isinstance(path, StoredFile) else path.stat().st_mtime_ns
        for name, place in _members(path):
            folder, slash, base = name.rpartition("/")
            stem, _, extension = base.partition(".")
            if not stem:
                continue
            if extension.lower() == "json":
                metadata[f"{folder}{slash}{stem}"] = place
            elif base.lower().endswith(endings):
                images.append((f"{folder}{slash}{stem}", name, place))
    except (tarfile.TarError, ValueError, ArithmeticError) as error:
        damage = Skipped(str(path), f"no readable tar file behind image {len(images)}: {error}")
    except (OSError, StoreError) as error:
        damage = Skipped(str(path), str(getattr(error, "strerror", None) or error))
    for key, name, place in images:
        yield ListedImage(key, name, path, place.num_bytes, modified_ns, place, metadata.get(key))
    if damage is not None:
        yield damage


def _members(path: Path | StoredFile) -> Iterator[tuple[str, ByteRange]]:
    """Yield the files in a tar without reading their contents. Raises TarError if it is damaged or compressed."""
    with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if member.isreg() and not member.issparse():
                yield member.name.removeprefix("./"), ByteRange(member.offset_data, member.size)
        # tarfile treats a damaged header as the end, so check that only zeros or nothing follow
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"damaged at byte {archive.offset}")


def _read(file: Path | StoredFile, place: ByteRange | None) -> bytes:
    try:
        if isinstance(file, StoredFile):
            data = file.read(place.offset, place.num_bytes) if place else file.read(0, file.num_bytes)
        else:
            data = _read_path(file, place)
    except (OSError, StoreError) as error:
        raise Unreadable(str(getattr(error, "strerror", None) or error)) from None
    if place is not None and len(data) < place.num_bytes:
        raise Unreadable(f"the tar file ends {place.num_bytes - len(data)} bytes before its end")
    return data


def _read_path(file: Path, place: ByteRange | None) -> bytes:
    with file.open("rb", buffering=0) as opened:
        if place is None:
            return opened.read()
        opened.seek(place.offset)
        return opened.read(place.num_bytes)


def _is_text(name: str) -> bool:
    """Whether a name is valid Unicode: file names may be any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
