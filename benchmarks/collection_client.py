"""The client with which benchmarks of collections talk to a served process."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

FILES_PER_REQUEST = 64
REQUESTS_AT_ONCE = 4
POLL_S = 0.02


@dataclass(frozen=True)
class CollectionClient:
    """A client of one collection."""

    session: aiohttp.ClientSession
    url: str

    async def create(self, conditions: Sequence[str] = ()) -> None:
        async with self.session.put(self.url, json={"conditions": list(conditions)}) as response:
            assert response.status in (200, 201), await response.text()

    async def add(self, files: Mapping[str, bytes]) -> None:
        """Add every file under its name, several requests at once."""
        names = list(files)
        waiting = iter([names[at : at + FILES_PER_REQUEST] for at in range(0, len(names), FILES_PER_REQUEST)])

        async def user() -> None:
            for some in waiting:
                form = aiohttp.FormData()
                for name in some:
                    form.add_field("file", files[name], filename=name, content_type="image/png")
                async with self.session.post(f"{self.url}/images", data=form) as response:
                    assert response.status == 201, await response.text()

        await asyncio.gather(*(user() for _ in range(REQUESTS_AT_ONCE)))

    async def describe(self) -> dict[str, Any]:
        async with self.session.get(self.url) as response:
            assert response.status == 200, await response.text()
            described: dict[str, Any] = await response.json()
            return described

    async def seconds_until_ready(self, condition: str | None = None) -> float:
        """Wait until the index of a condition, or every index for None, has every image."""
        began = time.perf_counter()
        while True:
            indexes = (await self.describe())["conditions"]
            asked = [index for index in indexes if condition is None or index["condition"] == condition]
            if asked and all(index["state"] == "ready" for index in asked):
                return time.perf_counter() - began
            await asyncio.sleep(POLL_S)

    async def search(self, **query: Any) -> dict[str, Any]:
        async with self.session.post(f"{self.url}/search", json=query) as response:
            assert response.status == 200, await response.text()
            answer: dict[str, Any] = await response.json()
            return answer
