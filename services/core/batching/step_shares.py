"""Who gives a place in the running batch to somebody else.

A share is the number of places that a client has. Nobody gives a place away to a client who would have no less, or was
served more already, so places do not go to and fro; but a client without any is given one after a while, and others
then take turns.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Any

from services.core.batching.step_queue import Work

AnyWork = Work[Any, Any]

# After so long a wait a client gets a place of somebody who has more: mostly one becomes free sooner, and who is paused
# has to be computed again.
SHORT_PATIENCE_S = 0.5
# After so long a wait a client without a place gets one that somebody else has had for as long.
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
    """Those who leave so that a newcomer has room beside whoever is chosen already; None where no others should.

    The latest of the client with the largest share goes first. `served` tells what a client was served, `now` is a
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
    for work in leaving[:-1]:  # what made no difference stays
        others = [one for one in leaving if one is not work]
        if has_room_without(others):
            leaving = others
    return leaving


def giving_room(running: Collection[AnyWork], preparing: Collection[AnyWork]) -> AnyWork:
    """Who leaves so that others can go on: the latest of the largest share, and whose work is lost only as the last."""
    shares = Counter(work.client for work in running)
    return _latest_of_largest([work for work in running if work not in preparing] or list(running), shares)


def stepping_aside(waiting: Collection[AnyWork], newcomers: Collection[AnyWork]) -> list[AnyWork]:
    """Of those who wait to be prepared, who lets newcomers ahead: the latest of clients of whom more wait."""
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
