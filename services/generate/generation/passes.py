"""Long work on a model, one bounded pass at a time, so that other work can use the model in between.

`Preparations` are the passes that items need before their first event.
"""

from collections.abc import Generator
from typing import Generic, TypeVar

T = TypeVar("T")

# Works at a time that have a cache of their own.
MAX_APART = 4
# Each `yield` stands before a pass, and returns the number of tokens that the pass may run; None is no bound.
Passes = Generator[None, int | None, T]


def finish(passes: Passes[T]) -> T:
    """Run all passes without a bound. Raises what they raise."""
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
        self.is_apart = not has_begun


class Preparations(Generic[ItemT, ResultT]):
    """Work in order of arrival. Work of which no pass has run holds no resources.

    Work that had not begun when it was added has a cache apart from the running batch's room: a few have one at a time.
    """

    def __init__(self) -> None:
        self._waiting: list[_Preparation[ItemT, ResultT]] = []

    @property
    def items(self) -> list[ItemT]:
        """All items that wait."""
        return [item for preparation in self._waiting for item in preparation.items]

    @property
    def works(self) -> list[list[ItemT]]:
        """The items of each work that can advance now."""
        has_room = sum(one.is_apart and one.has_begun for one in self._waiting) < MAX_APART
        return [list(one.items) for one in self._waiting if one.has_begun or has_room]

    def add(
        self, items: list[ItemT], passes: Passes[ResultT], *, is_next: bool = False, has_begun: bool = False
    ) -> None:
        """Add work for these items, with `is_next` before all others, else after them; cancelled `items` are removed.

        Work that `has_begun` stands already at the `yield` before its first pass.
        """
        self._waiting.insert(0 if is_next else len(self._waiting), _Preparation(items, passes, has_begun=has_begun))

    def advance(self, item: ItemT, max_tokens: int | None = None) -> ResultT | None:
        """Run one pass of the work of an item; return its result once it has ended. Work whose pass raises is dropped.

        Raises StopIteration for an item that does not wait.
        """
        work = next(work for work in self._waiting if any(one is item for one in work.items))
        place = self._waiting.index(work)
        del self._waiting[place]
        try:
            if not work.has_begun:
                work.has_begun = True
                next(work.passes)
            work.passes.send(max_tokens)
        except StopIteration as ended:
            result: ResultT = ended.value
            return result
        self._waiting.insert(place, work)
        return None

    def cancel(self, item: ItemT) -> None:
        """Stop waiting for an item, and close work without items. Does nothing for an item that does not wait."""
        for work in list(self._waiting):
            work.items[:] = [one for one in work.items if one is not item]
            if not work.items:
                work.passes.close()
                self._waiting.remove(work)
