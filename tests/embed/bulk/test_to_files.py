"""`fovea embed-bulk --output`: what is written, and that a job that ended anyhow is continued to the same bytes."""

import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from safetensors.numpy import save_file
from structlog.testing import capture_logs

from services.embed.bulk.folder import EmbeddingError, OutputError
from services.embed.bulk.image_sources import list_images
from services.embed.bulk.to_files import OutputRequest, embed_into_files
from services.embed.focallens import Visibility
from services.embed.model.focallens_engine import MAX_READOUTS_AT_ONCE, FocalLensEngine
from services.jobs.progress import Bars
from services.nn.devices import DeviceOptions
from tests.embed.bulk_sources import jpeg, write_images, write_shard
from tests.embed.tiny import EMBEDDING_WIDTH, write_tiny_checkpoint

pytestmark = pytest.mark.process

CONDITIONS = ("what color is it?", "what shape is it?")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture
def bars() -> Bars:
    return Bars(Console(stderr=True))


def request_for(output: Path, checkpoint: Path, **changes: Any) -> OutputRequest:
    request = OutputRequest(
        output, str(checkpoint), CONDITIONS, shard_size=8, batch_size=3, devices=["cpu"], num_threads=3
    )
    return replace(request, **changes)


def read_embeddings(output: Path) -> np.ndarray[Any, Any]:
    return np.concatenate([np.load(path) for path in sorted(output.glob("embeddings-*.npy"))])


def read_lines(output: Path, pattern: str) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(output.glob(pattern)) for line in path.read_text().splitlines()]


def contents(output: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in output.iterdir()}


def expected_embeddings(checkpoint: Path, images: Sequence[Path], conditions: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return the service engine's embeddings, computed one image at a time."""
    engine = FocalLensEngine.load(checkpoint, DeviceOptions("cpu"))
    texts = tuple(engine.prepare_text(text) for text in conditions)
    answers = []
    for path in images:
        items = engine.prepare_image(Image.open(path).convert("RGB"), path.name, texts or (None,))
        answers.append(np.concatenate([engine.run_batch([item])[0].rows for item in items]))
    return np.stack(answers)


@pytest.mark.parametrize("visibility", ["readout", "full"])
@pytest.mark.parametrize("conditions", [CONDITIONS, ()])
def test_embeddings_are_those_of_the_service_in_the_order_of_the_ids(
    tmp_path: Path, bars: Bars, visibility: Visibility, conditions: Sequence[str]
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny", visibility=visibility)
    source = write_images(tmp_path / "images", 20)
    request = request_for(tmp_path / "out", checkpoint, conditions=conditions)
    assert embed_into_files(request, list_images([str(source)]), bars) == 0
    embeddings = read_embeddings(tmp_path / "out")
    expected = expected_embeddings(checkpoint, sorted(source.iterdir()), conditions)
    assert embeddings.shape == (20, max(1, len(conditions)), EMBEDDING_WIDTH)
    np.testing.assert_allclose(embeddings, expected, atol=1e-5)
    assert read_lines(tmp_path / "out", "ids-*.jsonl") == [
        {"id": f"{number:03d}.jpg", "metadata": None} for number in range(20)
    ]
    assert sorted(contents(tmp_path / "out")) == [
        "bulk.json",
        *(f"embeddings-0000{shard}.npy" for shard in range(3)),
        *(f"ids-0000{shard}.jsonl" for shard in range(3)),
        "skipped.jsonl",
    ]


@pytest.mark.parametrize("visibility", ["readout", "full"])
def test_more_conditions_than_one_pass_takes_make_no_difference(
    tmp_path: Path, bars: Bars, visibility: Visibility
) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny", visibility=visibility)
    conditions = [f"what is number {number}?" for number in range(MAX_READOUTS_AT_ONCE // 3 + 5)]
    source = write_images(tmp_path / "images", 3)
    embed_into_files(request_for(tmp_path / "out", checkpoint, conditions=conditions), list_images([str(source)]), bars)
    expected = expected_embeddings(checkpoint, sorted(source.iterdir()), conditions)
    np.testing.assert_allclose(read_embeddings(tmp_path / "out"), expected, atol=1e-5)


def test_what_is_damaged_is_skipped_and_listed(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    source = write_images(tmp_path / "images", 20, damaged=(0, 9, 10, 11, 12, 13, 14, 15, 16))
    (source / "gone.jpg").symlink_to(tmp_path / "nowhere")
    assert embed_into_files(request_for(tmp_path / "out", checkpoint), list_images([str(source)]), bars) == 10
    skipped = read_lines(tmp_path / "out", "skipped*.jsonl")
    assert [one["id"] for one in skipped] == ["gone.jpg", "000.jpg", *(f"{n:03d}.jpg" for n in range(9, 17))]
    assert skipped[0]["reason"] == "No such file or directory"
    assert "ends before its image data" in skipped[1]["reason"]
    kept = [f"{number:03d}.jpg" for number in (*range(1, 9), *range(17, 20))]
    assert [record["id"] for record in read_lines(tmp_path / "out", "ids-*.jsonl")] == kept
    expected = expected_embeddings(checkpoint, [source / name for name in kept], CONDITIONS)
    np.testing.assert_allclose(read_embeddings(tmp_path / "out"), expected, atol=1e-5)


def test_a_shard_without_one_good_image_is_empty(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    source = write_images(tmp_path / "images", 10, damaged=tuple(range(8)))
    assert embed_into_files(request_for(tmp_path / "out", checkpoint), list_images([str(source)]), bars) == 8
    assert np.load(tmp_path / "out" / "embeddings-00000.npy").shape == (0, 2, EMBEDDING_WIDTH)
    assert read_embeddings(tmp_path / "out").shape == (2, 2, EMBEDDING_WIDTH)


def test_metadata_of_a_webdataset_stands_beside_the_ids(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    write_shard(tmp_path / "a-0.tar", range(6))
    write_shard(tmp_path / "a-1.tar", range(6, 11))
    embed_into_files(request_for(tmp_path / "out", checkpoint), list_images([f"{tmp_path}/a-{{0..1}}.tar"]), bars)
    assert read_lines(tmp_path / "out", "ids-*.jsonl") == [
        {"id": f"{number:03d}", "metadata": {"number": number}} for number in range(11)
    ]
    folder = write_images(tmp_path / "images", 11)
    embed_into_files(request_for(tmp_path / "plain", checkpoint), list_images([str(folder)]), bars)
    assert (read_embeddings(tmp_path / "out") == read_embeddings(tmp_path / "plain")).all()


def test_what_unicode_ends_lines_with_ends_no_line_of_ids(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    names = ("one\u2028two", "one\u2029two", "one\u0085two")
    folder = write_images(tmp_path / "images", 3)
    for number, name in enumerate(names):
        (folder / f"{number:03d}.jpg").rename(folder / f"{name}.jpg")
    embed_into_files(request_for(tmp_path / "out", checkpoint), list_images([str(folder)]), bars)
    (file,) = (tmp_path / "out").glob("ids-*.jsonl")
    ids = [json.loads(line)["id"] for line in file.read_text(encoding="utf-8").splitlines()]
    assert sorted(ids) == sorted(f"{name}.jpg" for name in names) or sorted(ids) == sorted(names)


def test_an_image_without_its_last_bytes_and_metadata_that_is_not_finite_are_embedded(
    tmp_path: Path, checkpoint: Path, bars: Bars
) -> None:
    members = {"0.jpg": jpeg(0)[:-2], "0.json": b'{"price": NaN, "kept": 1}', "1.jpg": jpeg(1)}
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))
    with capture_logs() as logs:
        embed_into_files(request_for(tmp_path / "out", checkpoint), list_images([str(tmp_path / "a.tar")]), bars)
    assert read_lines(tmp_path / "out", "ids-*.jsonl")[0] == {"id": "0", "metadata": {"kept": 1}}
    assert read_lines(tmp_path / "out", "skipped.jsonl") == []
    assert {log["log_level"] for log in logs} == {"warning"} and len(logs) == 2


def test_float16_files_hold_the_same_embeddings_rounded(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 5))])
    embed_into_files(request_for(tmp_path / "wide", checkpoint), listing, bars)
    embed_into_files(request_for(tmp_path / "half", checkpoint, dtype="float16"), listing, bars)
    half = read_embeddings(tmp_path / "half")
    assert half.dtype == np.float16
    assert (half == read_embeddings(tmp_path / "wide").astype(np.float16)).all()


def test_processes_on_several_devices_write_what_one_writes(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 30, damaged=(4, 29)))])
    assert embed_into_files(request_for(tmp_path / "one", checkpoint), listing, bars) == 2
    shown = StringIO()
    request = request_for(tmp_path / "two", checkpoint, devices=["cpu", "cpu"])
    assert embed_into_files(request, listing, Bars(Console(file=shown, width=200, force_terminal=True))) == 2
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert "30/30" in shown.getvalue()


def test_a_process_that_dies_ends_the_job_which_is_then_continued(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 30))])
    request = request_for(tmp_path / "out", checkpoint, devices=["cpu", "cpu"])
    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(embed_into_files, request, listing, bars)
        while not (workers := multiprocessing.active_children()) and not job.done():
            time.sleep(0.001)  # a process that starts tells only the one that started it
        os.kill(workers[0].ident or 0, signal.SIGKILL)
        with pytest.raises(EmbeddingError, match="the process on cpu ended with status -9"):
            job.result()
    assert not multiprocessing.active_children()
    assert not (tmp_path / "out" / "skipped.jsonl").exists()
    assert embed_into_files(replace(request, devices=["cpu"]), listing, bars) == 0
    assert read_embeddings(tmp_path / "out").shape == (30, 2, EMBEDDING_WIDTH)


def test_a_device_that_is_not_there_is_named(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 9))])
    with pytest.raises(EmbeddingError, match=r"tiny: .*nonsense"):
        embed_into_files(request_for(tmp_path / "one", checkpoint, devices=["nonsense"]), listing, bars)
    with pytest.raises(EmbeddingError, match=r"nonsense: .*nonsense"):
        embed_into_files(request_for(tmp_path / "two", checkpoint, devices=["cpu", "nonsense"]), listing, bars)


def test_a_finished_job_does_nothing_again(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    source = write_images(tmp_path / "images", 9, damaged=(3,))
    listing = list_images([str(source)])
    request = request_for(tmp_path / "out", checkpoint)
    embed_into_files(request, listing, bars)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    shutil.rmtree(source)  # so it can't be reading it
    assert embed_into_files(request, listing, bars) == 1
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"conditions": ["what is it?"]}, r'conditions was \["what color.*\] and is now \["what is it\?"\]'),
        ({"dtype": "float16"}, 'dtype was "float32" and is now "float16"'),
        ({"shard_size": 9}, "shard_size was 8 and is now 9"),
        ({"precision": "bfloat16"}, 'precision was "float32" and is now "bfloat16"'),
    ],
)
def test_other_arguments_are_refused_by_name(
    tmp_path: Path, checkpoint: Path, bars: Bars, changes: dict[str, Any], difference: str
) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 9))])
    request = request_for(tmp_path / "out", checkpoint)
    embed_into_files(request, listing, bars)
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match=difference):
        embed_into_files(replace(request, **changes), listing, bars)
    assert contents(tmp_path / "out") == before
    embed_into_files(replace(request, **changes, overwrite=True), listing, bars)
    embed_into_files(request_for(tmp_path / "fresh", checkpoint, **changes), listing, bars)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_another_checkpoint_is_refused_though_it_has_the_same_name(tmp_path: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 3))])
    for seed in (0, 1):
        request = request_for(tmp_path / "out", write_tiny_checkpoint(tmp_path / f"{seed}" / "tiny", seed=seed))
        if seed == 0:
            embed_into_files(request, listing, bars)
    with pytest.raises(OutputError, match="other arguments: digest was"):
        embed_into_files(request, listing, bars)


def test_a_source_that_changed_is_refused_with_the_images_in_question(
    tmp_path: Path, checkpoint: Path, bars: Bars
) -> None:
    source = write_images(tmp_path / "images", 20)
    request = request_for(tmp_path / "out", checkpoint)
    embed_into_files(request, list_images([str(source)]), bars)
    os.utime(source / "010.jpg", ns=(1, 1))
    with pytest.raises(OutputError, match=r"images 8 to 15 of the source changed: .* between 008\.jpg and 015\.jpg"):
        embed_into_files(request, list_images([str(source)]), bars)
    (source / "019.jpg").rename(source / "0000.jpg")
    moved = r"images 0 to 7 .*: they were 000\.jpg to 007\.jpg and are now 000\.jpg to 006"
    with pytest.raises(OutputError, match=moved):
        embed_into_files(request, list_images([str(source)]), bars)
    (source / "0000.jpg").unlink()
    with pytest.raises(OutputError, match="num_images was 20 and is now 19"):
        embed_into_files(request, list_images([str(source)]), bars)


def test_embeddings_without_a_plan_are_not_taken_for_finished(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 3))])
    embed_into_files(request_for(tmp_path / "out", checkpoint, conditions=()), listing, bars)
    for content in (None, b"{", b"[]", b'{"shards": 7}'):
        (tmp_path / "out" / "bulk.json").unlink()
        if content is not None:
            (tmp_path / "out" / "bulk.json").write_bytes(content)
        with pytest.raises(OutputError, match=r"no bulk\.json|not a valid plan|other arguments"):
            embed_into_files(request_for(tmp_path / "out", checkpoint), listing, bars)
        embed_into_files(request_for(tmp_path / "out", checkpoint, overwrite=True), listing, bars)
        assert read_embeddings(tmp_path / "out").shape == (3, 2, EMBEDDING_WIDTH)


def test_overwriting_leaves_files_of_others_alone(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 20))])
    embed_into_files(request_for(tmp_path / "out", checkpoint), listing, bars)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    embed_into_files(request_for(tmp_path / "out", checkpoint, shard_size=16, overwrite=True), listing, bars)
    assert (tmp_path / "out" / "notes.txt").read_text() == "mine"
    assert sorted(path.name for path in (tmp_path / "out").glob("*.npy")) == [
        "embeddings-00000.npy",
        "embeddings-00001.npy",
    ]


def test_conditions_that_the_checkpoint_can_not_follow_are_refused(
    tmp_path: Path, checkpoint: Path, bars: Bars
) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 1))])
    request = request_for(tmp_path / "out", checkpoint, conditions=["color " * 40])
    with pytest.raises(EmbeddingError, match="has 42 tokens: this model accepts at most 16"):
        embed_into_files(request, listing, bars)
    assert not (tmp_path / "out").exists()


def test_a_plain_clip_has_its_plain_embedding_to_give(tmp_path: Path, bars: Bars) -> None:
    starter = Path(__file__).parents[3] / "services" / "embed" / "starter" / "clip-shapes"
    listing = list_images([str(write_images(tmp_path / "images", 3))])
    embed_into_files(request_for(tmp_path / "out", starter, conditions=()), listing, bars)
    assert np.linalg.norm(read_embeddings(tmp_path / "out"), axis=2) == pytest.approx(1, abs=1e-5)
    with pytest.raises(EmbeddingError, match="embeds images without a condition"):
        embed_into_files(request_for(tmp_path / "other", starter), listing, bars)


def test_a_folder_with_the_configuration_of_a_model_alone_is_refused(tmp_path: Path, bars: Bars) -> None:
    listing = list_images([str(write_images(tmp_path / "images", 1))])
    (tmp_path / "llava").mkdir()
    (tmp_path / "llava" / "config.json").write_text('{"model_type": "llava"}')
    with pytest.raises(EmbeddingError, match=r"has no model\.safetensors"):
        embed_into_files(request_for(tmp_path / "other", tmp_path / "llava"), listing, bars)
    save_file({"image_newline": np.zeros(8)}, tmp_path / "llava" / "model.safetensors")
    with pytest.raises(EmbeddingError, match="is not of a LLaVA"):
        embed_into_files(request_for(tmp_path / "other", tmp_path / "llava"), listing, bars)


def test_a_folder_that_another_job_writes_to_is_refused(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    (tmp_path / "out").mkdir()
    descriptor = os.open(tmp_path / "out", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(OutputError, match="another job is writing"):
        embed_into_files(
            request_for(tmp_path / "out", checkpoint), list_images([str(write_images(tmp_path / "i", 1))]), bars
        )
    os.close(descriptor)


def kill_jobs(*arguments: object) -> int:
    """See `killed_bulk_job`; returns the number of jobs."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.embed.killed_bulk_job", *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.slow
def test_a_job_killed_at_any_of_its_writes_is_continued_to_the_same_bytes(tmp_path: Path, checkpoint: Path) -> None:
    source = write_images(tmp_path / "images", 12, damaged=(2, 9))
    num_jobs = kill_jobs("writes", checkpoint, source, tmp_path / "out")
    assert num_jobs > 15  # so the writes were seen
    whole = contents(tmp_path / "out" / str(num_jobs))  # the one that was not killed
    assert len(whole) == 6
    for number in range(1, num_jobs):
        assert contents(tmp_path / "out" / str(number)) == whole, number


@pytest.mark.slow
def test_a_job_killed_while_it_overwrites_never_mixes_old_and_new(tmp_path: Path, checkpoint: Path, bars: Bars) -> None:
    source = write_images(tmp_path / "images", 12, damaged=(2, 9))
    embed_into_files(request_for(tmp_path / "old", checkpoint, dtype="float16"), list_images([str(source)]), bars)
    kill_jobs("times", checkpoint, source, tmp_path / "whole")
    num_jobs = kill_jobs("writes", checkpoint, source, tmp_path / "out", tmp_path / "old")
    assert num_jobs > 20  # removals among them
    for number in range(1, num_jobs + 1):
        assert contents(tmp_path / "out" / str(number)) == contents(tmp_path / "whole"), number


def test_a_job_killed_again_and_again_ends_with_the_same_bytes(tmp_path: Path, checkpoint: Path) -> None:
    source = write_images(tmp_path / "images", 60, damaged=(5, 31))
    kill_jobs("times", checkpoint, source, tmp_path / "whole")
    generator = random.Random(3)
    kill_jobs("times", checkpoint, source, tmp_path / "out", *(generator.uniform(0.02, 0.4) for _ in range(12)))
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
