"""What a Stepper asks of the engine that it runs."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

ItemT = TypeVar("ItemT")
EventT_co = TypeVar("EventT_co", covariant=True)


class SteppingEngine(Protocol[ItemT, EventT_co]):
    """What a Stepper runs, on the compute thread only. Items are told apart by identity.

    An event is (item, event, whether it is that item's last). Once its last event was given, an item holds nothing.
    """

    @property
    def num_running(self) -> int:
        """Items that were admitted and whose last event was not given yet."""

    def has_room(self, items: Sequence[ItemT], without: Sequence[ItemT] = ()) -> bool:
        """Whether all of these could be admitted now, together, if those that run `without` were gone.

        Computes nothing.
        """

    def lacking_room(self) -> Sequence[ItemT]:
        """Running items that take no step before others have left. An item alone lacks no room but for memory."""

    def admit(self, items: Sequence[ItemT]) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Let these run from now on; returns what they bring at once. A FoveaError is shown to the client.

        What would keep the thread for long is left to `prepare`.
        """

    def step(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """One step for every running item that is prepared."""

    @property
    def preparing(self) -> Sequence[ItemT]:
        """Running items that the next `prepare` is for; none where nothing is to be prepared."""

    def prepare(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """A bounded piece of the work that these need ahead of their steps. A FoveaError is shown to their clients."""

    def pause(self, item: ItemT) -> None:
        """Free the room of an item now; admitted again it goes on where it was, and brings no event twice."""

    def cancel(self, item: ItemT) -> None:
        """Free now what the item holds, if anything, also if it is paused.

        It is also called for every item of an `admit` that raised, `pause` for those of which events have come.
        """
