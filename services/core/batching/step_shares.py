"""The choice of items that give up their places in the running batch to others.

A share is the number of places that a client has. No client gives a place to one that would then have no fewer, or that
was served more already, so places do not move back and forth; but a client without any is given one after a while, and
others then take turns.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from services.core.batching.step_queue import Work

AnyWork = Work[Any, Any]

# Seconds after which a waiting client gets a place of one that has more: mostly one becomes free sooner, and a paused
# item has to be computed again.
SHORT_PATIENCE_S = 0.5
# Seconds after which a waiting client without a place gets one that another has had for as long.
PATIENCE_S = 2.0


def making_way(
    running: Collection[AnyWork],
    chosen: Iterable[AnyWork],
    newcomer: AnyWork,
    has_room_without: Callable[[list[AnyWork]], bool],
    *,
    served: Callable[[str], float],
    now: float,
) -> list[AnyWork] | None:
    """Return the items that leave so that a newcomer has room beside those chosen already; None where none should.

    The latest of the client with the largest share goes first. `served` returns what a client was served, `now` is a
    reading of `time.monotonic()`.
    """
    shares = Counter(work.client for work in (*running, *chosen))
    payers = {client for client in shares if served(client) >= served(newcomer.client)} - {newcomer.client}
    able = [work for work in running if work.client in payers]
    leaving: list[AnyWork] = []
    while not has_room_without(leaving):
        able = [work for work in able if work not in leaving and _may_leave(work, newcomer, shares, now)]
        if not able:
            return None
        leaving.append(_latest_of_largest(able, shares))
        shares[leaving[-1].client] -= 1
    for work in leaving[:-1]:  # items whose leaving made no difference stay
        others = [one for one in leaving if one is not work]
        if has_room_without(others):
            leaving = others
    return leaving


def giving_room(running: Collection[AnyWork], preparing: Collection[AnyWork]) -> AnyWork:
    """Return the item that leaves so that others go on: the largest share's latest, if possible none in preparation."""
    shares = Counter(work.client for work in running)
    return _latest_of_largest([work for work in running if work not in preparing] or list(running), shares)


def stepping_aside(waiting: Collection[AnyWork], newcomers: Collection[AnyWork]) -> list[AnyWork]:
    """Return the items that let newcomers be prepared first: the latest of clients that have more waiting."""
    shares = Counter(work.client for work in waiting)
    fewest = min((shares[work.client] for work in newcomers), default=len(waiting))
    aside: list[AnyWork] = []
    for work in sorted(waiting, key=_arrival, reverse=True):
        if work not in newcomers and shares[work.client] > fewest:
            aside.append(work)
            shares[work.client] -= 1
    return aside


def _may_leave(work: AnyWork, newcomer: AnyWork, shares: Counter[str], now: float) -> bool:
    own, waited_s = shares[newcomer.client], now - newcomer.waits_since
    is_overdue = not own and waited_s >= PATIENCE_S and now - work.runs_since >= PATIENCE_S
    return is_overdue or (shares[work.client] > own + 1 and waited_s >= SHORT_PATIENCE_S)


def _latest_of_largest(works: Collection[AnyWork], shares: Counter[str]) -> AnyWork:
    return max(works, key=lambda work: (shares[work.client], _arrival(work)))


def _arrival(work: AnyWork) -> float:
    return work.call.queued_at
