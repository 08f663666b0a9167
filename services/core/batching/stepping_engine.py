"""The protocol of the engine that a Stepper runs."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

ItemT = TypeVar("ItemT")
EventT_co = TypeVar("EventT_co", covariant=True)


class SteppingEngine(Protocol[ItemT, EventT_co]):
    """The engine that a Stepper runs, on the compute thread only. Items are told apart by identity.

    An event is (item, event, whether it is that item's last). After its last event an item holds no resources.
    """

    @property
    def num_running(self) -> int:
        """The number of admitted items that have not had their last event."""

    def has_room(self, items: Sequence[ItemT], without: Sequence[ItemT] = ()) -> bool:
        """Whether all of these could be admitted now, together, if the running items `without` were gone.

        Computes nothing.
        """

    def room_share(self, items: Sequence[ItemT]) -> float:
        """Return the share of the room that everything that runs needs together with these; above 1 they do not fit.

        Computes nothing.
        """

    def lacking_room(self) -> Sequence[ItemT]:
        """Return running items that can't take a step before others leave. A single item lacks room only for memory."""

    def admit(self, items: Sequence[ItemT]) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Let these run from now on; returns their first events, if any. A FoveaError is shown to the client.

        Work that would occupy the thread for long is left to `prepare`.
        """

    def step(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Make one step for every running item that is prepared."""

    @property
    def preparing(self) -> Sequence[ItemT]:
        """The running items that the next `prepare` is for; none where nothing is to be prepared."""

    def prepare(self) -> Sequence[tuple[ItemT, EventT_co, bool]]:
        """Do a bounded piece of the work that these need before their steps. A FoveaError is shown to their clients."""

    def pause(self, item: ItemT) -> None:
        """Free the room of an item now; admitted again it continues where it was, and repeats no event."""

    def cancel(self, item: ItemT) -> None:
        """Free now what the item holds, if anything, also if it is paused.

        After an `admit` that raised it is also called for every item; `pause` for those that have had events.
        """
