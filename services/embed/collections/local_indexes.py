"""The indexes of a collection that belongs to one process: kept in memory, and saved to files from time to time.

Every index stores the last row that it has processed, so there is no work queue that could be lost: the images that it
lacks are always the live ones after that row. Indexes at the same row are filled by one pass over the images.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog

from services.embed.call import ServedEmbed
from services.embed.collections.index.snapshots import CorruptSnapshot, load_snapshot, save_snapshot
from services.embed.collections.index.vector_index import VectorIndex
from services.embed.collections.index.vector_table import Rows
from services.embed.collections.indexes import (
    Changes,
    CheckpointIndexes,
    OpenIndex,
    Step,
    clear_away,
    key_of,
    make_folder,
    missing,
    prepared,
)
from services.embed.collections.reader import Read
from services.embed.collections.serving import Serving
from services.embed.collections.storage.database import has_room_beside
from services.embed.collections.storage.image_store import ImageStore
from services.nn.clip_texts import Text

# Rows per step; another checkpoint can take over between two steps.
STEP_ROWS = 512


@dataclass(eq=False)
class LocalIndex(OpenIndex):
    """An index with its file, which has the images up to `saved_through`, `num_saved` of them."""

    vectors: VectorIndex
    path: Path = Path()
    saved_through: int = 0
    num_saved: int = 0


class LocalIndexes(CheckpointIndexes[LocalIndex, Step[LocalIndex]]):
    """The indexes of one checkpoint, in memory and as files."""

    def __init__(
        self, store: ImageStore, folder: Path, served: ServedEmbed, *, serving: Serving, changes: Changes
    ) -> None:
        """Load what was saved; what is missing, damaged or unreadable starts empty."""
        super().__init__(store, folder, served, serving.fresh)
        self._options = serving.index_options
        self._changes = changes
        self._indexes: dict[str, LocalIndex] = {}
        live = store.rows()
        make_folder(folder / "indexes")
        self._open_states(served.engine.state_bytes, serving.settings.collection_state_bytes, live)
        self._load(None, live, is_pinned=True)
        for stored in store.conditions():
            if (text := prepared(served.engine, stored.text)) is not None:
                self._load(text, live, is_pinned=stored.is_pinned, used=stored.used)

    async def refresh(self) -> None:
        """Do nothing: no other process changes anything."""

    def start(self, text: Text) -> LocalIndex:
        if key_of(text) not in self._indexes:
            vectors = VectorIndex(self._width, self._options)
            self._indexes[key_of(text)] = LocalIndex(text, vectors, path=self._path(text))
        return self._indexes[key_of(text)]

    def drop(self, index: OpenIndex) -> None:
        """Remove an index and its file."""
        dropped = self._indexes.pop(key_of(index.text), None)
        if dropped is not None:
            with suppress(OSError):
                dropped.path.unlink(missing_ok=True)

    def next_step(self) -> Step[LocalIndex] | None:
        """Return the images that the indexes furthest behind lack, up to the row that the next ones have reached."""
        last = self._changes.last_row
        start = min((index.vectors.through for index in self), default=last)
        if start >= last:
            return None
        group = [index for index in self if index.vectors.through == start]
        end = min((index.vectors.through for index in self if index.vectors.through > start), default=last)
        rows = self._store.rows(after=start, limit=STEP_ROWS)
        if len(rows) == STEP_ROWS:
            end = min(end, int(rows[-1]))
        return Step(rows[rows <= end].tolist(), group, end)

    def append(self, step: Step[LocalIndex], reads: Sequence[Read], *, through: int) -> None:
        self._keep_states(reads)
        rows = np.array([read.row for read in reads], dtype=np.int64)
        for place, index in enumerate(step.group):
            vectors = [read.vectors[place] for read in reads]
            shape = (len(reads), index.vectors.width)
            index.vectors.append(rows, np.array(vectors, dtype=np.float32).reshape(shape), through=through)
        for read in reads:  # one that was deleted while it was read has come back with the others
            if read.row in self._changes.deleted:
                self.delete(read.row)

    def finish(self, step: Step[LocalIndex]) -> None:
        # rows of deleted images may follow the last image
        self.append(step, [], through=step.through)

    def delete(self, row: int) -> None:
        for index in self:
            index.vectors.delete(row)
        if self.states is not None:
            self.states.delete(row)

    def tidy(self) -> None:
        """Rebuild the indexes that have grown or shrunk too much."""
        for index in self:
            if index.vectors.needs_rebuild:
                index.vectors.rebuild()
                index.saved_through = 0

    def save(self) -> None:
        """Write the indexes that have changed. If the disk rejects them, they only have to be recomputed."""
        for index in self:
            through, num_vectors = index.vectors.through, index.vectors.num_vectors
            if through > index.saved_through or num_vectors < index.num_saved:
                try:
                    # the folder is not created again: if it is missing, the collection was deleted
                    if not index.path.parent.is_dir():
                        raise FileNotFoundError(f"there is no folder {index.path.parent}")
                    if not has_room_beside(index.path.parent, index.vectors.num_bytes):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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

    def _load(self, text: Text | None, live: Rows, *, is_pinned: bool, used: float = 0.0) -> None:
        path = self._path(text)
        try:
            vectors = VectorIndex.holding(*load_snapshot(path, identity=self._identity_of(text)), self._options)
        except FileNotFoundError:
            vectors = VectorIndex(self._width, self._options)
        except (CorruptSnapshot, OSError) as error:
            _log().warning("index is made again", condition=text.text if text else None, reason=str(error))
            clear_away(path)
            vectors = VectorIndex(self._width, self._options)
        num_saved = vectors.num_vectors
        for row in missing(vectors.rows, live):
            vectors.delete(row)
        self._indexes[key_of(text)] = LocalIndex(text, vectors, is_pinned, used, path, vectors.through, num_saved)

    def _path(self, text: Text | None) -> Path:
        return self._folder / "indexes" / f"{self._stem}-{key_of(text)[:16]}.index"

    def _identity_of(self, text: Text | None) -> dict[str, str]:
        return {**self._identity, "condition": key_of(text)}


def _log() -> structlog.stdlib.BoundLogger:
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)
    return logger
