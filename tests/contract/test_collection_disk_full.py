"""The disk fills up while images are added: they are refused, nothing is damaged, and room mends it."""

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

from services.core.manifest import CheckpointInfo
from services.core.store import Store
from tests.contract.processes import Process, start_process
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
        "FOVEA_EMBED_MODEL": "tiny",
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
