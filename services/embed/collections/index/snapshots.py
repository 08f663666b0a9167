"""An index as one file: a line of JSON, rows, vectors, inverted lists, and the SHA-256 of all of these.

Numbers are little-endian. Dead rows are left out. A file that is incomplete or of another identity is rejected.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import faiss
import numpy as np
from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveInt, ValidationError

from services.core.durable_files import write_durably
from services.embed.collections.index.inverted_lists import InvertedLists
from services.embed.collections.index.vector_index import Contents
from services.embed.collections.index.vector_table import VectorTable

MAX_HEADER_BYTES = 65_536
DIGEST_BYTES = hashlib.sha256().digest_size
# Live vectors are copied from the table in pieces of this number.
PIECE_VECTORS = 8192


class CorruptSnapshot(Exception):
    """A file that is not a complete snapshot of the requested identity in this version's format."""


class ListsHeader(BaseModel):
    """Facts about inverted lists that FAISS's `num_bytes` bytes do not contain."""

    model_config = ConfigDict(extra="forbid", strict=True)

    size: PositiveInt
    num_trained: PositiveInt
    nprobe: PositiveInt
    recall: float
    num_bytes: PositiveInt


class Header(BaseModel):
    """The first line; its counts determine the length of the rest."""

    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal["fovea-index"] = "fovea-index"
    version: Literal[1] = 1
    identity: dict[str, str]
    through: NonNegativeInt
    num_vectors: NonNegativeInt
    width: PositiveInt
    lists: ListsHeader | None

    @property
    def body_bytes(self) -> int:
        """Size in bytes of rows, vectors and lists."""
        return self.num_vectors * (8 + 4 * self.width) + (self.lists.num_bytes if self.lists else 0)


def save_snapshot(contents: Contents, path: Path, *, identity: Mapping[str, str], max_exact: int) -> None:
    """Write the contents of an index atomically; inverted lists only with more than `max_exact` live rows.

    The index may be used and changed during the call. Raises OSError.
    """
    write_durably(path, _with_digest(_chunks(contents, dict(identity), max_exact=max_exact)))


def load_snapshot(path: Path, *, identity: Mapping[str, str]) -> tuple[VectorTable, Contents]:
    """Read the contents that were saved with this identity, and the table of which they are a view.

    Raises CorruptSnapshot, FileNotFoundError, OSError.
    """
    with path.open("rb") as file:
        line = file.readline(MAX_HEADER_BYTES)
        try:
            header = Header.model_validate_json(line)
        except ValidationError as error:
            raise CorruptSnapshot(f"{path.name}: no header of this version") from error
        if header.identity != identity:
            raise CorruptSnapshot(f"{path.name}: made of {header.identity}, not of {dict(identity)}")
        num_bytes = path.stat().st_size
        if num_bytes != len(line) + header.body_bytes + DIGEST_BYTES:
            raise CorruptSnapshot(f"{path.name}: {num_bytes} bytes are not as many as the header says")
        digest = hashlib.sha256(line)
        rows = np.empty(header.num_vectors, "<i8")
        vectors = np.empty((header.num_vectors, header.width), "<f4")
        lists = np.empty(header.lists.num_bytes if header.lists else 0, np.uint8)
        for part in (rows, vectors, lists):
            part_bytes = part.reshape(-1).view(np.uint8).data
            file.readinto(part_bytes)
            digest.update(part_bytes)
        if file.read() != digest.digest():
            raise CorruptSnapshot(f"{path.name}: the checksum differs")
    table = VectorTable.of(rows, vectors)
    restored = None
    if header.lists is not None:
        about = header.lists
        index = faiss.deserialize_index(lists)
        restored = InvertedLists(index, about.size, about.num_trained, about.nprobe, about.recall)
    return table, Contents(table.view, header.through, restored)


def _chunks(contents: Contents, identity: dict[str, str], *, max_exact: int) -> Iterator[bytes]:
    table, lists = contents.table, contents.lists
    keep = table.live.mask(len(table))
    num_live = int(keep.sum())
    lists_bytes, about = b"", None
    if lists is not None and num_live > max_exact:
        lists = lists if keep.all() else lists.keeping(keep)
        lists_bytes = faiss.serialize_index(lists.index).tobytes()
        about = ListsHeader(
            size=lists.size,
            num_trained=lists.num_trained,
            nprobe=lists.nprobe,
            recall=lists.recall,
            num_bytes=len(lists_bytes),
        )
    width = table.vectors.shape[1]
    header = Header(identity=identity, through=contents.through, num_vectors=num_live, width=width, lists=about)
    yield header.model_dump_json().encode() + b"\n"
    yield table.rows[keep].astype("<i8").tobytes()
    for start in range(0, len(table), PIECE_VECTORS):
        piece = slice(start, start + PIECE_VECTORS)
        yield table.vectors[piece][keep[piece]].astype("<f4").tobytes()
    yield lists_bytes


def _with_digest(chunks: Iterator[bytes]) -> Iterator[bytes]:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    yield digest.digest()
