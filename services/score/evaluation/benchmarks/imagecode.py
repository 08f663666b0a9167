"""ImageCoDe: a description and ten similar images, of which it describes one."""

import json
from pathlib import Path

from services.jobs.published_data import Source
from services.score.evaluation.benchmarks.reading import described
from services.score.evaluation.records import Record, Task

IMAGECODE = Source("ImageCoDe", "https://github.com/McGill-NLP/imagecode")


def load_imagecode(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load ImageCoDe's `valid_data.json`: a description and the ten images of a set, in its folder, by number.

    Sets consist of video frames or static images. Raises MissingData.
    """
    with described(IMAGECODE.existing(path), IMAGECODE.name, "descriptions"):
        by_task: dict[str, list[Record]] = {"videos": [], "static": []}
        for name, descriptions in json.loads(path.read_text(encoding="utf-8")).items():
            files = _frames(IMAGECODE.existing(images / name))
            for number, text in descriptions.items():
                true = files[int(number)]
                record = Record(f"{name}/{number}", (true, *(file for file in files if file != true)), (text,))
                by_task["static" if "open-images" in name else "videos"].append(record)
        return [Task(name, "imagecode", tuple(some[:limit]), IMAGECODE) for name, some in by_task.items() if some]


def _frames(folder: Path) -> list[Path]:
    """The images `img<number>.jpg` of a folder, by number."""
    return sorted(folder.glob("img*.jpg"), key=lambda path: int(path.stem.removeprefix("img")))
