"""A query's nearest neighbours under several conditions, next to CLIP's (Figures 5.1 and 5.5), and their picture: a
block for each query, with its rows next to it. Lengths are in pixels.

Shapes: N images of a gallery, Q queries, k neighbours, E embedding width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

from services.core.text_files import BadFile
from services.embed.evaluation.colorshape import TEST_INSTRUCTIONS, labels_of, rendered
from services.embed.evaluation.embedders import Array32, ImageEmbedder
from services.embed.evaluation.same_class import ENDINGS
from services.jobs.colorshape import Scenes, render, sample_scenes
from services.jobs.progress import watched
from services.jobs.published_data import read_image

THUMBNAIL = 96
GAP = 14
FRAME = 4
MARGIN = 40
LABEL_WIDTH = 220
MAX_LINES = 4
CAPTION_HEIGHT = 22

PAPER = (255, 255, 255)
INK = (28, 30, 34)
PALE_INK = (112, 117, 125)
LINE = (222, 225, 230)
ALIKE = (26, 152, 80)
UNLIKE = (214, 48, 39)

ROW_HEIGHT = THUMBNAIL + CAPTION_HEIGHT + GAP
QUERY = 2 * THUMBNAIL
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
    longest = max(len(row.neighbours) for block in blocks for row in block.rows)
    width = 2 * MARGIN + QUERY + 3 * GAP + LABEL_WIDTH + longest * (THUMBNAIL + GAP) - GAP
    has_frames = any(one.is_alike is not None for block in blocks for row in block.rows for one in row.neighbours)
    heights = [_height(block) for block in blocks]
    legend = 2 * GAP if has_frames else 0
    picture = Image.new("RGB", (width, sum(heights) + (len(blocks) + 1) * MARGIN + legend), PAPER)
    draw = ImageDraw.Draw(picture)
    top = MARGIN
    for number, (block, height) in enumerate(zip(blocks, heights, strict=True)):
        if number:
            draw.line([(MARGIN, top - MARGIN // 2), (width - MARGIN, top - MARGIN // 2)], LINE)
        _draw_block(picture, block, names, top)
        top += height + MARGIN
    if has_frames:
        _draw_legend(draw, top - MARGIN // 2)
    return picture


def _height(block: Block) -> int:
    """Height of a block, without the gap below its last row."""
    return max(QUERY + CAPTION_HEIGHT, len(block.rows) * ROW_HEIGHT - GAP)


def _draw_block(picture: Image.Image, block: Block, names: tuple[str, str], top: int) -> None:
    draw = ImageDraw.Draw(picture)
    picture.paste(block.query, (MARGIN, top))
    _draw_frame(draw, (MARGIN, top), QUERY, LINE, 1)
    draw.text((MARGIN + QUERY / 2, top + QUERY + 4), "query", PALE_INK, _font(14), anchor="ma")
    left = MARGIN + QUERY + 3 * GAP
    for number, row in enumerate(block.rows):
        row_top = top + number * ROW_HEIGHT
        _draw_label(draw, (left, row_top + THUMBNAIL // 2), names[min(number, 1)], row.condition)
        for place, neighbour in enumerate(row.neighbours):
            _draw_neighbour(picture, neighbour, (left + LABEL_WIDTH + place * (THUMBNAIL + GAP), row_top))


def _draw_label(draw: ImageDraw.ImageDraw, at: tuple[int, int], name: str, condition: str) -> None:
    """Draw the model's name above its condition, vertically centred."""
    lines = [(line, PALE_INK, 14) for line in _wrapped(name, 14)]
    lines += [(line, INK, 17) for line in _wrapped(condition or "no condition", 17)]
    left, top = at[0], at[1] - sum(size + 5 for _, _, size in lines) / 2
    for line, color, size in lines:
        draw.text((left, top), line, color, _font(size))
        top += size + 5


def _draw_neighbour(picture: Image.Image, neighbour: Neighbour, at: tuple[int, int]) -> None:
    draw = ImageDraw.Draw(picture)
    picture.paste(neighbour.image, at)
    if neighbour.is_alike is None:
        _draw_frame(draw, at, THUMBNAIL, LINE, 1)
    else:
        _draw_frame(draw, at, THUMBNAIL, ALIKE if neighbour.is_alike else UNLIKE, FRAME)
    cosine = f"{neighbour.cosine:.3f}"
    draw.text((at[0] + THUMBNAIL / 2, at[1] + THUMBNAIL + FRAME + 3), cosine, PALE_INK, _font(14), anchor="ma")


def _draw_frame(
    draw: ImageDraw.ImageDraw, at: tuple[int, int], side: int, color: tuple[int, int, int], width: int
) -> None:
    """Draw a frame around a square image, outside of it."""
    left, top = at
    draw.rectangle((left - width, top - width, left + side + width - 1, top + side + width - 1), None, color, width)


def _draw_legend(draw: ImageDraw.ImageDraw, top: int) -> None:
    left: float = MARGIN
    for color, text in ((ALIKE, "shares the queried attribute with the query"), (UNLIKE, "does not")):
        draw.rectangle((left, top, left + 15, top + 15), outline=color, width=FRAME)
        draw.text((left + 24, top + 7), text, PALE_INK, _font(14), anchor="lm")
        left += 24 + _font(14).getlength(text) + 3 * GAP


def _wrapped(text: str, size: int) -> list[str]:
    """Wrap to the labels' column; overlong words, and text beyond the last line, are cut with an ellipsis."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and _fits(longer, size):
            lines[-1] = longer
        else:
            lines.append(_shortened(word, size))
    if len(lines) > MAX_LINES:
        lines[MAX_LINES - 1] = _shortened(" ".join(lines[MAX_LINES - 1 :]), size)
    return lines[:MAX_LINES]


def _shortened(text: str, size: int) -> str:
    if _fits(text, size):
        return text
    return next(cut for end in range(len(text) - 1, -1, -1) if _fits(cut := f"{text[:end]}…", size))


def _fits(text: str, size: int) -> bool:
    return _font(size).getlength(text) <= LABEL_WIDTH - 2 * GAP


def _font(size: int) -> ImageFont.ImageFont | ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)


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
