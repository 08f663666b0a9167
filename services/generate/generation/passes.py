"""Long work on a model, a bounded pass at a time, so that others can have the model in between.

Such work is a generator that yields ahead of each of its passes and returns its result. Until it has ended, nothing
that it holds may be changed by others; whoever wants the result no more closes it.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Passes = Generator[None, None, T]


def finish(passes: Passes[T]) -> T:
    """All passes at once. Raises what they do."""
    while True:
        try:
            next(passes)
        except StopIteration as ended:
            result: T = ended.value
            return result
