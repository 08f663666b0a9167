"""The disk fills up while images are added: they are refused, nothing is damaged, and room mends it, be it only what
deleted images leave."""

import base64
import random
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image

from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.embed.collections.storage.database import free_bytes
from tests.contract.processes import Process, start_process
from tests.contract.served_system import wait_until
from tests.embed.collections.small_disk import fill as take_all
from tests.embed.tiny import write_tiny_checkpoint

SMALL, LARGE = "3m", "32m"
BATCH = 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that is full soon."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def start(tmp_path: Path, disk: Path, log: str) -> Process:
    environment = {
        "FOVEA_STORE_URL": (tmp_path / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(tmp_path / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(disk),
        "FOVEA_EMBED_MODELS": "tiny",
        "FOVEA_EMBED_INDEX_SAVE_EVERY_S": "0.05",
        "FOVEA_EMBED_PORT": "0",
    }
    process = start_process("services.embed", tmp_path / log, environment)
    process.wait_until_ready()
    return process


def batch(dice: random.Random) -> dict[str, bytes]:
    images = {}
    for _ in range(BATCH):
        file = BytesIO()
        Image.fromarray(np.frombuffer(dice.randbytes(90 * 90 * 3), np.uint8).reshape(90, 90, 3)).save(file, "PNG")
        images[f"{dice.getrandbits(64):016x}"] = file.getvalue()
    return images


def add(client: httpx2.Client, images: dict[str, bytes]) -> httpx2.Response:
    body = [{"id": image_id, "image": base64.b64encode(data).decode()} for image_id, data in images.items()]
    return client.post("/collections/full/images", json={"images": body})


def check(client: httpx2.Client, stored: dict[str, bytes]) -> None:
    """Exactly these images are there, whole, and found."""
    page: dict[str, Any] = client.get("/collections/full/images", params={"limit": 1000}).json()
    assert {image["id"] for image in page["data"]} == set(stored)
    for image_id, data in stored.items():
        assert client.get(f"/collections/full/images/{image_id}").content == data
    found = client.post("/collections/full/search", json={"text": "a thing", "k": 1000}).json()["results"]
    assert {hit["id"] for hit in found} == set(stored)


def fill(client: httpx2.Client, dice: random.Random) -> dict[str, bytes]:
    """Add images until they are refused; those that were stored."""
    stored = dict[str, bytes]()
    while (response := add(client, images := batch(dice))).status_code == 201:
        stored |= images
    assert response.json()["error"]["code"] == "storage_full"
    return stored


@pytest.fixture
def served(tmp_path: Path, small_disk: Path) -> Iterator[httpx2.Client]:
    """A service with an empty collection on the small disk."""
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    Store.open((tmp_path / "store").as_uri()).publish("tiny", checkpoint, CheckpointInfo(kind="focallens-clip"))
    process = start(tmp_path, small_disk, "log")
    try:
        with httpx2.Client(base_url=process.url, timeout=30) as client:
            assert client.put("/collections/full").status_code == 201
            yield client
        assert process.stop() == 0
    finally:
        process.process.kill()


def test_a_full_disk_takes_as_many_images_again_once_they_are_deleted(served: httpx2.Client) -> None:
    dice = random.Random(0)
    first = fill(served, dice)
    for _ in range(3):
        stored = fill(served, dice) | first
        for image_id in stored:
            assert served.delete(f"/collections/full/images/{image_id}").status_code == 204
        first = fill(served, dice)
        # the indexes and their files take some room that is theirs from now on
        assert len(first) >= len(stored) - 3 * BATCH
    check(served, first)


def test_what_is_deleted_is_room_for_others(served: httpx2.Client, small_disk: Path) -> None:
    before = free_bytes(small_disk)
    stored = fill(served, random.Random(0))
    for image_id in stored:
        assert served.delete(f"/collections/full/images/{image_id}").status_code == 204
    # the indexing task, which looks now and then, gives it back
    wait_until(lambda: free_bytes(small_disk) > before - 300_000)


def test_a_disk_without_a_byte_left_takes_deletions(served: httpx2.Client, small_disk: Path) -> None:
    stored = fill(served, random.Random(0))
    take_all(small_disk / "others")
    assert free_bytes(small_disk) < 4096
    for image_id in list(stored)[1:]:
        assert served.delete(f"/collections/full/images/{image_id}").status_code == 204
    check(served, {image_id: stored[image_id] for image_id in list(stored)[:1]})
    assert add(served, dict(list(stored.items())[1:BATCH])).status_code == 201


def test_images_are_refused_while_the_disk_is_full_and_nothing_is_damaged(tmp_path: Path, small_disk: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "checkpoint")
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("tiny", checkpoint, CheckpointInfo(kind="focallens-clip"))
    dice, stored = random.Random(0), dict[str, bytes]()
    process = start(tmp_path, small_disk, "log-1")
    try:
        with httpx2.Client(base_url=process.url, timeout=30) as client:
            assert client.put("/collections/full").status_code == 201
            while (response := add(client, images := batch(dice))).status_code == 201:
                stored |= images
            assert response.status_code == 503, response.text
            assert response.json()["error"]["code"] == "storage_full"
            assert len(stored) >= BATCH
            check(client, stored)
            process.process.kill()  # with the disk still full
            process.process.wait()
        process = start(tmp_path, small_disk, "log-2")
        with httpx2.Client(base_url=process.url, timeout=30) as client:
            check(client, stored)
            assert add(client, batch(dice)).status_code == 503
            subprocess.run(["mount", "-o", f"remount,size={LARGE}", str(small_disk)], check=True)
            images = batch(dice)
            assert add(client, images).status_code == 201
            check(client, stored | images)
        assert process.stop() == 0
    finally:
        process.process.kill()
