"""Winoground: two images and two captions with the same words."""

import json
from pathlib import Path

from services.jobs.published_data import Source
from services.score.evaluation.benchmarks.reading import described
from services.score.evaluation.records import Record, Task

WINOGROUND = Source("Winoground", "https://huggingface.co/datasets/facebook/winoground")


def load_winoground(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load Winoground's `examples.jsonl`: two images and two captions with the same words. Raises MissingData."""
    path = WINOGROUND.existing(directory / "examples.jsonl")
    with described(path, WINOGROUND.name, "examples"):
        records = tuple(
            Record(
                str(row["id"]),
                (images / f"{row['image_0']}.png", images / f"{row['image_1']}.png"),
                (row["caption_0"], row["caption_1"]),
            )
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
        )
        return [Task("winoground", "winoground", records[:limit], WINOGROUND)]
