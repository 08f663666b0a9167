"""Processes share a collection; they are killed, then PostgreSQL: what was acknowledged is there.

`FOVEA_TEST_KILLS` sets how often processes are killed, `FOVEA_TEST_RESTARTS` how often PostgreSQL is killed and started
again, `FOVEA_TEST_PROCESSES` how many processes there are; few by default. With several restarts all of this happens at
once in the end.
"""

import asyncio
import base64
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.embed_processes import tiny_environment
from tests.contract.processes import Process, start_process
from tests.contract.test_collection_crashes import CONDITIONS, Ledger, Library, check_index, ids_of, picture, when_ready
from tests.core.postgres_server import PostgresServer, postgres_server
from tests.kept_port import kept_port

NUM_KILLS = int(os.environ.get("FOVEA_TEST_KILLS", "1"))
NUM_RESTARTS = int(os.environ.get("FOVEA_TEST_RESTARTS", "1"))
NUM_PROCESSES = int(os.environ.get("FOVEA_TEST_PROCESSES", "2"))
SEED = int(os.environ.get("FOVEA_TEST_SEED", "0"))
NUM_USERS = 4
BETWEEN_KILLS_S = (1.0, 2.0)
# PostgreSQL is away so long, and is used so long before it goes.
AWAY_S = (1.0, 3.0) if NUM_RESTARTS > 1 else (1.0, 1.0)
MAX_IMAGES = 100
RETRY_S = 0.1
# A search of a process that finds PostgreSQL gone waits for it, but not as long as this.
TIMEOUT = aiohttp.ClientTimeout(total=60)


@dataclass
class Cluster:
    """Processes over one database, each on a port that it has again when it is started again."""

    folder: Path
    environment: dict[str, str]
    ports: list[int]
    processes: list[Process] = field(default_factory=list)
    num_starts: int = 0

    def start(self, place: int) -> Process:
        self.num_starts += 1
        environment = {
            **self.environment,
            "FOVEA_EMBED_PORT": str(self.ports[place]),
            "FOVEA_EMBED_COLLECTIONS_DIR": str(self.folder / f"own-{place}"),
        }
        log = self.folder / f"log-{self.num_starts}"
        return start_process("services.embed", log, environment)

    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]


@dataclass
class Traffic:
    """Users who add, delete and search through any process, and repeat what was not answered."""

    cluster: Cluster
    session: aiohttp.ClientSession
    dice: random.Random
    ledger: Ledger = field(default_factory=Ledger)
    is_over: bool = False
    outcomes: Counter[str] = field(default_factory=Counter)

    async def ask(self, method: str, path: str, **options: Any) -> tuple[int, Any] | None:
        """Ask any process; None if it is gone or can't answer now, which it then says."""
        url = self.dice.choice(self.cluster.urls())
        try:
            async with self.session.request(method, f"{url}{path}", **options) as response:
                if response.status == 503:
                    error = (await response.json())["error"]
                    assert "retry-after" in response.headers, error
                    self.outcomes[f"503 {error['code']}"] += 1
                    return None
                body = await response.json() if response.content_type == "application/json" else None
                self.outcomes[f"{method} {response.status}"] += 1
                return response.status, body
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            self.outcomes["gone"] += 1
            return None

    async def until_answered(self, method: str, path: str, **options: Any) -> tuple[int, Any, int]:
        """Also return the number of attempts."""
        num_attempts = 1
        while (answer := await self.ask(method, path, **options)) is None:
            num_attempts += 1
            await asyncio.sleep(RETRY_S)
        return *answer, num_attempts

    async def add(self) -> None:
        if len(self.ledger.stored) > MAX_IMAGES:
            await self.delete()
            return
        images = {f"{self.dice.getrandbits(64):016x}": picture(self.dice) for _ in range(self.dice.randint(1, 8))}
        body = [{"id": image_id, "image": base64.b64encode(data).decode()} for image_id, data in images.items()]
        status, answer, _ = await self.until_answered("POST", "/collections/shared/images", json={"images": body})
        assert status == 201, answer
        self.ledger.stored |= images
        self.ledger.num_added += len(images)

    async def delete(self) -> None:
        settled = [image_id for image_id in self.ledger.stored if image_id not in self.ledger.in_doubt]
        if not settled:
            return
        image_id = self.dice.choice(settled)
        self.ledger.in_doubt[image_id] = self.ledger.stored[image_id]
        status, answer, num_attempts = await self.until_answered("DELETE", f"/collections/shared/images/{image_id}")
        assert status == 204 or (status == 404 and num_attempts > 1), answer
        del self.ledger.stored[image_id], self.ledger.in_doubt[image_id]
        self.ledger.deleted.add(image_id)

    async def search(self) -> None:
        deleted_before = set(self.ledger.deleted)
        query = {"text": "a thing", "condition": self.dice.choice([None, *CONDITIONS]), "k": 50}
        answer = await self.ask("POST", "/collections/shared/search", json=query)
        if answer is None:
            await asyncio.sleep(RETRY_S)
            return
        assert answer[0] == 200, answer
        assert not {hit["id"] for hit in answer[1]["results"]} & deleted_before

    async def use(self) -> None:
        work = [self.add, self.delete, self.search, self.search]
        while not self.is_over:
            await self.dice.choice(work)()

    async def check(self, urls: Sequence[str]) -> None:
        """Compare with processes: everything acknowledged is there and found, and nothing else."""
        for url in urls:
            collection = f"{url}/collections/shared"
            found = {}
            async for image_id in ids_of(self.session, collection):
                async with self.session.get(f"{collection}/images/{image_id}") as response:
                    assert response.status == 200, image_id
                    found[image_id] = await response.read()
            self.ledger.settle(found)
            description = await when_ready(self.session, collection)
            assert description["size"] == len(found)
            library = Library(self.cluster.folder, {}, self.dice, self.ledger)
            for index in description["conditions"]:
                await check_index(self.session, collection, library, index["condition"])


@contextmanager
def started(folder: Path, server: PostgresServer, ports: list[int]) -> Iterator[Cluster]:
    environment = tiny_environment(
        folder,
        FOVEA_EMBED_NUM_THREADS="1",
        FOVEA_EMBED_DEVICE="cpu",
        FOVEA_EMBED_COLLECTIONS_URL=server.url,
        FOVEA_EMBED_COLLECTIONS_STORE_URL=(folder / "objects").as_uri(),
        FOVEA_EMBED_COLLECTION_LEASE_S="3",
    )
    cluster = Cluster(folder, environment, ports)
    try:
        for place in range(len(ports)):
            cluster.processes.append(cluster.start(place))
        for process in cluster.processes:
            process.wait_until_ready()
        yield cluster
    finally:
        for process in cluster.processes:
            process.process.kill()
            process.process.wait()


async def kill_some(cluster: Cluster, dice: random.Random) -> None:
    """Kill one process after the other, and start it again."""
    for _ in range(NUM_KILLS):
        await asyncio.sleep(dice.uniform(*BETWEEN_KILLS_S))
        place = dice.randrange(len(cluster.processes))
        process = cluster.processes[place]
        process.process.send_signal(signal.SIGKILL)
        process.process.wait()
        again = cluster.processes[place] = await asyncio.to_thread(cluster.start, place)
        await asyncio.to_thread(again.wait_until_ready)


async def restart(server: PostgresServer, dice: random.Random) -> None:
    """Kill PostgreSQL and start it again, repeatedly."""
    for _ in range(NUM_RESTARTS):
        await asyncio.sleep(dice.uniform(*AWAY_S))
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(dice.uniform(*AWAY_S))
        await asyncio.to_thread(server.start)


async def all_of(disturbances: Sequence[Callable[[], Awaitable[None]]]) -> None:
    await asyncio.gather(*[disturb() for disturb in disturbances])


@pytest.mark.timeout(600 + 30 * NUM_KILLS + 120 * NUM_RESTARTS)
@pytest.mark.slow
async def test_nothing_acknowledged_is_lost_whether_processes_or_postgresql_are_killed(tmp_path: Path) -> None:
    pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")
    dice = random.Random(SEED)
    began = time.monotonic()
    with (
        postgres_server() as server,
        kept_ports(NUM_PROCESSES) as ports,
        started(tmp_path, server, ports) as cluster,
    ):
        async with aiohttp.ClientSession(timeout=TIMEOUT) as session:
            traffic = Traffic(cluster, session, dice)
            await traffic.until_answered("PUT", "/collections/shared", json={"conditions": CONDITIONS[:1]})
            disturbances = [partial(kill_some, cluster, dice), partial(restart, server, dice)]
            together = [partial(all_of, disturbances)] if NUM_RESTARTS > 1 else []
            for disturb in (*disturbances, *together):
                traffic.is_over = False
                async with asyncio.TaskGroup() as group:
                    for _ in range(NUM_USERS):
                        group.create_task(traffic.use())
                    await disturb()
                    await asyncio.sleep(AWAY_S[0])
                    traffic.is_over = True
                await traffic.check([dice.choice(cluster.urls())])
            await traffic.check(cluster.urls())
    print(
        f"{time.monotonic() - began:.0f} s, {cluster.num_starts - NUM_PROCESSES} kills,"
        f" {traffic.ledger.num_added} images added, {len(traffic.ledger.deleted)} deleted: {dict(traffic.outcomes)}"
    )


@contextmanager
def kept_ports(number: int) -> Iterator[list[int]]:
    if number == 0:
        yield []
        return
    with kept_port() as port, kept_ports(number - 1) as others:
        yield [port, *others]
