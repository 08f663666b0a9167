"""GeneCIS, "Focus attribute" and "Focus object" (Table 5.2): finding the one image that is alike under a condition.

Each query has a reference image, a condition, the target and distractors; all are embedded under the condition, and the
score is the share of queries whose target is among the three images most similar to the reference.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from services.core.text_files import json_objects, text_of
from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.instructions import focus_on_attribute, focus_on_object
from services.embed.evaluation.metrics import target_recall
from services.jobs.progress import watched
from services.jobs.published_data import Source, described, read_image

Focus = Literal["attribute", "object"]
Box = tuple[float, float, float, float]

GENECIS = Source("GeneCIS", "https://github.com/facebookresearch/genecis")
COCO = Source("COCO 2017's validation images", "https://cocodataset.org")
VISUAL_GENOME = Source("Visual Genome 1.2's images", "https://homes.cs.washington.edu/~ranjay/visualgenome")

# Folders of Visual Genome's images: as in its two archives, merged, or in the folder itself.
VISUAL_GENOME_FOLDERS = ("VG_100K", "VG_100K_2", "VG_All", ".")

DILATION = 0.7
RECALL_AT = 3


@dataclass(frozen=True)
class Picture:
    """An image, or the box (left, top, width, height) of an object in it, in pixels."""

    path: Path
    box: Box | None = None

    def read(self) -> Image.Image:
        image = read_image(self.path)
        return image if self.box is None else crop_object(image, self.box)


@dataclass(frozen=True)
class Query:
    """A condition, the reference, and the gallery, whose first picture is the target."""

    condition: str
    reference: Picture
    gallery: tuple[Picture, ...]

    @property
    def pictures(self) -> tuple[Picture, ...]:
        return (self.reference, *self.gallery)


@dataclass(frozen=True)
class GeneCis:
    """One of the two tasks."""

    focus: Focus
    queries: tuple[Query, ...]

    @property
    def source(self) -> Source:
        return VISUAL_GENOME if self.focus == "attribute" else COCO

    def instruction(self, condition: str) -> str:
        return focus_on_attribute(condition) if self.focus == "attribute" else focus_on_object(condition)


def load_genecis(annotations: Path, images: Path, focus: Focus, *, limit: int | None = None) -> GeneCis:
    """Load the first `limit` queries of `focus_attribute.json` or `focus_object.json`, optionally gzipped, with images
    of Visual Genome or of COCO's `val2017`. Raises BadFile."""
    path = annotations / f"focus_{focus}.json"
    zipped = path.with_suffix(".json.gz")
    path = zipped if zipped.is_file() else GENECIS.existing(path)
    picture: Callable[[Any], Picture]
    if focus == "attribute":
        folders = [images / name for name in VISUAL_GENOME_FOLDERS]

        def picture(entry: Any) -> Picture:
            files = [folder / f"{entry['image_id']}.jpg" for folder in folders]
            box: Box = tuple(entry["instance_bbox"])
            return Picture(next((file for file in files if file.is_file()), files[0]), box)

    else:

        def picture(entry: Any) -> Picture:
            return Picture(images / f"{entry['val_image_id']:012d}.jpg")

    with described(path, GENECIS.name, "queries"):
        queries = tuple(
            Query(
                text_of(entry, "condition", place),
                picture(entry["reference"]),
                (picture(entry["target"]), *map(picture, entry["gallery"])),
            )
            for place, entry in list(json_objects(path))[:limit]
        )
    return GeneCis(focus, queries)


def evaluate_genecis(embedder: ImageEmbedder, task: GeneCis) -> float:
    """Compute Recall@3 in points; a distractor as similar as the target counts as nearer.

    Raises BadFile before the first image is read if any is missing.
    """
    for picture in {picture for query in task.queries for picture in query.pictures}:
        task.source.existing(picture.path)
    similarity = np.stack(list(_similarities(embedder, task)))
    return 100 * target_recall(similarity, RECALL_AT)


def crop_object(image: Image.Image, box: Box) -> Image.Image:
    """Crop an object with some of its surroundings, padded with black to a square, like GeneCIS's own code.

    The box grows by DILATION of its sides to the left and to the top, within the image; its right and bottom edges are
    1 + DILATION sides from there, so if nothing is cut off, they are the object's own.
    """
    left, top = max(0.0, box[0] - DILATION * box[2]), max(0.0, box[1] - DILATION * box[3])
    right = min(image.width, left + (1 + DILATION) * box[2])
    bottom = min(image.height, top + (1 + DILATION) * box[3])
    part = image.crop((left, top, right, bottom))
    side = max(part.size)
    square = Image.new("RGB", (side, side))
    square.paste(part, ((side - part.width) // 2, (side - part.height) // 2))
    return square


def _similarities(embedder: ImageEmbedder, task: GeneCis) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
    """Yield the cosines of each query's reference with its gallery, condition by condition: a picture that several
    queries share is embedded once."""
    by_condition = [
        (condition, list(queries))
        for condition, queries in groupby(sorted(task.queries, key=lambda q: q.condition), key=lambda q: q.condition)
    ]
    title = f"{embedder.name}, GeneCIS focus {task.focus}"
    for condition, queries in watched(by_condition, title, len(by_condition)):
        pictures = list(dict.fromkeys(picture for query in queries for picture in query.pictures))
        images = (picture.read() for picture in pictures)
        (embeddings,) = embedder.embed_images(images, [task.instruction(condition)])
        row_of = {picture: row for row, picture in enumerate(pictures)}
        for query in queries:
            yield embeddings[[row_of[p] for p in query.gallery]] @ embeddings[row_of[query.reference]]
