"""CREPE-Productivity: a caption of a part of Visual Genome's images among hard negatives, by the caption's complexity.

FSC-CLIP's numbers are of all complexities together: 17,698 atomic foils, 7,405 swaps and 17,303 negations.
"""

import ast
from pathlib import Path

from services.jobs.published_data import Source
from services.score.evaluation.aggregates import CREPE as TYPES
from services.score.evaluation.benchmarks.reading import described, read_rows
from services.score.evaluation.benchmarks.visual_genome import VISUAL_GENOME, visual_genome_image
from services.score.evaluation.image_files import Crop
from services.score.evaluation.records import Record, Task

CREPE = Source("CREPE", "https://github.com/RAIVNLab/CREPE")
COMPLEXITIES = range(4, 13)


def load_crepe(directory: Path, images: Path, *, limit: int | None = None) -> list[Task]:
    """Load atomic foils, swaps and negations of all complexities from the folder `prod_hard_negatives`.

    `images` holds Visual Genome's folders. Raises MissingData.
    """
    tasks = []
    for kind in TYPES:
        records = []
        for complexity in COMPLEXITIES:
            path = directory / "prod_hard_negatives" / kind / f"prod_vg_hard_negs_{kind}_complexity_{complexity}.csv"
            with described(path, CREPE.name, "captions and hard negatives"):
                records += [
                    Record(f"{complexity}/{place}", (_crop(images, row),), (row["caption"], *_negatives(row)))
                    for place, row in enumerate(read_rows(path, CREPE))
                ]
        tasks.append(Task(kind, "crepe", tuple(records[:limit]), VISUAL_GENOME))
    return tasks


def _crop(images: Path, row: dict[str, str]) -> Crop:
    left, upper, width, height = (round(float(row[name])) for name in ("x", "y", "width", "height"))
    return Crop(visual_genome_image(images, f"{row['image_id']}.jpg"), (left, upper, left + width, upper + height))


def _negatives(row: dict[str, str]) -> list[str]:
    negatives: list[str] = ast.literal_eval(row["hard_negs"])
    return negatives
