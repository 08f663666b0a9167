"""The folders that may become a version: weights in safetensors, JSON and text, never anything that runs code.

Pickles are recognised by their opcodes: protocols 0 and 1 are printable, and can hide in text files of any name.
"""

import gzip
import hashlib
import io
import json
import os
import pickletools
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from services.core.refusals import first_complaint
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import (
    JSON_SUFFIXES,
    MANIFEST_FILE,
    TENSOR_SUFFIXES,
    TEXT_SUFFIXES,
    CheckpointInfo,
    StoredFile,
    check_paths,
    check_sizes,
)

# Opcodes by which a pickle runs code.
CALLS = frozenset({"REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"})
IMPORTS = frozenset({"GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4"})
# Short text can be one or two opcodes that make a number or a word: `I5\n.` is a pickle of 5.
MIN_OPCODES = 3
# No text parses as this many opcodes in a row with a valid stack.
MAX_OPCODES = 10_000

_QUALIFIED_NAME = re.compile(r"[A-Za-z_][\w.]* [A-Za-z_][\w.]*")
_MARK = object()


def is_pickle(file: IO[bytes]) -> bool:
    """Whether the rest of `file` would be loaded as a pickle of any protocol, or would run code before it fails. Bytes
    after a pickle's end do not matter; the file is read no further.
    """
    stack: list[Any] = []
    has_imported = False
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(file), 1):
            is_whole = len(stack) == 1  # a pickler leaves nothing beside the one object
            _apply(opcode, stack)
            if opcode.name in ("GLOBAL", "INST") and not _QUALIFIED_NAME.fullmatch(str(argument)):
                return False
            has_imported = has_imported or opcode.name in IMPORTS
            if (has_imported and opcode.name in CALLS) or count >= MAX_OPCODES:
                return True
            if opcode.name == "STOP":
                return is_whole and count >= MIN_OPCODES
    except (ValueError, IndexError):  # not an opcode, an invalid argument, or a stack without the operands
        return False
    return False


def is_pickled(body: bytes) -> bool:
    """Apply `is_pickle` to bytes in memory."""
    return is_pickle(io.BytesIO(body))


def _apply(opcode: pickletools.OpcodeInfo, stack: list[Any]) -> None:
    """Pop from the stack and push on it what the opcode does. Raises IndexError where operands are missing."""
    before = opcode.stack_before
    if pickletools.markobject in before:
        while stack.pop() is not _MARK:
            pass
        before = before[: before.index(pickletools.markobject)]
    for _ in before:
        if stack.pop() is _MARK and opcode.name != "POP":
            raise IndexError
    stack += [_MARK if made is pickletools.markobject else None for made in opcode.stack_after]


# Describes a folder (a starter's, or one given to `fovea store publish`); it is not part of the version.
DESCRIPTION_FILE = "checkpoint.json"

MAX_TENSOR_HEADER_BYTES = 100 * 1024 * 1024
MAX_UNPACKED_BYTES = 256 * 1024 * 1024
READ_CHUNK_BYTES = 4 * 1024 * 1024

# First bytes of files that can run code when they are loaded, whatever their names.
FORBIDDEN_BEGINNINGS = {
    b"\x89HDF": "an HDF5 file",
    b"\x7fELF": "a program",
    b"\x93NUMPY": "a NumPy array, which may contain pickles",
    **{b"\x80" + bytes([protocol]): "a pickle" for protocol in range(6)},
}


@dataclass(frozen=True)
class CheckpointFile:
    """One file to publish: its local path, its path inside the version, its digest and size."""

    source: Path
    path: str
    stored: StoredFile


def read_checkpoint_directory(directory: Path) -> list[CheckpointFile]:
    """Return every file of the folder, checked and hashed, sorted by path.

    Raises InvalidCheckpoint for an empty folder, a symbolic link or special file, a name outside the rules, a
    kind of file that is not allowed or whose content does not match its name, and for a file called
    `manifest.json`, which the store writes. `checkpoint.json` at the top describes the folder and is left out.
    """
    if not directory.is_dir():
        raise InvalidCheckpoint(f"{directory} is not a folder")
    try:
        sources = sorted(source for source in _walk(directory) if source != directory / DESCRIPTION_FILE)
        if not sources:
            raise InvalidCheckpoint(f"{directory} has no files to publish")
        check_paths([source.relative_to(directory).as_posix() for source in sources])
        return [_read_file(directory, source) for source in sources]
    except OSError as error:
        raise InvalidCheckpoint(f"{error.filename or directory}: {error.strerror}") from error


def digest_of(source: Path) -> StoredFile:
    """Return the sha256 and size of a local file. Raises OSError."""
    sha256 = hashlib.sha256()
    size_bytes = 0
    for chunk in read_in_order(source):
        sha256.update(chunk)
        size_bytes += len(chunk)
    return StoredFile(sha256=sha256.hexdigest(), size_bytes=size_bytes)


def read_in_order(source: Path) -> Iterator[bytes]:
    """Yield the chunks of a local file in order.

    Memory maps are slower by orders of magnitude on network file systems; a sequential read is not, and it leaves the
    file in the page cache for the loader that follows. Raises OSError, also where a symbolic link has taken the place
    of the file.
    """
    with open(source, "rb", buffering=0, opener=_open_no_link) as file:
        while chunk := file.read(READ_CHUNK_BYTES):
            yield chunk


def _open_no_link(path: str, flags: int) -> int:
    # A pipe in place of the file must not block.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


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
    path = source.relative_to(directory).as_posix()
    if path == MANIFEST_FILE:
        raise InvalidCheckpoint(f"{source}: {MANIFEST_FILE} is reserved for the store")
    check_sizes(str(directory), {path: source.stat().st_size})
    _check_content(source)
    return CheckpointFile(source, path, digest_of(source))


def _check_content(source: Path) -> None:
    if source.suffix not in TENSOR_SUFFIXES and (kind := _forbidden_kind(source)):
        raise InvalidCheckpoint(f"{source} is {kind}, which a checkpoint may not contain")
    try:
        if source.suffix in TENSOR_SUFFIXES:
            _check_tensors(source)
        elif source.suffix in JSON_SUFFIXES:
            json.loads(source.read_bytes())
        elif source.suffix in TEXT_SUFFIXES:
            _check_text(source.read_bytes())
        elif source.suffix == ".gz":
            with gzip.open(source) as file:
                _check_text(file.read(MAX_UNPACKED_BYTES + 1))
    except (ValueError, OSError, EOFError, zlib.error, RecursionError) as error:
        raise InvalidCheckpoint(f"{source} does not match its file type: {error}") from error


def _forbidden_kind(source: Path) -> str | None:
    """Return the file's kind if it may run code when it is loaded, whatever its name; None otherwise."""
    with source.open("rb") as file:
        beginning = file.read(8)
        for forbidden, kind in FORBIDDEN_BEGINNINGS.items():
            if beginning.startswith(forbidden):
                return kind
        # An archive is recognised by its end, so anything may precede it.
        if zipfile.is_zipfile(file):
            return "a zip archive, as torch.save writes"
        file.seek(0)
        return "a pickle" if is_pickle(file) else None


def _check_text(body: bytes) -> None:
    if len(body) > MAX_UNPACKED_BYTES:
        raise ValueError(f"more than {MAX_UNPACKED_BYTES} bytes of text")
    if "\0" in body.decode("utf-8"):
        raise ValueError("text without NUL bytes was expected")
    if is_pickled(body):  # where it was compressed
        raise ValueError("text was expected, not a pickle")


def _check_tensors(source: Path) -> None:
    """Check for safetensors: eight bytes of header length, a JSON header, then exactly the bytes that it announces."""
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
        raise ValueError(f"the header announces {announced_bytes} bytes of tensors, which does not match the file")


class CheckpointDescription(CheckpointInfo):
    """The contents of `checkpoint.json`: a folder's name and aliases in the store, and its manifest's information."""

    name: str
    aliases: tuple[str, ...] = ("latest",)

    def info(self) -> CheckpointInfo:
        return CheckpointInfo(**{field: getattr(self, field) for field in CheckpointInfo.model_fields})


def read_description(directory: Path) -> CheckpointDescription:
    """Read a description. Raises InvalidCheckpoint, naming file and field, where it is missing or invalid."""
    path = directory / DESCRIPTION_FILE
    try:
        return CheckpointDescription.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidCheckpoint(f"{path}: {error.strerror}") from error
    except ValidationError as error:
        raise InvalidCheckpoint(f"{path}: {first_complaint(error, 'content')}") from error


def packaged_starters(*names: str) -> list[Path]:
    """List the `<service>/starter/<name>` folders of the installed package: all, or those of these names."""
    found = Path(str(files("services"))).glob(f"*/starter/*/{DESCRIPTION_FILE}")
    return sorted(path.parent for path in found if not names or path.parent.name in names)
