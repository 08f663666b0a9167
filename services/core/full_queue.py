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
    """Return the items that must leave a full queue for a newcomer (a client and the cost of its item).

    Always the newest item of the client with the largest total cost leaves first. `shares` are the clients' total
    costs, `newest` yields the items of a client that may leave, with their costs, and `has_room` tells whether there is
    room once that cost and that number of items have left. Returns None if a client would have to give way that has no
    more than the newcomer would have.
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
