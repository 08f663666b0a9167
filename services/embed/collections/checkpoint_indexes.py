"""One checkpoint's data of a collection's images: an index for each condition, and the images' states.

All of it is derived: it is kept in memory, saved from time to time, and recomputed from the stored images if a file is
lost, damaged, or from another checkpoint.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray

from services.core.errors import FoveaError
from services.embed.collections.index.snapshots import CorruptSnapshot, load_snapshot, save_snapshot
from services.embed.collections.index.vector_index import IndexOptions, VectorIndex
from services.embed.collections.sources import FreshPixels, Source
from services.embed.collections.storage.image_states import StateCache
from services.embed.collections.storage.image_store import ImageStore
from services.embed.service import ServedEmbed
from services.nn.clip_texts import Text

# Until this number of images was read in each way, states are assumed to be faster.
MIN_IMAGES = 256


class StateTiming:
    """Measures the seconds per image, from states and by encoding."""

    def __init__(self) -> None:
        self._images = {True: 0, False: 0}
        self._seconds = {True: 0.0, False: 0.0}

    def note(self, num_images: int, seconds: float, *, from_states: bool) -> None:
        self._images[from_states] += num_images
        self._seconds[from_states] += seconds

    @property
    def states_pay(self) -> bool:
        """Whether reading an image from its state is faster than encoding it, according to the measurements so far."""
        if min(self._images.values()) < MIN_IMAGES:
            return True
        return self._seconds[True] / self._images[True] < self._seconds[False] / self._images[False]


Rows = NDArray[np.int64]

PLAIN = "plain"


def key_of(text: Text | None) -> str:
    """Make a key that is equal for conditions that the model cannot distinguish."""
    return PLAIN if text is None else text.digest


@dataclass(eq=False)
class ConditionIndex:
    """The index of one condition, None being the unconditional embedding; `used` is Unix time in seconds."""

    text: Text | None
    vectors: VectorIndex
    path: Path
    is_pinned: bool
    used: float = field(default_factory=time.time)
    saved_through: int = 0
    num_saved: int = 0

    @property
    def condition(self) -> str | None:
        return None if self.text is None else self.text.text


class CheckpointIndexes:
    """The indexes and states of one checkpoint for one collection. Opened, saved and closed on a worker thread."""

    def __init__(
        self, store: ImageStore, folder: Path, served: ServedEmbed, options: IndexOptions, fresh: FreshPixels
    ) -> None:
        engine = served.engine
        self._store = store
        self._fresh = fresh
        self.digest = served.digest
        self._identity = {"checkpoint": served.digest, "dtype": engine.dtype_name}
        name = hashlib.sha256(json.dumps(self._identity).encode()).hexdigest()[:16]
        self._stem = name
        self._folder = folder
        self._width = engine.embedding_width
        self._options = options
        self._indexes: dict[str, ConditionIndex] = {}
        self._same_as: dict[str, str] = {}
        self.states: StateCache | None = None
        self.pace = StateTiming()

    @classmethod
    def open(
        cls,
        store: ImageStore,
        folder: Path,
        served: ServedEmbed,
        *,
        options: IndexOptions,
        fresh: FreshPixels,
        max_state_bytes: int,
    ) -> "CheckpointIndexes":
        """Load what was saved; what is missing, damaged or unreadable starts empty."""
        opened = cls(store, folder, served, options, fresh)
        for part in ("states", "indexes"):
            _make_folder(folder / part)
        if served.engine.state_bytes is not None and max_state_bytes > 0:
            opened.states = opened._open_states(served.engine.state_bytes, max_state_bytes)
        live = store.rows()
        for row in _missing(np.array(opened.states.rows() if opened.states else [], np.int64), live):
            opened.delete(row)
        opened._load(None, live, is_pinned=True)
        for stored in store.conditions():
            try:
                text = served.engine.prepare_condition(stored.text)
            except FoveaError as error:  # another model's context may be shorter, or it may be a plain CLIP
                _log().warning("condition not indexed", condition=stored.text, error=error.message)
                continue
            opened._load(text, live, is_pinned=stored.is_pinned, used=stored.used)
        return opened

    def __iter__(self) -> Iterator[ConditionIndex]:
        return iter(list(self._indexes.values()))

    def get(self, text: Text | None) -> ConditionIndex | None:
        """Return the index that answers a condition: its own, or the one that it shares with another wording."""
        key = key_of(text)
        return self._indexes.get(self._same_as.get(key, key))

    def start(self, text: Text) -> ConditionIndex:
        """Return the index of a condition, creating an empty one if it has none of its own."""
        self._same_as.pop(key_of(text), None)
        if key_of(text) not in self._indexes:
            vectors = VectorIndex(self._width, self._options)
            self._indexes[key_of(text)] = ConditionIndex(text, vectors, self._path(text), is_pinned=False)
        return self._indexes[key_of(text)]

    def share(self, text: Text, index: ConditionIndex) -> None:
        """Let an index answer another wording as well."""
        self._same_as[key_of(text)] = key_of(index.text)

    def drop(self, index: ConditionIndex) -> None:
        """Remove an index and its file."""
        key = key_of(index.text)
        self._indexes.pop(key, None)
        self._same_as = {wording: other for wording, other in self._same_as.items() if other != key}
        with suppress(OSError):
            index.path.unlink(missing_ok=True)

    @property
    def keeps_states(self) -> bool:
        """Whether states of further images would be kept and useful."""
        return self.states is not None and self.states.has_room and self.pace.states_pay

    def sources(self, rows: Sequence[int]) -> list[Source]:
        """Return the cheapest source of each of these images; deleted ones are left out."""
        states = self.states.get(rows) if self.states is not None and self.pace.states_pay else {}
        digests = self._store.digests_by_rows(rows)
        others = {row: digest for row, digest in digests.items() if row not in states}
        pixels = {row: self._fresh.take(self.digest, digest) for row, digest in others.items()}
        data = self._store.data_by_rows([row for row, found in pixels.items() if found is None])
        return [
            Source(row, digests[row], states.get(row), pixels.get(row), data.get(row))
            for row in rows
            if row in digests and (row in states or pixels[row] is not None or row in data)
        ]

    def delete(self, row: int) -> None:
        """Remove an image from indexes and states; no error if it is in none."""
        for index in self:
            index.vectors.delete(row)
        if self.states is not None:
            self.states.delete(row)

    def save(self) -> None:
        """Write the indexes that have changed. If the disk rejects them, they only have to be recomputed."""
        for index in self:
            through, num_vectors = index.vectors.through, index.vectors.num_vectors
            if through > index.saved_through or num_vectors < index.num_saved:
                try:
                    # the folder is not created again: if it is missing, the collection was deleted
                    if not index.path.parent.is_dir():
                        raise FileNotFoundError(f"there is no folder {index.path.parent}")
                    save_snapshot(
                        index.vectors.contents,
                        index.path,
                        identity=self._identity_of(index.text),
                        max_exact=self._options.max_exact,
                    )
                except OSError as error:
                    _log().warning("index not saved", condition=index.condition, error=str(error))
                else:
                    index.saved_through, index.num_saved = through, num_vectors

    def remove_files_of_others(self) -> None:
        """Remove the files of other checkpoints, as far as the disk allows it."""
        for part in ("indexes", "states"):
            with suppress(OSError):
                for path in (self._folder / part).iterdir():
                    if not path.name.startswith(self._stem):
                        path.unlink(missing_ok=True)

    def close(self) -> None:
        if self.states is not None:
            self.states.close()

    def _load(
        self,
        text: Text | None,
        live: Rows,
        *,
        is_pinned: bool,
        used: float = 0.0,
    ) -> None:
        path = self._path(text)
        try:
            vectors = VectorIndex.holding(*load_snapshot(path, identity=self._identity_of(text)), self._options)
        except FileNotFoundError:
            vectors = VectorIndex(self._width, self._options)
        except (CorruptSnapshot, OSError) as error:
            _log().warning("index is made again", condition=text.text if text else None, reason=str(error))
            _clear_away(path)
            vectors = VectorIndex(self._width, self._options)
        num_saved = vectors.num_vectors
        for row in _missing(vectors.rows, live):
            vectors.delete(row)
        index = ConditionIndex(text, vectors, path, is_pinned, used, vectors.through, num_saved)
        self._indexes[key_of(text)] = index

    def _open_states(self, record_bytes: int, max_bytes: int) -> StateCache | None:
        """Open the cache of states; None if the disk allows no file."""
        path = self._folder / "states" / f"{self._stem}.states"
        for _ in range(2):
            try:
                return StateCache.open(path, record_bytes=record_bytes, max_bytes=max_bytes, identity=self._stem)
            except OSError as error:
                _log().warning("image states are not kept", reason=str(error))
                _clear_away(path)
        return None

    def _path(self, text: Text | None) -> Path:
        return self._folder / "indexes" / f"{self._stem}-{key_of(text)[:16]}.index"

    def _identity_of(self, text: Text | None) -> dict[str, str]:
        return {**self._identity, "condition": key_of(text)}


def _make_folder(folder: Path) -> None:
    """Make a folder for recomputable data, replacing anything else. If the disk rejects it, nothing is stored."""
    try:
        if not folder.is_dir():
            _clear_away(folder)
        folder.mkdir(exist_ok=True)
    except OSError as error:
        _log().warning("indexes and states are not kept", reason=str(error))


def _clear_away(path: Path) -> None:
    """Remove a file or a folder, as far as the disk allows it."""
    with suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _missing(rows: Rows, live: Rows) -> Iterable[int]:
    """List the rows that were deleted since the snapshot was written."""
    missing: list[int] = np.setdiff1d(rows, live, assume_unique=True).tolist()
    return missing


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
    return logger
