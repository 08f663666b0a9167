"""`fovea embed-bulk --output` with and without Ray on one machine, and jobs on Ray that are killed.

python -m benchmarks.bulk_ray [--rounds 1] [--images 20000]

The packaged starter, without a condition, on rendered scenes of its own size as JPEG files. The plain job, Ray with one
worker and Ray with two run in turn, each from listing to the last file; Ray itself is started before, and its start is
told apart, as is that of the workers within the job. Then two jobs by two workers are killed once they have written a
file: one loses a worker, the other its own process and is continued without Ray. The files are compared by digest.
"""

import argparse
import hashlib
import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.bulk import STARTER, STARTER_SIDE
from benchmarks.record import record, summary
from services.embed.bulk.image_sources import list_images
from services.embed.bulk.ray_pool import RayOptions, connected
from services.embed.bulk.to_files import OutputRequest, embed_into_files
from services.embed.evaluation.colorshape import rendered
from services.jobs.colorshape import sample_scenes
from services.jobs.progress import Bars

# Each scene is written so often, each time compressed a little more.
QUALITIES = range(95, 75, -2)
SHARD_SIZE = 2000


def write_scenes(folder: Path, num_images: int) -> Path:
    folder.mkdir()
    num_scenes = -(-num_images // len(QUALITIES))
    drawn = rendered(sample_scenes(num_scenes, torch.Generator().manual_seed(5)), STARTER_SIDE)
    for number, data in zip(range(num_images), _compressed(drawn), strict=False):
        (folder / f"{number:05d}.jpg").write_bytes(data)
    return folder


def _compressed(images: Iterable[Image.Image]) -> Iterable[bytes]:
    for image in images:
        for quality in QUALITIES:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=quality)
            yield file.getvalue()


def digest(output: Path) -> str:
    """Digest of all files of a job, by name."""
    sha256 = hashlib.sha256()
    for path in sorted(output.iterdir()):
        sha256.update(path.name.encode() + b"\0" + path.read_bytes())
    return sha256.hexdigest()


def images_per_s(source: Path, output: Path, ray: RayOptions | None) -> float:
    began = time.perf_counter()
    listing = list_images([str(source)])
    request = OutputRequest(output, str(STARTER), devices=["cpu"], shard_size=SHARD_SIZE, ray=ray)
    embed_into_files(request, listing, Bars(Console(file=io.StringIO())))
    return len(listing.images) / (time.perf_counter() - began)


def command(source: Path, output: Path, *options: str) -> list[str]:
    given = [str(source), f"--output={output}", f"--checkpoint={STARTER}", f"--shard-size={SHARD_SIZE}", "--device=cpu"]
    return [sys.executable, "-m", "services.cli.main", "embed-bulk", *given, *options]


def begin(source: Path, output: Path) -> subprocess.Popen[bytes]:
    """Begin a job on Ray, and return once it has written a file."""
    job = subprocess.Popen(command(source, output, "--ray=local", "--workers=2"), stdout=subprocess.DEVNULL)
    while not list(output.glob("embeddings-*.npy")) and job.poll() is None:
        time.sleep(0.01)
    return job


def kill(source: Path, folder: Path) -> dict[str, Any]:
    """Kill a job's worker, and a job. Returns the digests of what they wrote, and the files that were there."""
    output = folder / "worker-killed"
    job = begin(source, output)
    workers = [
        one for one in psutil.Process(job.pid).children(recursive=True) if "MapWorker" in " ".join(one.cmdline())
    ]
    workers[0].kill()
    before = len(list(output.glob("embeddings-*.npy")))
    status = job.wait()
    found = {"worker": {"digest": digest(output), "files_before": before, "status": status}}
    output = folder / "job-killed"
    job = begin(source, output)
    job.send_signal(signal.SIGKILL)
    job.wait()
    before = len(list(output.glob("embeddings-*.npy")))
    status = subprocess.run(command(source, output), check=False).returncode
    return found | {"job": {"digest": digest(output), "files_before": before, "status": status}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--images", type=int, default=20_000)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {}
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        source = write_scenes(Path(folder) / "scenes", arguments.images)
        began = time.perf_counter()
        with connected(RayOptions(num_workers=2)):
            start_s = time.perf_counter() - began
            jobs = {
                "plain": None,
                "ray, 1 worker": RayOptions(num_workers=1),
                "ray, 2 workers": RayOptions(num_workers=2),
            }
            for number in range(arguments.rounds):
                for name, ray in jobs.items():
                    output = Path(folder) / f"{name}-{number}"
                    rates.setdefault(name, []).append(images_per_s(source, output, ray))
                    digests[f"{name}, {number}"] = digest(output)
        killed = kill(source, Path(folder))
        digests |= {f"{name} killed": one["digest"] for name, one in killed.items()}
        (plan,) = {(path / "bulk.json").read_bytes() for path in Path(folder).glob("*-0")}
        lines = [line for path in sorted((Path(folder) / "job-killed").glob("ids-*")) for line in path.open()]
        ids = [json.loads(line)["id"] for line in lines]
    assert json.loads(plan)["num_images"] == len(ids) == len(set(ids)) == arguments.images
    result = {
        "images": arguments.images,
        "images_per_s": {name: summary(values) for name, values in rates.items()},
        "ray_start_s": start_s,
        "killed": {name: {key: one[key] for key in ("files_before", "status")} for name, one in killed.items()},
        "distinct_digests": len(set(digests.values())),
    }
    table = Table("job", "images/s", title="Bulk embedding on Ray")
    for name, values in rates.items():
        table.add_row(name, ", ".join(f"{value:.0f}" for value in values))
    Console().print(table)
    record("bulk_ray", result)


if __name__ == "__main__":
    main()
