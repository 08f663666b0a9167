"""Clients that keep asking while processes come and go."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

NUM_CLIENTS = 8

# A session, where to ask and the number of the request: of n clients, client i sends i + n, i + 2n, …
Send = Callable[[aiohttp.ClientSession, str, int], Any]


class Load:
    """Clients under load and their observations: the models that answered, and errors.

    They send requests to `urls` in turn. With `anew` each request has a connection of its own, so that a process that
    stops gets no request over an old one. Each client waits `pause_s` seconds between requests, which leaves a part of
    the machine to processes that start. A failed request ends the load with an AssertionError unless some `may_fail`.
    """

    def __init__(
        self,
        send: Send,
        urls: Sequence[str],
        *,
        anew: bool = False,
        num_clients: int = NUM_CLIENTS,
        pause_s: float = 0.0,
        may_fail: bool = False,
    ) -> None:
        self.urls = urls
        self.num_clients = num_clients
        self.models: Counter[str] = Counter()
        self.failures: list[str] = []
        self.longest_s = 0.0
        self._send = send
        self._anew = anew
        self._pause_s = pause_s
        self._may_fail = may_fail
        self._is_over = asyncio.Event()

    @property
    def num_answered(self) -> int:
        return self.models.total()

    async def more(self, num_requests: int) -> None:
        """Wait until this number of further requests has been answered."""
        wanted = self.num_answered + num_requests
        while self.num_answered < wanted:
            assert self._may_fail or not self.failures, self.failures[0]
            await asyncio.sleep(0.01)  # the clients are tasks of their own

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Load"]:
        """Keep asking until the block ends."""
        connector = aiohttp.TCPConnector(force_close=self._anew)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=300)) as session:
            clients = [asyncio.create_task(self._ask(session, number)) for number in range(self.num_clients)]
            try:
                yield self
            finally:
                self._is_over.set()
                await asyncio.gather(*clients)
        assert self._may_fail or not self.failures, self.failures[:3]

    async def _ask(self, session: aiohttp.ClientSession, number: int) -> None:
        while not self._is_over.is_set():
            number += self.num_clients
            began = time.monotonic()
            try:
                async with self._send(session, self.urls[number % len(self.urls)], number) as response:
                    answer = await response.json()
                if response.status == 200:
                    self.models[answer["model"]] += 1
                else:
                    self.failures.append(str(answer))
            except (aiohttp.ClientError, TimeoutError) as error:
                self.failures.append(repr(error))
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            await asyncio.sleep(self._pause_s)


async def known_to(gateway_url: str, service: str, num_addresses: int) -> None:
    """Until the gateway knows that all addresses of a service are ready."""
    detail = f"{num_addresses} of {num_addresses} addresses ready"
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{gateway_url}/readyz") as response:
                if (await response.json())["checks"][service]["detail"] == detail:
                    return
            await asyncio.sleep(0.02)  # the gateway looks once a second and tells nobody
