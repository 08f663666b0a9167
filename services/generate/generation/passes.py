"""Long work on a model, one bounded pass at a time, so that other work can use the model in between.

`Preparations` are the passes that items need before their first event: first come, first served, one pass per turn.
"""

from collections.abc import Generator, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

Passes = Generator[None, None, T]


def finish(passes: Passes[T]) -> T:
    """Run all passes. Raises what they raise."""
    while True:
        try:
            next(passes)
        except StopIteration as ended:
            result: T = ended.value
            return result


ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class _Preparation(Generic[ItemT, ResultT]):
    def __init__(self, items: list[ItemT], passes: Passes[ResultT], *, has_begun: bool) -> None:
        self.items = items
        self.passes = passes
        self.has_begun = has_begun


class Preparations(Generic[ItemT, ResultT]):
    """Work in order of arrival. Only the first work has run a pass on the model, so no other holds resources."""

    def __init__(self) -> None:
        self._waiting: list[_Preparation[ItemT, ResultT]] = []

    @property
    def items(self) -> list[ItemT]:
        """All items that wait."""
        return [item for preparation in self._waiting for item in preparation.items]

    @property
    def first(self) -> Sequence[ItemT]:
        """The items of the next pass."""
        return tuple(self._waiting[0].items) if self._waiting else ()

    def add(
        self, items: list[ItemT], passes: Passes[ResultT], *, is_next: bool = False, has_begun: bool = False
    ) -> None:
        """Add work for these items, with `is_next` before all others, else after them; cancelled `items` are removed.

        Work that `has_begun` stands already at the `yield` before its first pass.
        """
        self._waiting.insert(0 if is_next else len(self._waiting), _Preparation(items, passes, has_begun=has_begun))

    def advance(self) -> ResultT | None:
        """Run one pass of the first work; return its result once it has ended. Work whose pass raises is dropped.

        Raises IndexError if nothing waits.
        """
        work = self._waiting.pop(0)
        try:
            if not work.has_begun:
                work.has_begun = True
                next(work.passes)
            next(work.passes)
        except StopIteration as ended:
            result: ResultT = ended.value
            return result
        self._waiting.insert(0, work)
        return None

    def cancel(self, item: ItemT) -> None:
        """Stop waiting for an item, and close work without items. Does nothing for an item that does not wait."""
        for work in list(self._waiting):
            work.items[:] = [one for one in work.items if one is not item]
            if not work.items:
                work.passes.close()
                self._waiting.remove(work)
