"""Many questions to one endpoint: some at a time, with their tokens and cost, and an end that loses no answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Console

from services.core.openai_client import EndpointClient, EndpointError
from services.jobs.inquiry.record_file import OutputError
from services.jobs.interruption import SIGNALS

# After this many consecutive inputs without an answer, the fault is probably not in the inputs.
MAX_FAILURES_IN_A_ROW = 8

T = TypeVar("T")


class Interrupted(Exception):
    """A signal has asked the job to end."""


@dataclass
class Tokens:
    """Totals of the tokens of answers; prices are for a million tokens, in any currency."""

    input_price: float | None = None
    output_price: float | None = None
    num_uncounted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, prompt_tokens: int | None, completion_tokens: int | None) -> None:
        """Count an answer's tokens, None where the endpoint counts none."""
        self.num_uncounted += prompt_tokens is None or completion_tokens is None
        self.prompt_tokens += prompt_tokens or 0
        self.completion_tokens += completion_tokens or 0

    @property
    def has_any(self) -> bool:
        """Whether any answer was counted."""
        return bool(self.prompt_tokens or self.completion_tokens or self.num_uncounted)

    @property
    def cost(self) -> float | None:
        """The price of all tokens; None without prices."""
        if self.input_price is None and self.output_price is None:
            return None
        return (self.prompt_tokens * (self.input_price or 0) + self.completion_tokens * (self.output_price or 0)) / 1e6

    def told(self) -> str:
        """Text with the numbers of tokens, and their cost."""
        parts = [f"{_short(self.prompt_tokens)} tokens in, {_short(self.completion_tokens)} out"]
        if self.num_uncounted:
            parts.append(f"{self.num_uncounted} not counted")
        if self.cost is not None:
            parts.append(f"cost {self.cost:.4f}")
        return " · ".join(parts)


class Inquiry(Generic[T]):
    """Asks about inputs, a limited number at a time.

    The next input is asked about only when `ask` has returned for the last one, so a crash loses at most what is on its
    way. An inquiry that is ended waits for the answers on their way.
    """

    def __init__(
        self,
        client: EndpointClient,
        ask: Callable[[T], Awaitable[None]],
        on_failure: Callable[[T, EndpointError], None],
        ends: tuple[type[Exception], ...] = (OutputError,),
    ) -> None:
        """`ask` raises EndpointError for an input without an answer; it and `on_failure` raise any of `ends` to end."""
        self.client = client
        self._ask = ask
        self._on_failure = on_failure
        self._ends = ends
        self._ended_by: Exception | None = None
        self._num_failures_in_a_row = 0

    def end(self, reason: Exception) -> None:
        """Send nothing more; `run` raises the first reason once all pending answers have arrived."""
        if self._ended_by is None:
            self._ended_by = reason
            self.client.stop()

    async def run(self, inputs: Iterable[T], concurrency: int) -> None:
        """Ask about every input. Raises EndpointError, Interrupted and what `ends` holds."""
        waiting = iter(inputs)
        self._max_failures_in_a_row = max(MAX_FAILURES_IN_A_ROW, concurrency)
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(self._ask_about(waiting))
        if self._ended_by is not None:
            raise self._ended_by

    async def _ask_about(self, inputs: Iterator[T]) -> None:
        for one in inputs:
            if self._ended_by is not None:
                return
            try:
                await self._ask_or_fail(one)
            except self._ends as error:
                self.end(error)

    async def _ask_or_fail(self, one: T) -> None:
        try:
            await self._ask(one)
        except EndpointError as error:
            self._fail(one, error)
        else:
            self._num_failures_in_a_row = 0

    def _fail(self, one: T, error: EndpointError) -> None:
        if error.is_about_all:
            self.end(error)
            return
        self._on_failure(one, error)
        self._num_failures_in_a_row += 1
        if self._num_failures_in_a_row >= self._max_failures_in_a_row:
            self.end(
                EndpointError(f"{self._num_failures_in_a_row} consecutive inputs have no answer; last error: {error}")
            )


@contextmanager
def attended(inquiry: Inquiry[T], console: Console) -> Iterator[None]:
    """Tell on the console when no answer comes, and end the inquiry on signals.

    The first signal ends it once the pending answers have arrived, the second at once.
    """
    loop = asyncio.get_running_loop()
    running = asyncio.current_task()
    assert running is not None
    signals = iter((True,))

    def end() -> None:
        if next(signals, False):
            console.print("Stopping after the answers in flight have arrived; press again to stop at once.")
            inquiry.end(Interrupted())
        else:
            running.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, end)
    watching = loop.create_task(
        inquiry.client.watch(lambda silence: console.print(silence, markup=False, soft_wrap=True))
    )
    try:
        yield
    finally:
        watching.cancel()
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def _short(number: int) -> str:
    """Write a number in thousands or millions, with at least three digits."""
    for unit, suffix in ((1_000_000, "M"), (1000, "k")):
        if number >= unit:
            return f"{number / unit:.2f}{suffix}"
    return str(number)
