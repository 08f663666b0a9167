"""The contents of an index at one moment: searched without locks, and compacted for a rebuild or a file."""

from dataclasses import dataclass

import faiss
import numpy as np
from numpy.typing import NDArray

from services.embed.collections.index.exact_search import Nearest, Rows, Vectors, merged, scan, scan_positions, shifted
from services.embed.collections.index.inverted_lists import MIN_LIST_SIZE, InvertedLists, trained, tuned
from services.embed.collections.index.vector_table import TableView, VectorTable

# Centroids are used until there are this many times as many vectors as they were computed from.
MAX_GROWTH = 2.0


@dataclass(frozen=True, eq=False)
class Contents:
    """The images up to row `through`: vectors in a table, the first of them also in inverted lists if there are any.

    The first `num_judged` positions existed when it was last decided whether to use lists.
    """

    table: TableView
    through: int = 0
    lists: InvertedLists | None = None
    num_judged: int = 0

    def search(self, queries: Vectors, k: int, *, among: Rows | None, max_exact: int) -> Nearest:
        """Find at most k positions (Q, ≤ K) of live rows, all or `among`. Up to `max_exact` rows are all compared."""
        positions = None if among is None else self.table.live_positions(among)
        if self.lists is not None and (positions is None or len(positions) > max_exact):
            found = self._search_lists(self.lists, queries, k, positions)
            if found is not None:
                return found
        if positions is not None:
            return scan_positions(queries, self.table.vectors, positions, k)
        return self.scan_from(0, queries, k)

    def scan_from(self, start: int, queries: Vectors, k: int) -> Nearest:
        """Compare the queries with all live vectors from a position on that is a multiple of 8."""
        live = self.table.live
        selector = None
        if live.num_dead:
            selector = live.selector if start == 0 else faiss.IDSelectorBitmap(live.bits[start // 8 :])
        return shifted(scan(queries, self.table.vectors[start:], k, selector=selector), start)

    def _search_lists(self, lists: InvertedLists, queries: Vectors, k: int, positions: Rows | None) -> Nearest | None:
        if positions is None:
            found = lists.search(queries, self.table, k)
            if found is None or lists.size == len(self.table):
                return found
            return merged(found, self.scan_from(lists.size, queries, k), k)
        in_lists, behind = np.split(positions, [np.searchsorted(positions, lists.size)])
        found = lists.search(queries, self.table, k, among=in_lists)
        if found is None or not len(behind):
            return found
        return merged(found, scan_positions(queries, self.table.vectors, behind, k), k)


def compacted(seen: TableView, keep: NDArray[np.bool_]) -> VectorTable:
    """Make a new table of the positions of `keep`, bool (N,)."""
    table = VectorTable(seen.vectors.shape[1], int(keep.sum()))
    table.append(seen.rows[keep], seen.vectors[keep])
    return table


def catch_up(table: VectorTable, keep: NDArray[np.bool_], now: TableView) -> None:
    """Update a table that was compacted from the first positions of `now` to the state of `now`."""
    num_seen, num_kept = len(keep), int(keep.sum())
    is_dead = ~now.live.mask(len(now))
    table.append(now.rows[num_seen:], now.vectors[num_seen:])
    table.clear(np.flatnonzero(is_dead[:num_seen][keep]))
    table.clear(num_kept + np.flatnonzero(is_dead[num_seen:]))


def lists_for(
    table: TableView, old: InvertedLists | None, keep: NDArray[np.bool_], *, max_exact: int, min_recall: float
) -> InvertedLists | None:
    """Make inverted lists of a table without dead rows; None if it is small or they would not reach `min_recall`.

    `old` are lists of the table from which this one was compacted by `keep`; they are extended while they suffice.
    """
    if len(table) <= max(max_exact, MIN_LIST_SIZE):
        return None
    if old is not None and len(table) <= MAX_GROWTH * old.num_trained:
        extended = tuned(old.keeping(keep).extended(table), table, min_recall)
        if extended is not None:
            return extended
    return tuned(trained(table), table, min_recall)
