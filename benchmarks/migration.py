"""A collection moved from a folder into a cluster and back while clients use it, then backed up, deleted and restored.

python -m benchmarks.migration [--size 20000]

Real processes of embed with a tiny model, a real PostgreSQL, started for this. A client
adds, deletes and searches all the while, and remembers what was answered: at the end every acknowledged image has to be
there with its bytes and metadata, and no deleted one. Raises AssertionError if anything is lost or returned.
"""

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image

from benchmarks.record import record
from tests.conftest import empty_schema
from tests.contract.background import in_background
from tests.contract.embed_processes import tiny_environment
from tests.contract.processes import Process, start_process
from tests.contract.test_collections import COLOR, as_base64, shared_collections
from tests.core.postgres_server import postgres_server

NAME = "things"
PIXELS = 32
BATCH = 64
PAUSE_S = 0.1
TIMEOUT_S = 120.0


@dataclass
class Place:
    """A process of embed and where it keeps collections."""

    kind: str
    folder: Path
    environment: dict[str, str]
    process: Process | None = None

    def start(self) -> None:
        self.process = start_process("services.embed", self.folder / f"{self.kind}.log", self.environment)
        self.process.wait_until_ready()

    def stop(self) -> None:
        assert self.process is not None and self.process.stop() == 0, "the service ends well"

    @property
    def url(self) -> str:
        assert self.process is not None, "the service runs"
        return self.process.url

    @property
    def collection(self) -> str:
        return f"{self.url}/collections/{NAME}"


@dataclass
class Client:
    """It adds, deletes and searches until it is told to stop. `stored` is what it and others were told is there: digest
    and number of each image by its id."""

    collection: str
    stored: dict[str, tuple[str, int]]
    answers: Counter[str] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)

    def work(self, stop: threading.Event) -> None:
        number = 10**9
        with httpx.Client(timeout=TIMEOUT_S) as client:
            while not stop.wait(PAUSE_S):
                number += 1
                name, image = f"new/{time.time_ns()}", picture(number)
                added = client.post(f"{self.collection}/images", json={"images": [as_json(name, image, number)]})
                if self._note("added", added, 201):
                    self.stored[name] = (hashlib.sha256(image).hexdigest(), number)
                victim = next(iter(self.stored))
                if self._note("deleted", client.delete(f"{self.collection}/images/{victim}"), 204):
                    del self.stored[victim]
                body = {"image": as_base64(image), "condition": COLOR, "k": 10}
                self._note("searched", client.post(f"{self.collection}/search", json=body), 200)

    def _note(self, what: str, answer: httpx.Response, expected: int) -> bool:
        """Count an answer; the only other one allowed is that the original is read-only."""
        is_done = answer.status_code == expected
        code = "" if is_done else answer.json()["error"]["code"]
        self.answers[what if is_done else f"{what}: {code}"] += 1
        if not is_done and (what == "searched" or code != "collection_read_only"):
            self.others.append(answer.text)
        return is_done


def picture(number: int) -> bytes:
    """Draw noise that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (PIXELS, PIXELS, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return file.getvalue()


def as_json(name: str, image: bytes, number: int) -> dict[str, Any]:
    return {"id": name, "image": as_base64(image), "metadata": {"n": number}}


def fill(collection: str, size: int) -> dict[str, tuple[str, int]]:
    """Add images; return digest and number of each by its id."""
    stored: dict[str, tuple[str, int]] = {}
    with httpx.Client(timeout=TIMEOUT_S) as client:
        assert client.put(collection, json={"conditions": [COLOR]}).status_code == 201
        for begin in range(0, size, BATCH):
            images = {n: picture(n) for n in range(begin, min(size, begin + BATCH))}
            body = {"images": [as_json(f"old/{n:06}", image, n) for n, image in images.items()]}
            assert client.post(f"{collection}/images", json=body).status_code == 201
            stored |= {f"old/{n:06}": (hashlib.sha256(image).hexdigest(), n) for n, image in images.items()}
    return stored


def listed(collection: str) -> dict[str, tuple[str, int]]:
    """Return digest and number of every image by its id."""
    found: dict[str, tuple[str, int]] = {}
    with httpx.Client(timeout=TIMEOUT_S) as client:
        while True:
            last = {"after": list(found)[-1]} if found else {}
            page = client.get(f"{collection}/images", params={"limit": "1000", **last}).json()
            found |= {one["id"]: (one["sha256"], one["metadata"]["n"]) for one in page["data"]}
            if not page["has_more"]:
                return found


def run(*arguments: str, environment: dict[str, str] | None = None) -> tuple[dict[str, Any], float]:
    """Run `fovea collections` with --json; return what it printed and the seconds it took."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "services.embed.transfer.command", *arguments, "--json"]
    done = subprocess.run(command, env=os.environ | (environment or {}), stdout=subprocess.PIPE, check=True)
    seconds = round(time.perf_counter() - began, 1)
    found: dict[str, Any] = json.loads(done.stdout)
    print(" ".join(arguments[:1]), f"{seconds} s", found, flush=True)
    return found, seconds


def move(here: Place, there: Place, stored: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """Migrate under load and compare; the original is deleted afterwards."""
    arguments = ("migrate", NAME, "--from", here.url, "--to", there.url)
    client = Client(here.collection, stored)
    with in_background(client.work):
        first, first_s = run(*arguments)
        last, last_s = run(*arguments, "--finish")
    assert not client.others, client.others[:3]
    found = listed(there.collection)
    lost = {name for name in stored if found.get(name) != stored[name]}
    returned = found.keys() - stored.keys()
    assert not lost and not returned, f"lost or changed: {lost}, returned: {returned}"
    assert found == listed(here.collection), "both list the same"
    assert last["images"] == len(found), "the command counts the same"
    assert httpx.delete(here.collection, timeout=TIMEOUT_S).status_code == 204
    return {
        "passes": [first["passes"], last["passes"]],
        "seconds": [first_s, last_s],
        "images": len(found),
        "digest": last["digest"],
        "answers": dict(client.answers),
        "lost": len(lost),
        "returned": len(returned),
        "load": os.getloadavg()[0],
    }


def back_up_and_restore(place: Place, stored: dict[str, tuple[str, int]]) -> dict[str, Any]:
    """Back up twice, delete everything, restore, and compare."""
    backups = str(place.folder / f"backups of {place.kind}")
    _, first_s = run("backup", backups, environment=place.environment)
    second, second_s = run("backup", backups, environment=place.environment)
    assert second["new_contents"] == 0
    assert httpx.delete(place.collection, timeout=TIMEOUT_S).status_code == 204
    place.stop()
    _, restored_s = run("restore", backups, environment=place.environment)
    place.start()
    assert listed(place.collection) == stored, "all is back as it was"
    return {"backup_s": [first_s, second_s], "restore_s": restored_s, "images": second["images"]}


@contextmanager
def places() -> Iterator[tuple[Place, Place]]:
    """Run embed over a folder, and over PostgreSQL and a folder of objects."""
    with tempfile.TemporaryDirectory() as name, postgres_server() as postgres:
        folder = Path(name)
        environment = tiny_environment(
            folder, FOVEA_EMBED_DEVICE="cpu", FOVEA_EMBED_NUM_THREADS="1", FOVEA_EMBED_PORT="0"
        )
        shared = shared_collections(folder, empty_schema(postgres.url))
        cluster = environment | shared | {"FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "states")}
        local, shared_place = Place("local", folder, environment), Place("cluster", folder, cluster)
        for place in (local, shared_place):
            place.start()
        yield local, shared_place
        for place in (local, shared_place):
            place.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=20_000)
    size = parser.parse_args().size
    with places() as (local, cluster):
        stored = fill(local.collection, size)
        result = {"to_cluster": move(local, cluster, stored)}
        result["cluster_backup"] = back_up_and_restore(cluster, stored)
        result["to_local"] = move(cluster, local, stored)
        result["local_backup"] = back_up_and_restore(local, stored)
    record("migration", {"size": size, **result})


if __name__ == "__main__":
    main()
