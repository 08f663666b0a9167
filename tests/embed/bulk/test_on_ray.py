"""Jobs on a real Ray of this machine, started once: what they write is what they write without it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from services.embed.bulk.folder import EmbeddingError
from services.embed.bulk.image_sources import list_images
from services.embed.bulk.ray_pool import MAX_ATTEMPTS, Cluster, Pool, RayError, RayOptions, connected, mapped
from services.embed.bulk.to_files import OutputRequest, embed_into_files
from services.jobs.checkpoints import CheckpointSource
from services.jobs.progress import Bar, Bars
from tests.embed.bulk_sources import write_images, write_shard
from tests.embed.tiny import write_tiny_checkpoint

pytestmark = [
    pytest.mark.process,
    # Ray sets its own deprecated options when its context is made.
    pytest.mark.filterwarnings("ignore:`use_(push_based_shuffle|polars|arrow_tensor_v2)` is deprecated"),
    # Sockets and files of Ray's that the garbage collector finds.
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
]

CONDITIONS = ("what color is it?", "what shape is it?")
ON_RAY = RayOptions(num_workers=2)
# Where two workers show no more than one: each imports what it needs anew.
BY_ONE = RayOptions(num_workers=1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with connected(ON_RAY) as cluster:
        yield cluster


@pytest.fixture
def pool(cluster: Cluster) -> Pool:
    return cluster.pool(BY_ONE, uses_gpus=False)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny")


def embed(checkpoint: Path, source: Path | str, output: Path, bars: Bars | None = None, **changes: Any) -> int:
    options: dict[str, Any] = {"shard_size": 16, "batch_size": 1, "devices": ["cpu"]} | changes
    request = OutputRequest(output, str(checkpoint), CONDITIONS, **options)
    return embed_into_files(request, list_images([str(source)]), bars or Bars(Console(file=StringIO())))


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


def workers() -> list[psutil.Process]:
    """The processes of the pool at work."""
    return [one for one in psutil.Process().children(recursive=True) if "ray::_Worker" in " ".join(one.cmdline())]


class KillingBars(Bars):
    """Bars that kill a worker as soon as there is progress."""

    num_killed = 0

    @contextmanager
    def bar(self, *arguments: Any, **options: Any) -> Iterator[Bar]:
        with super().bar(*arguments, **options) as bar:
            advance = bar.advance

            def kill_and_advance(number: int = 1, told: str | None = None) -> None:
                if not self.num_killed:
                    self.num_killed += 1
                    workers()[0].kill()
                advance(number, told)

            bar.advance = kill_and_advance  # type: ignore[method-assign]
            yield bar


def fails_at_seven(how: str) -> Callable[[int], tuple[int, int]]:
    def work(number: int) -> tuple[int, int]:
        if number == 7 and how == "dies":
            os._exit(1)
        if number == 7 and how == "breaks":
            raise ZeroDivisionError("seven breaks it")
        return number, os.getpid()

    return work


@pytest.mark.parametrize(
    ("how", "told"),
    [
        # a worker has two items in hand, and the result of the first may be lost with it
        ("dies", f"{MAX_ATTEMPTS} workers died, one after the other, of [67]"),
        ("breaks", "the workers on Ray failed: ZeroDivisionError: seven breaks it"),
    ],
)
def test_an_item_that_can_not_be_done_ends_the_job_with_a_sentence(pool: Pool, how: str, told: str) -> None:
    with pytest.raises(RayError, match=told):
        list(mapped(range(9), partial(fails_at_seven, how), pool))


def test_folders_and_tars_give_the_plain_loops_bytes_though_a_worker_is_killed(
    cluster: Cluster, checkpoint: Path, tmp_path: Path
) -> None:
    source = write_images(tmp_path / "images", 90, damaged=(5, 31))
    write_shard(source / "a.tar", range(200, 210))
    assert embed(checkpoint, source, tmp_path / "plain") == 2
    bars = KillingBars(Console(file=StringIO()))
    assert embed(checkpoint, source, tmp_path / "ray", bars, ray=ON_RAY) == 2
    assert bars.num_killed == 1
    assert contents(tmp_path / "ray") == contents(tmp_path / "plain")


def test_ray_continues_what_was_begun_without_it(cluster: Cluster, checkpoint: Path, tmp_path: Path) -> None:
    source = f"file://{write_images(tmp_path / 'images', 40)}"
    embed(checkpoint, source, tmp_path / "out")
    whole = contents(tmp_path / "out")
    for written in ("embeddings-00001.npy", "skipped.jsonl"):
        (tmp_path / "out" / written).unlink()  # as if it had been killed before these
    embed(checkpoint, source, tmp_path / "out", ray=BY_ONE)
    assert contents(tmp_path / "out") == whole


def test_a_worker_that_finds_another_checkpoint_is_refused(
    cluster: Cluster, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointSource, "digest", lambda source: "of this machine")
    with pytest.raises(EmbeddingError, match="tiny differs between this machine and a worker's"):
        embed(checkpoint, write_images(tmp_path / "images", 2), tmp_path / "out", ray=BY_ONE)


def test_a_gpu_is_not_chosen_by_its_number(cluster: Cluster, checkpoint: Path, tmp_path: Path) -> None:
    source = write_images(tmp_path / "images", 1)
    with pytest.raises(EmbeddingError, match="with --ray a device is cpu or cuda"):
        embed(checkpoint, source, tmp_path / "out", ray=BY_ONE, devices=["cuda:0"])


def test_a_killed_job_is_continued_without_ray_to_the_same_bytes(checkpoint: Path, tmp_path: Path) -> None:
    source = write_images(tmp_path / "images", 40, damaged=(3,))
    embed(checkpoint, source, tmp_path / "plain")
    output = tmp_path / "out"
    options = ["--shard-size=16", "--batch-size=1", "--device=cpu", *(f"--condition={one}" for one in CONDITIONS)]
    job = [
        "embed-bulk",
        str(source),
        f"--output={output}",
        f"--checkpoint={checkpoint}",
        *options,
        "--ray=local",
        "--workers=1",
    ]
    killed = [sys.executable, "-m", "tests.embed.bulk.killed_job", str(output / "embeddings-00001.npy"), *job]
    done = subprocess.run(killed, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(list(output.glob("embeddings-*.npy"))) < 3
    assert not (output / "skipped.jsonl").exists()
    assert embed(checkpoint, source, output) == 1
    assert contents(output) == contents(tmp_path / "plain")


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nonsense", "no Ray at nonsense: Invalid address format: nonsense\n"),
        ("127.0.0.1:1", "no Ray at 127.0.0.1:1: [Errno 111] Connection refused\n"),
        # left by a cluster that ended
        ("auto", "no Ray at auto: [Errno 111] Connection refused\n"),
    ],
)
def test_a_ray_that_is_not_there_is_told_in_one_sentence(address: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:1\n")
    script = f"""
from services.embed.bulk.ray_pool import RayError, RayOptions, connected
try:
    with connected(RayOptions("{address}")):
        pass
except RayError as error:
    print(error)
"""
    environment = {**os.environ, "RAY_TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout == told
