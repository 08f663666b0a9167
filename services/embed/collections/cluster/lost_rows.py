"""Vectors that a database has lost out of an index that it still has: found by counting, and then row by row."""

import numpy as np

from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.cluster.shared_vectors import StoredVectors
from services.embed.collections.storage.image_store import Rows


class LostRows:
    """Rows that one index lacks. One that is still missing after it was read again is left out: its image can't be read
    any more."""

    def __init__(self) -> None:
        self._missing: set[int] = set()
        self._left_out: set[int] = set()

    def find(self, images: PostgresImageStore, stored: StoredVectors, through: int) -> Rows:
        """Return rows up to `through`, ascending, whose vectors are to be made again; none once they were returned.

        Every image up to `through` was indexed. Raises VectorsLost, Overloaded.
        """
        num_images, _ = images.size()  # counted first, as images deleted in the meantime have no vectors
        expected = num_images - len(images.live(self._left_out))
        num_vectors = stored.num_vectors
        if num_vectors > expected:  # deletions that did not reach the database would hide as many losses
            stored.delete(images.deleted_rows())
            num_vectors = stored.num_vectors
        if num_vectors >= expected:
            self._missing = self._left_out
            return np.zeros(0, np.int64)
        rows = images.rows()
        rows = rows[rows <= through]
        held = stored.rows(int(rows[0]), int(rows[-1])) if len(rows) else rows
        missing = images.live(np.setdiff1d(rows, held).tolist())
        self._left_out = missing & self._missing
        self._missing = missing
        return np.array(sorted(missing - self._left_out), np.int64)


def ranges(missing: Rows, rows: Rows, size: int) -> list[tuple[int, int]]:
    """Cover `missing` by ranges, first and last row, with at most `size` of all `rows` in each; both ascending."""
    found: list[tuple[int, int]] = []
    begins_at = 0
    for row, place in zip(missing.tolist(), np.searchsorted(rows, missing).tolist(), strict=True):
        if found and place < begins_at + size:
            found[-1] = (found[-1][0], row)
        else:
            found.append((row, row))
            begins_at = place
    return found
