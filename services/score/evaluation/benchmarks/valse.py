"""VALSE: a caption and its foil, for seven phenomena of language."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.jobs.published_data import Source
from services.score.evaluation.benchmarks.reading import described
from services.score.evaluation.records import Record, Task

VALSE = Source("VALSE", "https://github.com/Heidelberg-NLP/VALSE")

VALSE_TASKS = (
    *("existence", "plurals", "counting-hard", "counting-small-quant", "counting-adversarial", "relations"),
    *("action-replacement", "actant-swap", "coreference-standard", "coreference-hard", "foil-it"),
)
# Annotators, out of three, who must agree that the caption is true and the foil is not.
VALSE_MIN_VOTES = 2
# The folder of each data set that VALSE took images from; COCO's images of 2014 have theirs in their names.
VALSE_FOLDERS = {
    "visual7w": "visual7w",
    "coco2017": "val2017",
    "coco_2017": "val2017",
    "SWiG": "swig",
    "VisDial_v1.0": "VisualDialog_val2018",
}


def load_valse(directory: Path, images: Path, *, valid_only: bool = True, limit: int | None = None) -> list[Task]:
    """Load VALSE's eleven files, `<task>.json` or `.json.gz`, with the images of VALSE_FOLDERS and COCO's of 2014.

    `valid_only` leaves out items that fewer than VALSE_MIN_VOTES annotators agreed with. Raises MissingData.
    """
    tasks = []
    for name in VALSE_TASKS:
        zipped = directory / f"{name}.json.gz"
        path = zipped if zipped.is_file() else VALSE.existing(directory / f"{name}.json")
        with described(path, "VALSE", "captions and foils"):
            content = gzip.decompress(path.read_bytes()) if path == zipped else path.read_bytes()
            records = tuple(
                Record(key, (images / _valse_file(entry),), (entry["caption"], entry["foil"]))
                for key, entry in json.loads(content).items()
                if not valid_only or entry["mturk"]["caption"] >= VALSE_MIN_VOTES
            )
            tasks.append(Task(name, "valse", records[:limit], VALSE))
    return tasks


def _valse_file(entry: Mapping[str, Any]) -> Path:
    """The path of an entry's image, relative to the folder of all images."""
    file = Path(entry["image_file"])
    if file.name.startswith("COCO_"):
        return Path(file.name.split("_")[1]) / file
    return Path(VALSE_FOLDERS[entry["dataset"]]) / file
