"""Engines that answer in steps, each event saying whose it is, and which a test can hold, break and look into."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class Item:
    """Answered by `name-0` … `name-(n-1)`, one event a step, the first on admission; takes `size` of the room.

    With `num_pieces` the first event comes once that number of pieces of work is done instead.
    """

    name: str
    num_events: int = 3
    size: int = 1
    num_pieces: int = 0


def events_of(item: Item) -> list[str]:
    return [f"{item.name}-{number}" for number in range(item.num_events)]


Came = list[tuple[Item, str, bool]]


class CountingEngine:
    """Counts for each of its items; remembers who was admitted together, who took part in each step, who was cancelled.

    A call that finds `gate` closed sets `entered` and waits; `fault` is called first with what is about to be done
    ("admit", "step", "prepare", "cancel" or "room") and to which items.
    """

    def __init__(self, room: int = 1000) -> None:
        self.room = room
        self.admitted: list[list[str]] = []
        self.stepped: list[list[str]] = []
        self.cancelled: list[str] = []
        self.running: dict[Item, int] = {}
        self.pieces: dict[Item, int] = {}
        self.prepared: list[str] = []
        self.cost_computed = 0.0
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Callable[[str, Sequence[Item]], None] = lambda what, items: None
        self.num_lacking: Callable[[list[Item]], int] = lambda items: 0
        self.paused: dict[Item, int] = {}
        self.pauses: list[str] = []

    @property
    def num_running(self) -> int:
        return len(self.running)

    def room_share(self, items: Sequence[Item]) -> float:
        return sum(item.size for item in (*self.running, *items)) / self.room

    def has_room(self, items: Sequence[Item], without: Sequence[Item] = ()) -> bool:
        self.fault("room", items)
        left = [item for item in self.running if item not in without]
        return sum(item.size for item in (*left, *items)) <= self.room

    def lacking_room(self) -> list[Item]:
        num_lacking = self.num_lacking(list(self.running))
        return list(self.running)[:num_lacking]

    @property
    def num_computed(self) -> float:
        return self.cost_computed

    def admit(self, items: Sequence[Item], max_cost: int | None = None) -> Came:
        assert not set(items) & set(self.running), "admitted twice"
        self.admitted.append([item.name for item in items])
        self.running.update({item: self.paused.pop(item, 0) for item in items})  # and holds them when the fault comes
        self._pass_gate("admit", items)
        self.pieces.update({item: item.num_pieces for item in items if item.num_pieces and not self.running[item]})
        return [self._advance(item) for item in items if item not in self.pieces]

    def step(self) -> Came:
        assert self.running, "a step for nobody"
        stepping = [item for item in self.running if item not in self.pieces]
        if stepping:
            self.stepped.append([item.name for item in stepping])
        self._pass_gate("step", stepping)
        return [self._advance(item) for item in stepping]

    @property
    def preparing(self) -> list[list[Item]]:
        return [[item] for item in self.pieces]

    def prepare(self, items: Sequence[Item], max_cost: int | None = None) -> Came:
        (item,) = items
        self.prepared.append(item.name)
        self._pass_gate("prepare", [item])
        self.pieces[item] -= 1
        if self.pieces[item]:
            return []
        del self.pieces[item]
        return [self._advance(item)]

    def pause(self, item: Item) -> None:
        self.pauses.append(item.name)
        self.pieces.pop(item, None)
        if number := self.running.pop(item):
            self.paused[item] = number

    def cancel(self, item: Item) -> None:
        self.fault("cancel", [item])
        self.paused.pop(item, None)
        self.pieces.pop(item, None)
        if self.running.pop(item, None) is not None:
            self.cancelled.append(item.name)

    def _advance(self, item: Item) -> tuple[Item, str, bool]:
        number = self.running[item]
        self.running[item] += 1
        is_last = number + 1 == item.num_events
        if is_last:
            del self.running[item]
        return item, f"{item.name}-{number}", is_last

    def _pass_gate(self, what: str, items: Sequence[Item]) -> None:
        if not self.gate.is_set():  # a gate that closes after this holds the next call
            self.entered.set()
            assert self.gate.wait(60), "the test left the gate closed"
        self.fault(what, items)
