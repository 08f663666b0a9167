"""CelebA-Attribute and CelebA-Identity (Tables 5.2, 5.4, D.4): retrieval of faces that are alike in one respect.

Each of 29 attributes is a separate retrieval task: images with the attribute should find others with it, images without
it others without. mAP is scaled relative to a random ranking, because most attributes are rare.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from services.core.text_files import text_lines
from services.embed.evaluation.embedders import ImageEmbedder
from services.embed.evaluation.instructions import CELEBA_ATTRIBUTES, CELEBA_IDENTITY, celeba_attribute
from services.embed.evaluation.metrics import (
    Array32,
    Labels,
    cosine_rows,
    mean_average_precision,
    random_mean_average_precision,
    scaled_average_precision,
)
from services.embed.evaluation.results import Result
from services.jobs.published_data import Source, described

SOURCE = Source("CelebA (aligned and cropped)", "https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html")
SPLITS = {"train": "0", "val": "1", "test": "2"}


@dataclass(frozen=True)
class Faces:
    """N images of a split: for each attribute's name whether each image has it (N,) int64, and the identities (N,)."""

    paths: tuple[Path, ...]
    attributes: dict[str, Labels]
    identities: Labels


def load_faces(directory: Path, *, split: str = "test", limit: int | None = None) -> Faces:
    """Load CelebA in its original layout: `img_align_celeba/`, `list_attr_celeba.txt`, `list_eval_partition.txt` and
    `identity_CelebA.txt`; the first `limit` images of the split. Raises BadFile."""
    with described(directory, SOURCE.name, "faces with attributes"):
        path = directory / "list_eval_partition.txt"
        with described(path, SOURCE.name, "files and their splits"):
            files = [file for file, (part,) in _rows(path).items() if part == SPLITS[split]][:limit]
        # the first line is the number of images, the second the names of the columns
        _, header, *_ = _lines(directory / "list_attr_celeba.txt")
        has = _rows(directory / "list_attr_celeba.txt", num_header_lines=2)
        values = np.array([has[file] for file in files]).astype(np.int64)
        columns = {name.replace("_", " "): values[:, place] > 0 for place, name in enumerate(header.split())}
        identities = _rows(directory / "identity_CelebA.txt")
        return Faces(
            paths=tuple(directory / "img_align_celeba" / file for file in files),
            attributes={name: columns[name].astype(np.int64) for name in CELEBA_ATTRIBUTES},
            identities=np.array([identities[file][0] for file in files]).astype(np.int64),
        )


def evaluate_celeba(embedder: ImageEmbedder, faces: Faces, settings: dict[str, object]) -> list[Result]:
    """Compute the scaled mAP of the 29 attributes and the mAP of the identity, in points, from one pass.

    All embeddings under all 30 instructions are in memory at once. An attribute on which all images agree has no score.
    """
    instructions = [*map(celeba_attribute, CELEBA_ATTRIBUTES), CELEBA_IDENTITY]
    images = SOURCE.images(faces.paths, f"{embedder.name}, CelebA")
    *by_attribute, by_identity = embedder.embed_images(images, instructions)
    scores = {
        attribute: 100 * scaled_mean_ap(embeddings, faces.attributes[attribute])
        for attribute, embeddings in zip(CELEBA_ATTRIBUTES, by_attribute, strict=True)
        if len(np.unique(faces.attributes[attribute])) > 1
    }
    results = [Result(embedder.name, "celeba", scores, settings)]
    if len(np.unique(faces.identities)) < len(faces.identities):
        identity = 100 * mean_average_precision(cosine_rows(by_identity), faces.identities)
        results.append(Result(embedder.name, "celeba-identity", {"CelebA-Identity": identity}, settings))
    return results


def scaled_mean_ap(embeddings: Array32, labels: Labels) -> float:
    """Compute (p − r) / (1 − r) of embeddings (N, E) from the mAP p and its expectation r for a random ranking."""
    mean_ap = mean_average_precision(cosine_rows(embeddings), labels)
    return scaled_average_precision(mean_ap, random_mean_average_precision(labels))


def _lines(path: Path) -> list[str]:
    return list(text_lines(SOURCE.existing(path)))


def _rows(path: Path, num_header_lines: int = 0) -> dict[str, list[str]]:
    """Map file names to the other columns of their lines."""
    split = (line.split() for line in _lines(path)[num_header_lines:])
    return {file: values for file, *values in split}
