"""`fovea embed-bulk --collection`, against a real server that has bad days."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from services.embed.bulk.collection_client import MAX_BATCH_BYTES, CallRefused, Patience, Unavailable, each, in_batches
from services.embed.bulk.image_sources import Skipped, list_images
from services.embed.bulk.to_collection import UploadTarget, upload
from services.jobs.progress import Bars
from tests.embed.bulk_sources import write_shard
from tests.embed.collection_server import CollectionServer, Dropped, error

pytestmark = pytest.mark.process

PATIENCE = Patience(give_up_after_s=60, first_wait_s=0.001, longest_wait_s=0.01)


@pytest.fixture
async def server() -> AsyncIterator[CollectionServer]:
    async with CollectionServer().served() as server:
        yield server


@pytest.fixture
def target(server: CollectionServer) -> UploadTarget:
    return UploadTarget(server.url, "photos", batch_size=4, patience=PATIENCE)


def write_files(folder: Path, num_files: int, damaged: tuple[int, ...] = ()) -> Path:
    """The server looks at the first bytes only, and this job at none."""
    folder.mkdir()
    for number in range(num_files):
        (folder / f"{number:02d}.jpg").write_bytes(b"damaged" if number in damaged else f"image {number}".encode())
    return folder


async def send(target: UploadTarget, source: Path) -> list[Skipped]:
    """Upload the images and return those that were skipped."""
    skipped: list[Skipped] = []
    bars = Bars(Console(file=StringIO()))
    assert await upload(target, list_images([str(source)]), bars, skipped.append) == len(skipped)
    return skipped


async def test_images_arrive_under_their_ids_in_a_collection_made_for_them(
    server: CollectionServer, target: UploadTarget, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "images", 10)
    assert await send(replace(target, conditions=["color", "shape"]), source) == []
    assert {i: data for i, (data, _) in server.images.items()} == {
        f"{number:02d}.jpg": f"image {number}".encode() for number in range(10)
    }
    assert server.conditions == ["color", "shape"]
    assert sorted(server.batch_sizes) == [2, 4, 4]


async def test_metadata_goes_with_its_image(server: CollectionServer, target: UploadTarget, tmp_path: Path) -> None:
    await send(target, write_shard(tmp_path / "a.tar", range(5)))
    assert {i: metadata for i, (_, metadata) in server.images.items()} == {
        f"{number:03d}": {"number": number} for number in range(5)
    }


async def test_what_is_there_already_is_not_sent_again(
    server: CollectionServer, target: UploadTarget, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "images", 10)
    await send(target, source)
    server.batch_sizes.clear()
    for gone in ("03.jpg", "07.jpg"):
        del server.images[gone]
    assert await send(target, source) == []
    assert server.batch_sizes == [2]
    assert len(server.images) == 10
    assert server.requests["GET /collections/photos/images"] == 1 + 3  # none is there, then 8, 3 a page
    assert await send(replace(target, skips_present=False), source) == []
    assert sorted(server.batch_sizes) == [2, 2, 4, 4]


async def test_bad_days_of_the_service_lose_and_skip_nothing(
    server: CollectionServer, target: UploadTarget, tmp_path: Path
) -> None:
    busy = error(503, "The queue is full.", headers={"retry-after-ms": "3"})
    slow_down = error(429, "Slow down.", headers={"Retry-After": "0"})
    gateway = web.Response(status=502, text="<html>")
    server.faults = [busy, Dropped, None, slow_down, gateway, Dropped, None, error(504, "Too late.")]
    server.lost_answers = 3
    server.num_not_yet = 4
    assert await send(target, write_files(tmp_path / "images", 40)) == []
    assert len(server.images) == 40
    assert not server.faults
    assert set(server.batch_sizes) == {4}
    assert server.most_at_once <= target.num_in_flight


async def test_several_requests_are_on_their_way(
    server: CollectionServer, target: UploadTarget, tmp_path: Path
) -> None:
    server.gathers = target.num_in_flight
    await send(replace(target, batch_size=1), write_files(tmp_path / "images", 80))
    assert server.most_at_once == target.num_in_flight


@pytest.mark.parametrize("blames", [True, False])
async def test_only_the_image_at_fault_is_skipped(
    server: CollectionServer, target: UploadTarget, tmp_path: Path, blames: bool
) -> None:
    server.blames = blames
    server.images["05.jpg"] = (b"another", {})
    source = write_files(tmp_path / "images", 10, damaged=(1, 2, 9))
    skipped = await send(replace(target, skips_present=False), source)
    assert sorted(skipped, key=lambda one: one.id) == [
        Skipped("01.jpg", "The image is damaged."),
        Skipped("02.jpg", "The image is damaged."),
        Skipped("05.jpg", "There is another image '05.jpg'."),
        Skipped("09.jpg", "The image is damaged."),
    ]
    assert len(server.images) == 7
    assert server.images["05.jpg"] == (b"another", {})
    # 3 batches, and one more time for each image at fault, or for each image of their batches
    assert server.requests["POST /collections/photos/images"] == 3 + (4 if blames else 10)


async def test_what_can_not_be_read_is_skipped(server: CollectionServer, target: UploadTarget, tmp_path: Path) -> None:
    source = write_files(tmp_path / "images", 2)
    (source / "gone.jpg").symlink_to(tmp_path / "nowhere")
    listing = list_images([str(source)])
    (source / "01.jpg").unlink()
    skipped: list[Skipped] = []
    await upload(target, listing, Bars(Console(file=StringIO())), skipped.append)
    assert skipped == [
        Skipped("gone.jpg", "No such file or directory"),
        Skipped("01.jpg", "No such file or directory"),
    ]
    assert list(server.images) == ["00.jpg"]


async def test_a_service_that_stays_away_is_given_up(
    server: CollectionServer, target: UploadTarget, tmp_path: Path
) -> None:
    server.faults = [error(503, "Draining.") for _ in range(10_000)]
    impatient = replace(target, patience=replace(PATIENCE, give_up_after_s=0.05))
    with pytest.raises(Unavailable, match=r"has not responded for 0\.05 s: 503: Draining"):
        await send(impatient, write_files(tmp_path / "images", 10))


async def test_where_nobody_listens_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        target = UploadTarget(f"http://127.0.0.1:{taken.getsockname()[1]}", "photos")
        with pytest.raises(Unavailable, match="no Fovea at"):
            await send(target, write_files(tmp_path / "images", 1))


async def test_a_wrong_key_ends_the_upload(server: CollectionServer, target: UploadTarget, tmp_path: Path) -> None:
    server.key = "right"
    source = write_files(tmp_path / "images", 10)
    with pytest.raises(CallRefused, match="There is no such key"):
        await send(replace(target, api_key="wrong"), source)
    assert await send(replace(target, api_key="right"), source) == []


async def test_a_full_collection_ends_the_upload(
    server: CollectionServer, target: UploadTarget, tmp_path: Path
) -> None:
    server.faults = [error(413, "The limit is 7.", code="collection_full")]
    with pytest.raises(CallRefused, match="The limit is 7"):
        await send(target, write_files(tmp_path / "images", 10))


async def test_the_indexes_are_waited_for(server: CollectionServer, target: UploadTarget, tmp_path: Path) -> None:
    server.num_waiting = 10
    await send(replace(target, poll_s=0.001), write_files(tmp_path / "images", 10))
    assert server.requests["GET /collections/photos"] == 3
    await send(replace(target, waits=False), tmp_path / "images")
    assert server.requests["GET /collections/photos"] == 3


async def test_batches_are_bounded_by_bytes(tmp_path: Path) -> None:
    source = write_files(tmp_path / "images", 6)
    for number, num_bytes in enumerate((MAX_BATCH_BYTES, MAX_BATCH_BYTES // 2, MAX_BATCH_BYTES // 2, 1, 1)):
        os.truncate(source / f"{number:02d}.jpg", num_bytes)
    batches = in_batches(each(list_images([str(source)]).images), 2)
    assert [[image.id[:2] for image in batch] async for batch in batches] == [
        ["00"],
        ["01", "02"],
        ["03", "04"],
        ["05"],
    ]


async def run_command(server: CollectionServer, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cli.main", "embed-bulk", *arguments, "--url", f"{server.url}/v1",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_the_command_prints_what_was_skipped_and_ends_with_status_3(
    server: CollectionServer, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "images", 10, damaged=(4,))
    process = await run_command(server, str(source), "--collection", "photos")
    stdout, stderr = await process.communicate()
    assert (process.returncode, stdout) == (3, b'{"id": "04.jpg", "reason": "The image is damaged."}\n'), stderr
    assert b"9 added, 0 already present, 1 skipped: photos" in stderr
    (source / "04.jpg").unlink()
    process = await run_command(server, str(source), "--collection", "photos")
    stdout, stderr = await process.communicate()
    assert (process.returncode, stdout) == (0, b""), stderr


async def test_ctrl_c_ends_the_upload_with_a_sentence_and_the_same_command_goes_on(
    server: CollectionServer, tmp_path: Path
) -> None:
    source = write_files(tmp_path / "images", 10)
    server.faults = [None, *(error(503, "Draining.", headers={"retry-after": "60"}) for _ in range(9))]
    process = await run_command(server, str(source), "--collection", "photos", "--batch-size", "1")
    while len(server.images) < 1 or len(server.faults) > 5:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # the command says nothing to us before its end
    process.send_signal(signal.SIGINT)
    _, stderr = await process.communicate()
    assert process.returncode == 130, stderr
    assert stderr.strip().endswith(b"Stopped. Run the same command to continue.")
    assert b"Traceback" not in stderr
    server.faults.clear()
    process = await run_command(server, str(source), "--collection", "photos")
    await process.communicate()
    assert process.returncode == 0
    assert len(server.images) == 10


async def test_a_killed_upload_is_continued(server: CollectionServer, tmp_path: Path) -> None:
    source = write_files(tmp_path / "images", 30)
    draining = [error(503, "Draining.", headers={"retry-after": "60"}) for _ in range(4)]
    server.faults = [*[None] * 5, *draining]
    process = await run_command(server, str(source), "--collection", "photos", "--batch-size", "2")
    while server.faults:  # noqa: ASYNC110
        await asyncio.sleep(0.01)  # nothing announces it
    process.kill()
    await process.communicate()
    num_before = len(server.images)
    assert 0 < num_before < 30
    server.batch_sizes.clear()
    process = await run_command(server, str(source), "--collection", "photos", "--batch-size", "2")
    await process.communicate()
    assert process.returncode == 0
    assert len(server.images) == 30
    assert sum(server.batch_sizes) == 30 - num_before
