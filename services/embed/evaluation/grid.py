"""A query's nearest neighbours under several conditions, next to CLIP's (Figures 5.1 and 5.5), and their picture: a
block for each query, with its rows next to it, drawn by matplotlib.

Shapes: N images of a gallery, Q queries, k neighbours, E embedding width.
"""

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from services.core.text_files import BadFile
from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS, labels_of, rendered
from services.embed.evaluation.embedders import Array32, ImageEmbedder
from services.embed.evaluation.same_class import ENDINGS
from services.jobs.colorshape import Scenes, render, sample_scenes
from services.jobs.progress import watched
from services.jobs.published_data import read_image

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THUMBNAIL = 96
QUERY = 2 * THUMBNAIL
# Pixels around the picture, and the side of a neighbour in inches.
MARGIN = 40
CELL, DPI = 0.96, 100
LABEL_CHARACTERS, MAX_LINES = 26, 4

INK, PALE_INK = "#1c1e22", "#70757d"
LINE, ALIKE, UNLIKE = (222, 225, 230), (26, 152, 80), (214, 48, 39)

# Conditions on scenes if none are given.
SCENE_CONDITIONS = tuple(TEST_INSTRUCTIONS[name] for name in ("color", "shape", "background"))
# Neither training nor the ColorShape protocol uses this seed.
SCENES_SEED = 2_000_003


@dataclass(frozen=True)
class Neighbour:
    """A thumbnail, its cosine to the query, and whether the two are alike under the condition (None if unknown)."""

    image: Image.Image
    cosine: float
    is_alike: bool | None


@dataclass(frozen=True)
class Row:
    """Neighbours under a condition, best first; an empty string means no condition."""

    condition: str
    neighbours: tuple[Neighbour, ...]


@dataclass(frozen=True)
class Block:
    """A query, twice as large as its neighbours, and their rows: the baseline's, then the model's."""

    query: Image.Image
    rows: tuple[Row, ...]


def draw_grid(blocks: Sequence[Block], names: tuple[str, str]) -> Image.Image:
    """Draw all blocks below one another, with a legend if frames show which neighbours are alike.

    `names` are those of the baseline and of the model.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    longest = max(len(row.neighbours) for block in blocks for row in block.rows)
    heights = [max(2, len(block.rows)) for block in blocks]
    figure = Figure(figsize=(CELL * (longest + 4.4), CELL * 1.25 * sum(heights)), dpi=DPI, layout="constrained")
    for part, block in zip(
        figure.subfigures(len(blocks), 1, squeeze=False, height_ratios=heights)[:, 0], blocks, strict=True
    ):
        places = part.add_gridspec(len(block.rows), longest + 2, width_ratios=[2, 2.2, *[1] * longest])
        _draw_image(part.add_subplot(places[:, 0]), block.query, "query", None)
        for number, row in enumerate(block.rows):
            label = part.add_subplot(places[number, 1])
            label.axis("off")
            label.text(0, 0.6, _fitting(names[min(number, 1)]), color=PALE_INK, fontsize=8, va="bottom")
            label.text(0, 0.55, _fitting(row.condition or "no condition"), color=INK, fontsize=9.5, va="top")
            for place, one in enumerate(row.neighbours, 2):
                _draw_image(part.add_subplot(places[number, place]), one.image, f"{one.cosine:.3f}", one.is_alike)
    if any(one.is_alike is not None for block in blocks for row in block.rows for one in row.neighbours):
        told = {ALIKE: "shares the queried attribute with the query", UNLIKE: "does not"}
        frames = [Patch(fill=False, edgecolor=_color(color), linewidth=3, label=text) for color, text in told.items()]
        figure.legend(handles=frames, loc="outside lower left", ncols=2, frameon=False, fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return ImageOps.expand(Image.open(file).convert("RGB"), MARGIN, "white")


def _draw_image(axes: "Axes", image: Image.Image, caption: str, is_alike: bool | None) -> None:
    axes.imshow(image)
    axes.set_anchor("N")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(caption, color=PALE_INK, fontsize=8, labelpad=4)
    color = LINE if is_alike is None else ALIKE if is_alike else UNLIKE
    axes.spines[:].set(color=_color(color), linewidth=0.8 if is_alike is None else 3)


def _fitting(text: str) -> str:
    """Wrap to the labels' column; overlong words, and text beyond the last line, are cut."""
    return "\n".join(textwrap.wrap(text, LABEL_CHARACTERS, max_lines=MAX_LINES, placeholder=" …"))


def _color(rgb: tuple[int, int, int]) -> str:
    return f"#{bytes(rgb).hex()}"


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
    """The images of a folder and its subfolders, by name. Raises BadFile if there are fewer than two."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise BadFile(f"{folder} is missing")
        self._paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in ENDINGS)
        if len(self._paths) < 2:
            raise BadFile(f"{folder} holds {len(self._paths)} images: a gallery needs at least two")

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
