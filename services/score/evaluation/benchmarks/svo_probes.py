"""SVO-Probes: a sentence, an image of it, and one of another subject, verb or object.

Only addresses of the images are published, of which many are gone: FSC-CLIP's authors could load 22,162 of 36.8
thousand (3,728 subjects, 13,523 verbs, 4,911 objects). Sentences without their two images are left out and counted.
"""

from collections.abc import Iterator
from pathlib import Path

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import SVO_PROBES as TYPES
from services.score.evaluation.benchmarks.reading import described, read_rows, with_images
from services.score.evaluation.records import Record, Task

SVO_PROBES = Source("SVO-Probes", "https://github.com/deepmind/svo_probes")


def load_svo_probes(path: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load `svo_probes.csv`, with images named by their numbers, `<number>.jpg`. Raises MissingData."""
    rows = list(read_rows(path, SVO_PROBES))
    with described(path, SVO_PROBES.name, "sentences"):
        tasks = []
        for kind in TYPES:
            records, left_out = with_images(_records(rows, kind, images), SVO_PROBES, limit)
            tasks.append(Task(kind, "svo_probes", records, SVO_PROBES, left_out=left_out))
        return tasks


def _records(rows: list[dict[str, str]], kind: str, images: Path) -> Iterator[Record]:
    for place, row in enumerate(rows):
        if row[kind].strip().lower() == "true":
            files = tuple(images / f"{row[name].strip()}.jpg" for name in ("pos_image_id", "neg_image_id"))
            yield Record(str(place), files, (row["sentence"].strip(),))
