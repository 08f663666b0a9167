"""The process is killed at random moments while it adds, deletes and builds indexes: what it acknowledged is there.

`FOVEA_TEST_KILLS` sets how often; a few by default.
"""

import asyncio
import base64
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from PIL import Image

from tests.contract.embed_processes import tiny_environment
from tests.contract.processes import Process, start_process

NUM_KILLS = int(os.environ.get("FOVEA_TEST_KILLS", "4"))
SEED = int(os.environ.get("FOVEA_TEST_SEED", "0"))
CONDITIONS = [f"what is the {word}?" for word in ("color", "shape", "size", "place", "light")]
NUM_USERS = 4
MAX_LIFE_S = 1.5
MAX_IMAGES = 400
COSINE_TOLERANCE = 5e-3


def picture(dice: random.Random) -> bytes:
    noise = np.frombuffer(dice.randbytes(24 * 24 * 3), np.uint8).reshape(24, 24, 3)
    file = BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


@dataclass
class Ledger:
    """Acknowledged changes: images that the process must have, and those that it must not have any more.

    An id is in doubt while the last request about it has no answer; then both outcomes are correct.
    """

    stored: dict[str, bytes] = field(default_factory=dict)
    in_doubt: dict[str, bytes] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    num_added: int = 0

    def settle(self, found: dict[str, bytes]) -> None:
        """Compare with what is there, and take over what was in doubt. Fails where something acknowledged is lost."""
        lost = [image_id for image_id in self.stored if image_id not in self.in_doubt and image_id not in found]
        assert not lost, f"acknowledged and lost: {lost}"
        unknown = [image_id for image_id in found if image_id not in self.stored and image_id not in self.in_doubt]
        assert not unknown, f"deleted, or never added: {unknown}"
        for image_id, data in found.items():
            assert data == (self.stored.get(image_id) or self.in_doubt[image_id]), f"{image_id} has other bytes"
        self.stored = dict(found)
        self.in_doubt.clear()


@dataclass
class Library:
    """The process, killed and started again over one folder."""

    folder: Path
    environment: dict[str, str]
    dice: random.Random
    ledger: Ledger = field(default_factory=Ledger)
    lives: int = 0

    def start(self) -> Process:
        self.lives += 1
        process = start_process("services.embed", self.folder / f"log-{self.lives}", self.environment)
        process.wait_until_ready()
        return process


async def add_some(session: aiohttp.ClientSession, url: str, library: Library) -> None:
    """Or delete where there are many, so that a check of everything stays short."""
    if len(library.ledger.stored) > MAX_IMAGES:
        await delete_one(session, url, library)
        return
    images = {f"{library.dice.getrandbits(64):016x}": picture(library.dice) for _ in range(library.dice.randint(1, 12))}
    library.ledger.in_doubt |= images
    body = [{"id": image_id, "image": base64.b64encode(data).decode()} for image_id, data in images.items()]
    async with session.post(f"{url}/images", json={"images": body}) as response:
        assert response.status == 201, await response.text()
        assert (await response.json())["ids"] == list(images)
    library.ledger.stored |= images
    library.ledger.num_added += len(images)
    for image_id in images:
        del library.ledger.in_doubt[image_id]


async def delete_one(session: aiohttp.ClientSession, url: str, library: Library) -> None:
    ledger = library.ledger
    settled = [image_id for image_id in ledger.stored if image_id not in ledger.in_doubt]
    if not settled:
        return
    image_id = library.dice.choice(settled)
    ledger.in_doubt[image_id] = ledger.stored[image_id]
    async with session.delete(f"{url}/images/{image_id}") as response:
        assert response.status == 204, await response.text()
    del ledger.stored[image_id], ledger.in_doubt[image_id]
    ledger.deleted.add(image_id)


async def search_under_a_condition(session: aiohttp.ClientSession, url: str, library: Library) -> None:
    """Under one that may be new, so that its index begins to be built."""
    deleted_before = set(library.ledger.deleted)
    condition = library.dice.choice(CONDITIONS)
    async with session.post(f"{url}/search", json={"text": "a thing", "condition": condition, "k": 50}) as response:
        assert response.status == 200, await response.text()
        found = {hit["id"] for hit in (await response.json())["results"]}
    assert not found & deleted_before


async def use(url: str, library: Library) -> None:
    """Until the process is gone."""
    work = [add_some, add_some, delete_one, search_under_a_condition]

    async def user(session: aiohttp.ClientSession) -> None:
        with contextlib.suppress(aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            while True:
                await library.dice.choice(work)(session, url, library)

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(user(session) for _ in range(NUM_USERS)))


async def ids_of(session: aiohttp.ClientSession, url: str) -> AsyncIterator[str]:
    after = ""
    while True:
        async with session.get(f"{url}/images", params={"after": after, "limit": "1000"}) as response:
            page = await response.json()
            assert response.status == 200, page
        for image in page["data"]:
            yield image["id"]
        if not page["has_more"]:
            return
        after = page["data"][-1]["id"]


async def check(url: str, library: Library) -> None:
    """Everything acknowledged is there and whole, and every index comes back right by itself."""
    async with aiohttp.ClientSession() as session:
        found = {}
        async for image_id in ids_of(session, url):
            async with session.get(f"{url}/images/{image_id}") as response:
                assert response.status == 200, image_id
                found[image_id] = await response.read()
        library.ledger.settle(found)
        description = await when_ready(session, url)
        assert description["size"] == len(found)
        if not found:
            return
        for index in description["conditions"]:
            await check_index(session, url, library, index["condition"])


async def when_ready(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    while True:
        async with session.get(url) as response:
            description: dict[str, Any] = await response.json()
        if description["state"] == "ready":
            return description
        await asyncio.sleep(0.02)  # an index tells nobody when it is ready


async def posted(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def check_index(session: aiohttp.ClientSession, url: str, library: Library, condition: str | None) -> None:
    """Check that all images are found, each with the cosine that embedding it again gives."""
    ids = list(library.ledger.stored)
    query = library.dice.choice(ids)
    body = {"id": query, "condition": condition, "k": 1000}
    answer = await posted(session, f"{url}/search", body)
    assert answer["index"] | {"exact": True, "state": "ready"} == answer["index"]
    scores = {hit["id"]: hit["score"] for hit in answer["results"]}
    assert len(scores) == min(1000, len(ids) - 1)
    assert set(scores) <= set(ids) - {query}
    some = [query, *library.dice.sample(sorted(scores), min(8, len(scores)))]
    images = [base64.b64encode(library.ledger.stored[image_id]).decode() for image_id in some]
    to_embed = {"images": images, "condition": condition}
    embedded = await posted(session, f"{url.partition('/collections')[0]}/embed", to_embed)
    vectors = np.array([row["embedding"] for row in embedded["data"]])
    expected = vectors[1:] @ vectors[0]
    np.testing.assert_allclose([scores[image_id] for image_id in some[1:]], expected, atol=COSINE_TOLERANCE)


@pytest.mark.timeout(600 + 30 * NUM_KILLS)
@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_when_the_process_is_killed_at_any_moment(tmp_path: Path) -> None:
    environment = tiny_environment(
        tmp_path, FOVEA_EMBED_NUM_THREADS="1", FOVEA_EMBED_INDEX_SAVE_EVERY_S="0.2", FOVEA_EMBED_PORT="0"
    )
    library = Library(tmp_path, environment, random.Random(SEED))
    for _ in range(NUM_KILLS):
        process = library.start()
        url = f"{process.url}/collections/killed"
        async with aiohttp.ClientSession() as session, session.put(url) as response:
            assert response.status in (200, 201), await response.text()
        if library.lives > 1:
            await check(url, library)
        asyncio.get_running_loop().call_later(
            library.dice.uniform(0.01, MAX_LIFE_S), process.process.send_signal, signal.SIGKILL
        )
        try:
            await use(url, library)
        finally:
            process.process.kill()
            process.process.wait()
    process = library.start()
    try:
        await check(f"{process.url}/collections/killed", library)
        assert process.stop() == 0
    finally:
        process.process.kill()
    print(f"{NUM_KILLS} kills, {library.ledger.num_added} images added, {len(library.ledger.deleted)} deleted")
