"""Which folders may become a version: weights in safetensors, JSON and text, never anything that runs code."""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from services.core.manifest import MANIFEST_FILE, StoredFile
from services.core.store_errors import InvalidCheckpoint

# Says what a folder holds (a starter's, or one given to `fovea store publish`); it is not part of the version.
DESCRIPTION_FILE = "checkpoint.json"

MAX_FILES = 1000
MAX_PATH_LENGTH = 200
MAX_TENSOR_HEADER_BYTES = 100 * 1024 * 1024
READ_CHUNK_BYTES = 4 * 1024 * 1024

JSON_SUFFIXES = frozenset({".json"})
# .jinja: a chat template, as transformers writes it beside a tokenizer and runs it in a sandbox.
TEXT_SUFFIXES = frozenset({".jsonl", ".txt", ".md", ".csv", ".tsv", ".jinja"})
TENSOR_SUFFIXES = frozenset({".safetensors"})
# .txt.gz: BPE merges as open_clip ships them; .model: SentencePiece, a protocol buffer.
OTHER_SUFFIXES = frozenset({".txt.gz", ".model"})
ALLOWED_SUFFIXES = JSON_SUFFIXES | TEXT_SUFFIXES | TENSOR_SUFFIXES | OTHER_SUFFIXES

# How files begin that can run code when they are loaded, whatever they are called.
FORBIDDEN_BEGINNINGS = {
    b"PK\x03\x04": "a zip archive, as torch.save writes",
    b"\x89HDF": "an HDF5 file",
    b"\x7fELF": "a program",
    **{b"\x80" + bytes([protocol]): "a pickle" for protocol in range(2, 6)},
}
PATH_SEGMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class CheckpointFile:
    """One file to publish: where it lies here, its path inside the version, its digest and size."""

    source: Path
    path: str
    stored: StoredFile


def read_checkpoint_directory(directory: Path) -> list[CheckpointFile]:
    """Every file of the folder, checked and hashed, sorted by path.

    Raises InvalidCheckpoint for an empty folder, a symbolic link or special file, a name outside the rules, a
    kind of file that is not allowed or whose content is not what its name says, and for a file called
    `manifest.json`, which the store writes. `checkpoint.json` at the top describes the folder and is left out.
    """
    if not directory.is_dir():
        raise InvalidCheckpoint(f"{directory} is not a folder")
    try:
        sources = sorted(source for source in _walk(directory) if source != directory / DESCRIPTION_FILE)
        if not sources:
            raise InvalidCheckpoint(f"{directory} holds no files to publish")
        if len(sources) > MAX_FILES:
            raise InvalidCheckpoint(f"{directory} holds {len(sources)} files, at most {MAX_FILES} are allowed")
        return [_read_file(directory, source) for source in sources]
    except OSError as error:
        raise InvalidCheckpoint(f"{error.filename or directory}: {error.strerror}") from error


def check_path(path: str) -> str:
    """The path itself. Raises InvalidCheckpoint unless it is relative, stays inside, and has plain names only."""
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidCheckpoint(f"path {path[:50]!r}… is longer than {MAX_PATH_LENGTH} characters")
    for segment in path.split("/"):
        if PATH_SEGMENT.fullmatch(segment) is None:
            raise InvalidCheckpoint(
                f"path {path!r}: {segment!r} must be of A-Z, a-z, 0-9, '.', '_', '-', starting with none of '.', '-'"
            )
    return path


def check_suffix(path: str) -> str:
    """The path itself. Raises InvalidCheckpoint for a kind of file that no version may hold."""
    if not path.endswith(tuple(ALLOWED_SUFFIXES)):
        allowed = ", ".join(sorted(ALLOWED_SUFFIXES))
        raise InvalidCheckpoint(f"{path} is of no kind that a checkpoint may hold (only {allowed})")
    return path


def digest_of(source: Path) -> StoredFile:
    """sha256 and size of a local file. Raises OSError."""
    sha256 = hashlib.sha256()
    size_bytes = 0
    for chunk in read_in_order(source):
        sha256.update(chunk)
        size_bytes += len(chunk)
    return StoredFile(sha256=sha256.hexdigest(), size_bytes=size_bytes)


def read_in_order(source: Path) -> Iterator[bytes]:
    """A local file from its first byte to its last.

    Memory maps are slower by orders of magnitude on network file systems; a read in order is not, and it leaves
    the file in the page cache for whoever loads it next.
    """
    with source.open("rb", buffering=0) as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            yield chunk


def _walk(directory: Path) -> Iterator[Path]:
    for entry in directory.iterdir():
        if entry.is_symlink():
            raise InvalidCheckpoint(f"{entry} is a symbolic link; copy what it points to")
        if entry.is_dir():
            yield from _walk(entry)
        elif entry.is_file():
            yield entry
        else:
            raise InvalidCheckpoint(f"{entry} is not a regular file")


def _read_file(directory: Path, source: Path) -> CheckpointFile:
    path = check_suffix(check_path(source.relative_to(directory).as_posix()))
    if path == MANIFEST_FILE:
        raise InvalidCheckpoint(f"{source}: the store writes {MANIFEST_FILE} itself")
    _check_content(source)
    return CheckpointFile(source, path, digest_of(source))


def _check_content(source: Path) -> None:
    with source.open("rb") as file:
        beginning = file.read(8)
    for forbidden, kind in FORBIDDEN_BEGINNINGS.items():
        if beginning.startswith(forbidden) and source.suffix not in TENSOR_SUFFIXES:
            raise InvalidCheckpoint(f"{source} is {kind}, which a checkpoint may not hold")
    try:
        if source.suffix in TENSOR_SUFFIXES:
            _check_tensors(source)
        elif source.suffix in JSON_SUFFIXES:
            json.loads(source.read_bytes())
        elif source.suffix in TEXT_SUFFIXES:
            _check_text(source.read_bytes())
        elif source.suffix == ".gz":
            _check_text(gzip.decompress(source.read_bytes()))
    except (ValueError, OSError, EOFError, zlib.error, RecursionError) as error:
        raise InvalidCheckpoint(f"{source} is not what its name says: {error}") from error


def _check_text(body: bytes) -> None:
    if "\0" in body.decode("utf-8"):
        raise ValueError("text without NUL bytes was expected")


def _check_tensors(source: Path) -> None:
    """safetensors: eight bytes of header length, a JSON header, then exactly the bytes that it announces."""
    size_bytes = source.stat().st_size
    with source.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if header_bytes > min(MAX_TENSOR_HEADER_BYTES, size_bytes - 8):
            raise ValueError(f"a header of {header_bytes} bytes in a file of {size_bytes}")
        header = json.loads(file.read(header_bytes))
    if not isinstance(header, dict):
        raise ValueError("the header is not a JSON object")
    try:
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        announced_bytes = int(max(ends, default=0))
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("the header has no data_offsets") from error
    if 8 + header_bytes + announced_bytes != size_bytes:
        raise ValueError(f"the header announces {announced_bytes} bytes of tensors, the file has others")
