"""Real faults of a running Fovea, and the alerts that they must raise.

Each runs beside a scraping Prometheus. It begins with a period without faults.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
from safetensors.torch import load_file, save_file

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from tests.contract.running_fovea import Fovea
from tests.core.redis_server import RedisServer
from tests.monitoring.load import ASK, Client, picture

WELL_S = 8.0
# A running batch that holds one answer, with few places behind it.
SMALL_BATCH: Mapping[str, str] = {"FOVEA_GENERATE_MAX_RUNNING": "1", "FOVEA_GENERATE_MAX_WAITING": "12"}


@dataclass(frozen=True)
class Expected:
    """One kind of alert that fires in the end; `labels` are those of `job`, `service` and `name` that it has."""

    alert: str
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Scenario:
    """`run` returns the Unix time at which the recording ends, while the trouble goes on.

    `without` are instances that have nothing to do with it, and stay out of the recording.
    """

    name: str
    run: Callable[[], float]
    raises: Sequence[Expected]
    without: Sequence[str] = ()


@contextmanager
def load(
    client: Callable[[], Client], ask: Callable[[Client], Any], *, threads: int = 1, pause_s: float = 0.2
) -> Iterator[None]:
    """Asks again and again, whatever is answered, until the block ends."""
    is_over = threading.Event()

    def keep_asking() -> None:
        own = client()
        while not is_over.wait(pause_s):
            with suppress(requests.RequestException):
                ask(own)
        own.close()

    asking = [threading.Thread(target=keep_asking) for _ in range(threads)]
    for thread in asking:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in asking:
            thread.join()


def broken_version(folder: Path) -> Path:
    """The starter of embed with a tensor that is no number any more."""
    starter = Path(__file__).parents[2] / "services" / "embed" / "starter" / "focallens-shapes"
    shutil.copytree(starter, folder)
    weights = load_file(folder / "model.safetensors")
    name = max(weights, key=lambda key: weights[key].numel())
    weights[name].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors")
    return folder


def publish_broken(fovea: Fovea, alias: str) -> None:
    store = Store.open(fovea.environment["FOVEA_STORE_URL"])
    folder = fovea.folder / f"broken-{alias}"
    store.publish("focallens-shapes", broken_version(folder), CheckpointInfo(kind="focallens-clip"), alias=alias)


def embed_once(client: Client) -> None:
    client.post("/v1/embeddings", json={"input": ["a red circle"]})


class Embedding:
    """A gateway before two embed processes, with Redis; a third one follows an alias that names a broken version."""

    def __init__(self, fovea: Fovea, redis: RedisServer) -> None:
        self.fovea = fovea
        self.redis = redis
        self.gateway: dict[str, str] = {}

    def start(self) -> None:
        """Ready all but the third."""
        first = self.fovea.start("embed")
        first.wait_until_ready()
        second = self.fovea.start("embed", self._beside("embed-2"), instance="embed-2")
        publish_broken(self.fovea, "broken")
        third = {**self._beside("embed-3"), "FOVEA_EMBED_ALIAS": "broken"}
        self.fovea.start("embed", third, instance="embed-3")
        # Asked seldom, so that the gateway learns from a request that an address is dead.
        self.gateway = {
            "FOVEA_GATEWAY_EMBED_URLS": f"{first.url},{second.url}",
            "FOVEA_GATEWAY_PROBE_INTERVAL_S": "5",
        }
        for process in (second, self.fovea.start_gateway(self.gateway)):
            process.wait_until_ready()

    def _beside(self, name: str) -> dict[str, str]:
        """One folder of collections for each process."""
        return {"FOVEA_EMBED_COLLECTIONS_DIR": str(self.fovea.folder / f"collections-{name}")}

    def client(self) -> Client:
        return Client(self.fovea.url)

    def redis_stops(self) -> float:
        with load(self.client, embed_once):
            time.sleep(WELL_S)
            self.redis.stop()
            time.sleep(12)
            until = time.time()
        self.redis.start()
        return until

    def version_is_broken(self) -> float:
        with load(self.client, embed_once):
            time.sleep(WELL_S)
            publish_broken(self.fovea, "latest")
            time.sleep(8)
            return time.time()

    def nothing_is_ready(self) -> float:
        """The third process follows an alias whose one version does not serve."""
        time.sleep(26)
        return time.time()

    def images_come_too_fast(self) -> float:
        shades = iter(range(1 << 24))
        lock = threading.Lock()

        def add(client: Client) -> None:
            with lock:
                files = [
                    ("file", (f"{shade}.png", picture(shade))) for shade, _ in zip(shades, range(100), strict=False)
                ]
            client.post("/collections/load/images", files=files)

        conditions = ["color", "shape", "size", "texture", "background"]
        self.client().put("/collections/load", json={"conditions": conditions})
        with load(self.client, add, threads=3, pause_s=0.01):
            time.sleep(52)
            return time.time()

    def address_dies(self) -> float:
        with load(self.client, embed_once, threads=4, pause_s=0.05):
            time.sleep(WELL_S)
            self.fovea.processes["embed-2"].process.kill()
            time.sleep(8)
            return time.time()

    def service_stops(self) -> float:
        with load(self.client, embed_once):
            time.sleep(WELL_S)
            self.fovea.processes["embed"].process.kill()
            time.sleep(24)
            return time.time()

    def process_restarts(self) -> float:
        gateway = self.fovea.processes["gateway"]
        time.sleep(WELL_S)
        for _ in range(3):
            gateway.process.kill()
            gateway.process.wait()
            gateway = self.fovea.start_gateway(self.gateway, port=gateway.port)
            gateway.wait_until_ready()
            time.sleep(1)
        return time.time()


class Answering:
    """A gateway before a generate process with `SMALL_BATCH`."""

    def __init__(self, fovea: Fovea) -> None:
        self.fovea = fovea

    def client(self) -> Client:
        return Client(self.fovea.url)

    def ask(self, timeout_s: float | None) -> Callable[[Client], Any]:
        question = {"prompt": "Belan Ashford owns the", "max_tokens": 60, "temperature": 1.5, "n": 4}
        return lambda client: client.post("/v1/completions", json=question, timeout_s=timeout_s)

    def too_many_ask(self) -> float:
        with load(self.client, ASK["generate"], pause_s=0.5):
            time.sleep(WELL_S)
        with load(self.client, self.ask(None), threads=6):
            time.sleep(26)
            return time.time()

    def deadlines_are_short(self) -> float:
        with load(self.client, ASK["generate"], pause_s=0.5):
            time.sleep(WELL_S)
            with load(self.client, self.ask(0.1)):
                time.sleep(14)
                return time.time()


class Predicting:
    """A gateway before a predict process whose thread hangs and whose memory runs out when `faults` says so."""

    def __init__(self, fovea: Fovea, faults: Path) -> None:
        self.fovea = fovea
        self.faults = faults

    def client(self) -> Client:
        return Client(self.fovea.url)

    def thread_hangs(self) -> float:
        return self._with_fault("hang", 9)

    def memory_runs_out(self) -> float:
        return self._with_fault("scarce", 4)

    def _with_fault(self, fault: str, seconds: float) -> float:
        with load(self.client, ASK["predict"], threads=2):
            time.sleep(WELL_S)
            (self.faults / fault).touch()
            time.sleep(seconds)
            until = time.time()
            (self.faults / fault).unlink()
            return until
