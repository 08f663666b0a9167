"""Open-loop load: requests arrive whether the earlier ones were answered or not, as those of many users do.

A closed loop of clients slows down with the server that it measures and never overloads it. Here arrivals are a Poisson
process of a fixed rate, and a latency is counted from the moment at which its request was due.
"""

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

# Seconds to wait for requests that still run when the arrivals end.
DRAIN_S = 75.0
FAILED = 0
LOAD_PRIORITY = -10

# The bytes of the n-th request, head and body.
MakeRequest = Callable[[int], bytes]


@dataclass(frozen=True)
class Answered:
    """Status (FAILED without a complete response), seconds since the request was due, and when it was answered."""

    status: int
    latency_s: float
    at_s: float


@dataclass
class Arrivals:
    """The answers to all requests that were due within `seconds`, except those of the first `settling_s`."""

    seconds: float
    settling_s: float = 0.0
    all_answers: list[Answered] = field(default_factory=list)
    num_unanswered: int = 0

    @property
    def answers(self) -> list[Answered]:
        return [answer for answer in self.all_answers if answer.at_s - answer.latency_s >= self.settling_s]

    @property
    def onset(self) -> list[Answered]:
        """Accepted requests of the first `settling_s`."""
        return [one for one in self.all_answers if one.status == 200 and one.at_s - one.latency_s < self.settling_s]

    def with_status(self, accepts: Callable[[int], bool]) -> list[Answered]:
        return [answer for answer in self.answers if accepts(answer.status)]

    @property
    def accepted(self) -> list[Answered]:
        return self.with_status(lambda status: status == 200)

    @property
    def refused(self) -> list[Answered]:
        return self.with_status(lambda status: status in (429, 503))

    @property
    def num_other(self) -> int:
        return len(self.answers) - len(self.accepted) - len(self.refused) + self.num_unanswered

    @property
    def goodput(self) -> float:
        """Accepted requests per second, of those answered after the settling time and while requests still arrived."""
        in_time = [one for one in self.all_answers if one.status == 200 and self.settling_s <= one.at_s <= self.seconds]
        return len(in_time) / (self.seconds - self.settling_s)


def percentile_ms(answers: list[Answered], share: float) -> float:
    """Return a quantile of the latencies in milliseconds; NaN where there is no answer."""
    latencies = sorted(answer.latency_s for answer in answers)
    return latencies[min(len(latencies) - 1, int(share * len(latencies)))] * 1e3 if latencies else float("nan")


class _Connection(asyncio.Protocol):
    """A client with one request at a time on a connection that is kept open as long as the server keeps it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[int] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes) -> int:
        assert self._transport is not None, "a connection is used once it is made"
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own is not a subclass

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status, is_kept = self._parser.get_status_code(), self._parser.should_keep_alive()
        if not is_kept:
            self.close()
        self._parser = httptools.HttpResponseParser(self)
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(FAILED)


class OpenLoop:
    """Load on one server by persistent connections; used inside its `async with` block.

    There the process has a raised priority where that is permitted, and does not collect garbage, as if the load came
    from a machine of its own.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port, "the URL of a process names both"
        self._host, self._port = parts.hostname, parts.port
        self._free: list[_Connection] = []
        self._made: set[_Connection] = set()

    async def __aenter__(self) -> "OpenLoop":
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, LOAD_PRIORITY)
        gc.disable()
        return self

    async def __aexit__(self, *failure: object) -> None:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        gc.enable()
        for connection in self._made:
            connection.close()

    async def run(
        self, rate: float, seconds: float, make: MakeRequest, *, seed: int = 0, settling_s: float = 0.0
    ) -> Arrivals:
        """Send `rate` requests a second on average for `seconds`, and wait for their answers."""
        seconds += settling_s
        arrivals = Arrivals(seconds, settling_s)
        began = time.perf_counter()
        asked: set[asyncio.Task[None]] = set()
        for number, due_s in enumerate(_poisson(rate, seconds, seed)):
            if (wait_s := began + due_s - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            task = asyncio.create_task(self._ask(make(number), began, due_s, arrivals))
            asked.add(task)
            task.add_done_callback(asked.discard)
        if asked:
            _, late = await asyncio.wait(asked, timeout=DRAIN_S)
            arrivals.num_unanswered = len(late)
            for task in late:
                task.cancel()
        return arrivals

    async def saturate(self, concurrency: int, seconds: float, make: MakeRequest) -> Arrivals:
        """Run a closed loop of clients, whose goodput is the server's capacity."""
        arrivals = Arrivals(seconds)
        began = time.perf_counter()
        numbers: Iterator[int] = iter(range(10**9))

        async def client() -> None:
            while (due_s := time.perf_counter() - began) < seconds:
                await self._ask(make(next(numbers)), began, due_s, arrivals)

        await asyncio.gather(*(client() for _ in range(concurrency)))
        return arrivals

    async def _ask(self, request: bytes, began: float, due_s: float, arrivals: Arrivals) -> None:
        status = FAILED
        with suppress(OSError):
            connection = await self._connection()
            status = await connection.ask(request)
            if connection.is_open:
                self._free.append(connection)
            else:
                self._made.discard(connection)
        at_s = time.perf_counter() - began
        arrivals.all_answers.append(Answered(status, at_s - due_s, at_s))

    async def _connection(self) -> _Connection:
        while self._free:
            if (free := self._free.pop()).is_open:
                return free
            self._made.discard(free)
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        self._made.add(connection)
        return connection


def request_bytes(
    target: str, body: bytes, content_type: str = "application/json", headers: tuple[tuple[str, str], ...] = ()
) -> bytes:
    """Return the bytes of a POST request."""
    lines = [
        f"POST {target} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in headers),
    ]
    return "\r\n".join(lines).encode("ascii") + b"\r\n\r\n" + body


def _poisson(rate: float, seconds: float, seed: int) -> Iterator[float]:
    generator = random.Random(seed)
    due_s = generator.expovariate(rate)
    while due_s < seconds:
        yield due_s
        due_s += generator.expovariate(rate)
