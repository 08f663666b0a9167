"""A query's nearest neighbours under several conditions, next to CLIP's (Figures 5.1 and 5.5).

Shapes: N images of a gallery, Q queries, k neighbours, E embedding width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS, labels_of, rendered
from services.embed.evaluation.embedders import Array32, ImageEmbedder
from services.embed.evaluation.grid_picture import QUERY, THUMBNAIL, Block, Neighbour, Row
from services.jobs.colorshape import Scenes, render, sample_scenes
from services.jobs.progress import watched
from services.jobs.published_data import MissingData, read_image

ENDINGS = (".jpeg", ".jpg", ".png", ".webp")

# Conditions on scenes if none are given.
SCENE_CONDITIONS = tuple(TEST_INSTRUCTIONS[name] for name in ("color", "shape", "background"))

# Neither training nor the ColorShape protocol uses this seed.
SCENES_SEED = 2_000_003


class SceneGallery:
    """Rendered scenes of one object each, whose attributes are known. Each may also be a query."""

    def __init__(self, num_scenes: int) -> None:
        self._scenes: Scenes = sample_scenes(num_scenes, torch.Generator().manual_seed(SCENES_SEED))
        self._labels = {text: labels_of(self._scenes, name) for name, text in TEST_INSTRUCTIONS.items()}

    def __len__(self) -> int:
        return len(self._scenes)

    def images(self, side: int) -> Iterator[Image.Image]:
        """Render all, for a model that sees squares of `side` pixels."""
        return watched(rendered(self._scenes, side), "scenes", len(self))

    def thumbnail(self, index: int, side: int) -> Image.Image:
        """Draw the scene larger and reduce it, which smooths its edges and its noise."""
        large = Image.fromarray(render(self._scenes[index : index + 1], 4 * side)[0].numpy())
        return large.reduce(4)

    def is_alike(self, query: int, other: int, condition: str) -> bool | None:
        """Tell whether two images are alike under the condition; None if that is unknown or the condition is empty."""
        labels = self._labels.get(condition)
        return None if labels is None else bool(labels[query] == labels[other])


class FolderGallery:
    """The images of a folder and its subfolders, by name. Raises MissingData if there are fewer than two."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise MissingData(f"{folder} is missing")
        self._paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
        if len(self._paths) < 2:
            raise MissingData(f"{folder} holds {len(self._paths)} images: a gallery needs at least two")

    def __len__(self) -> int:
        return len(self._paths)

    def images(self, side: int) -> Iterator[Image.Image]:
        return map(read_image, watched(self._paths, "images", len(self._paths)))

    def thumbnail(self, index: int, side: int) -> Image.Image:
        """Crop the central square."""
        return ImageOps.fit(read_image(self._paths[index]), (side, side))

    def is_alike(self, query: int, other: int, condition: str) -> bool | None:
        return None


Gallery = SceneGallery | FolderGallery


@dataclass(frozen=True)
class GridOptions:
    """Options of a grid: its conditions, the number of queries drawn with the seed, and k neighbours for each."""

    conditions: Sequence[str]
    num_queries: int = 3
    k: int = 8
    seed: int = 0


def retrieve_grid(
    gallery: Gallery, baseline: ImageEmbedder, embedder: ImageEmbedder, options: GridOptions
) -> list[Block]:
    """Make a block for each query: the baseline's row without a condition, then the embedder's under each condition.

    At most N queries and N − 1 neighbours.
    """
    queries = np.random.default_rng(options.seed).permutation(len(gallery))[: options.num_queries].tolist()
    (plain,) = baseline.embed_images(gallery.images(baseline.image_size), [None])
    under = embedder.embed_images(gallery.images(embedder.image_size), options.conditions)

    views = [("", plain), *zip(options.conditions, under, strict=True)]

    def row(query: int, condition: str, embeddings: Array32) -> Row:
        nearest, cosines = nearest_others(embeddings, query, options.k)
        return Row(
            condition,
            tuple(
                Neighbour(gallery.thumbnail(other, THUMBNAIL), cosine, gallery.is_alike(query, other, condition))
                for other, cosine in zip(nearest.tolist(), cosines.tolist(), strict=True)
            ),
        )

    return [Block(gallery.thumbnail(query, QUERY), tuple(row(query, *view) for view in views)) for query in queries]


def nearest_others(embeddings: Array32, query: int, k: int) -> tuple[NDArray[np.int64], Array32]:
    """Find the k images nearest to one of (N, E) and their cosines, best first, without itself; at most N − 1."""
    cosines = embeddings @ embeddings[query]
    order = np.argsort(-cosines, kind="stable")
    nearest = order[order != query][:k]
    return nearest, cosines[nearest]
