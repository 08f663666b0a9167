"""`fovea embed-bulk --output` against a plain torch loop over the same files and the same checkpoint.

python -m benchmarks.bulk [--rounds 5] [--images 2000]

The packaged starter, without a condition, on rendered scenes of its own size and on photographs of 640 x 480 and of
4032 x 3024, all as JPEG files. The whole job is timed: listing, loading the checkpoint, embedding, files on disk. The
loop reads, decodes, transforms and embeds one batch after the other with all threads, stores nothing, and has its model
loaded. Both run in turn on the same cores.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.embed import PlainLoop
from benchmarks.photographs import Photographs
from benchmarks.record import record, summary
from services.embed.bulk.image_sources import list_images
from services.embed.bulk.to_files import OutputRequest, embed_into_files
from services.embed.evaluation.colorshape import rendered
from services.embed.model.focallens_engine import load_focallens
from services.jobs.colorshape import sample_scenes
from services.jobs.progress import Bars

STARTER = Path(__file__).parents[1] / "services" / "embed" / "starter" / "focallens-shapes"
STARTER_SIDE = 64
SCENES_PER_PHOTOGRAPH = 4
SCENES_PER_LARGE_PHOTOGRAPH = 50
LARGE = (4032, 3024)


def write_files(folder: Path, files: Iterable[bytes]) -> Path:
    folder.mkdir()
    for number, data in enumerate(files):
        (folder / f"{number:05d}.jpg").write_bytes(data)
    return folder


def scenes(num_images: int) -> Iterable[bytes]:
    for image in rendered(sample_scenes(num_images, torch.Generator().manual_seed(5)), STARTER_SIDE):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        yield file.getvalue()


def compare(source: Path, loop: PlainLoop, num_rounds: int) -> dict[str, Any]:
    """Measure images per second of both, and their ratio, round by round; the first one warms both up."""
    files = sorted(source.iterdir())
    job, plain = [], []
    for _ in range(num_rounds + 1):
        began = time.perf_counter()
        loop.images_per_s([path.read_bytes() for path in files])
        plain.append(len(files) / (time.perf_counter() - began))
        with tempfile.TemporaryDirectory() as output:
            began = time.perf_counter()
            request = OutputRequest(Path(output), str(STARTER), devices=["cpu"])
            embed_into_files(request, list_images([str(source)]), Bars(Console(file=io.StringIO())))
            job.append(len(files) / (time.perf_counter() - began))
    return {
        "images": len(files),
        "job_images_per_s": summary(job[1:]),
        "loop_images_per_s": summary(plain[1:]),
        "ratio": summary([a / b for a, b in zip(job[1:], plain[1:], strict=True)]),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--images",
        type=int,
        default=2000,
        help="Number of scenes; a quarter as many photographs, a fiftieth as many large ones.",
    )
    arguments = parser.parse_args()
    loop = PlainLoop(load_focallens(STARTER))
    result: dict[str, Any] = {"torch_threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as folder:
        sources = {
            "scenes": scenes(arguments.images),
            "photographs": Photographs().take(arguments.images // SCENES_PER_PHOTOGRAPH),
            "large": Photographs(LARGE).take(arguments.images // SCENES_PER_LARGE_PHOTOGRAPH),
        }
        for name, files in sources.items():
            result[name] = compare(write_files(Path(folder) / name, files), loop, arguments.rounds)
    table = Table("images", "figure", "median", "least to greatest", title="Bulk embedding into files")
    for name in sources:
        for figure, spread in result[name].items():
            if isinstance(spread, dict):
                table.add_row(name, figure, f"{spread['median']:g}", f"{spread['min']:g} to {spread['max']:g}")
    Console().print(table)
    record("bulk", result)


if __name__ == "__main__":
    main()
