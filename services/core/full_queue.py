"""The rule by which all full queues make room for a client that has less than others."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_the_way(
    shares: Mapping[str, float],
    newcomer: tuple[str, float],
    newest: Callable[[str], Iterator[tuple[T, float]]],
    has_room: Callable[[float, int], bool],
) -> Sequence[T] | None:
    """Return what must leave a full queue for a newcomer, a client and its cost: the newest of those with the most.

    `shares` are the clients' costs, `newest` yields what of a client may leave and its cost, `has_room` tells whether
    there is room once this cost and this number have left. None where one would have to leave whose client has no more
    than the newcomer's would.
    """
    client, cost = newcomer
    left = dict(shares)
    own = left.get(client, 0) + cost
    waiting = {name: newest(name) for name in left}
    leaving: list[T] = []
    freed = 0.0
    while not has_room(freed, len(leaving)):
        largest = max(left, key=left.__getitem__, default=None)
        found = next(waiting[largest], None) if largest is not None and left[largest] > own else None
        if largest is None or found is None:
            return None
        leaving.append(found[0])
        left[largest] -= found[1]
        freed += found[1]
    return leaving
