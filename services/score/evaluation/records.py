"""Records of benchmarks of compositionality: which captions and which images belong together.

A record has one of three kinds, by its shape: an image and several captions, a caption and several images, or equally
many images and captions. In all kinds, images and captions in the same place match, and those without a partner are
false. Ties are wrong.

Shapes: I images and C captions of a record, R records of a task, O orders in which a record is asked.
"""

import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from services.jobs.published_data import Source, read_image


@dataclass(frozen=True, order=True)
class Crop:
    """A part of an image: left, upper, right and lower edge in pixels, as Pillow counts them."""

    path: Path
    box: tuple[int, int, int, int]

    def __str__(self) -> str:
        return f"{self.path} {self.box}"


@dataclass(frozen=True, order=True)
class Member:
    """An image in a zip archive."""

    archive: Path
    name: str

    def __str__(self) -> str:
        return f"{self.archive}@{self.name}"


ImageFile = Path | Crop | Member


def file_of(image: ImageFile) -> Path:
    """Return the file that has to exist."""
    match image:
        case Crop():
            return image.path
        case Member():
            return image.archive
    return image


def read_image_file(image: ImageFile) -> Image.Image:
    """Read an image as RGB. Raises OSError or ValueError for anything else.

    A `.npy` file holds the blue, green and red values of a video frame, as EqBen stores frames of YouCook2.
    """
    match image:
        case Crop():
            # what lies outside of the image is black, as in the authors' own crops
            return read_image_file(image.path).crop(image.box)
        case Member():
            return _read_member(image)
    if image.suffix == ".npy":
        return Image.fromarray(np.ascontiguousarray(np.load(image)[:, :, ::-1]), "RGB")
    return read_image(image)


def _read_member(image: Member) -> Image.Image:
    try:
        content = _archive(image.archive).read(image.name)
    except (KeyError, zipfile.BadZipFile) as error:
        raise OSError(f"{image.archive} does not hold {image.name}: {error}") from error
    with Image.open(io.BytesIO(content)) as opened:
        return opened.convert("RGB")


@lru_cache(maxsize=2)
def _archive(path: Path) -> zipfile.ZipFile:
    """Open an archive once for all of its images."""
    return zipfile.ZipFile(path)


Kind = Literal["image-to-text", "text-to-image", "group"]
# (O, I, C): how well each caption fits each image, for each order in which the captions were shown.
Scores = NDArray[np.floating[Any]]


def check_captions(record: object, captions: Iterable[Any]) -> None:
    """Raises ValueError for a caption that is no text, or blank."""
    for caption in captions:
        if not isinstance(caption, str) or not caption.strip():
            raise ValueError(f"{record}: a text is needed for a caption, not {json.dumps(caption, default=str)}")


@dataclass(frozen=True)
class Record:
    """Images (I) by their files and captions (C): I = 1 and C > 1, C = 1 and I > 1, or I = C > 1.

    `category` is for tasks that average over categories. Raises ValueError for any other shape, which offers no choice,
    and a caption that is no text or blank.
    """

    id: str
    images: tuple[ImageFile, ...]
    captions: tuple[str, ...]
    category: str = ""

    def __post_init__(self) -> None:
        check_captions(self.id, self.captions)
        num_images, num_captions = len(self.images), len(self.captions)
        if min(num_images, num_captions) == 0 or (min(num_images, num_captions) > 1 and num_images != num_captions):
            raise ValueError(
                f"{num_images} images and {num_captions} captions: give one of either, or equal numbers of both"
            )
        if num_images == num_captions == 1:
            raise ValueError("one image and one caption: nothing to choose from")

    @property
    def kind(self) -> Kind:
        """Kind of choice: a caption, an image, or both ways."""
        if len(self.images) == 1:
            return "image-to-text"
        return "text-to-image" if len(self.captions) == 1 else "group"


@dataclass(frozen=True)
class Task:
    """R records of one kind, under one name of a benchmark; `source` is the source of its images.

    A task's score is the mean over records or, with `by_category`, the mean over categories of their mean over records.
    `left_out` is the number of published records that have no images here, which happens where a benchmark only
    publishes addresses of images.
    With `num_true` above 1, as in SugarCrepe++, the first captions of each record's one image are all true, and each of
    them has to be better than all false ones. Raises ValueError for no records, records of several kinds, a repeated
    id, and a record without a false caption.
    """

    name: str
    benchmark: str
    records: tuple[Record, ...]
    source: Source
    by_category: bool = False
    num_true: int = 1
    left_out: int = 0

    def __post_init__(self) -> None:
        kinds = sorted({record.kind for record in self.records})
        if not kinds:
            raise ValueError(f"{self.name} has no records")
        if len(kinds) > 1:
            raise ValueError(f"{self.name} has records of several kinds: {', '.join(kinds)}")
        ids = [record.id for record in self.records]
        if len(set(ids)) < len(ids):
            twice = next(one for one, number in Counter(ids).items() if number > 1)
            raise ValueError(f"{self.name} holds {twice!r} twice")
        if self.num_true > 1:
            short = [record.id for record in self.records if len(record.captions) <= self.num_true]
            if self.kind != "image-to-text" or short:
                raise ValueError(f"{self.name} needs one image and a false caption beside {self.num_true} true ones")

    @property
    def kind(self) -> Kind:
        """The one kind of all records."""
        return self.records[0].kind

    def first(self, limit: int | None) -> "Task":
        """The task of the first `limit` records."""
        return self if limit is None else replace(self, records=self.records[:limit])

    def check_images(self) -> None:
        """Raises BadFile if an image's file is missing."""
        for path in sorted({file_of(image) for record in self.records for image in record.images}):
            self.source.existing(path)


def text_is_right(scores: Scores) -> NDArray[np.bool_]:
    """Whether every image with a caption has its own as the strictly best one: (…, I, C) → (…)."""
    pairs = min(scores.shape[-2:])
    own = np.diagonal(scores, axis1=-2, axis2=-1)[..., :, None]
    # comparisons with NaN are false, so pairs that could not be scored are wrong
    is_best = (own > scores[..., :pairs, :]).sum(axis=-1) == scores.shape[-1] - 1
    return np.asarray(is_best.all(axis=-1))


def image_is_right(scores: Scores) -> NDArray[np.bool_]:
    """Whether every caption with an image has its own as the strictly best one: (…, I, C) → (…)."""
    return text_is_right(np.swapaxes(scores, -2, -1))


@dataclass(frozen=True)
class Outcomes:
    """Correctness of each record: (R,) in 0..1, the mean over orders.

    `text` is the choice of captions, `image` that of images, `both` of both; if only one kind of choice exists, `both`
    equals it.
    """

    text: NDArray[np.float64]
    image: NDArray[np.float64]
    both: NDArray[np.float64]


def all_true_are_right(scores: Scores, num_true: int) -> NDArray[np.bool_]:
    """Whether the first captions of one image are all strictly better than each of the others: (…, 1, C) → (…)."""
    false = scores[..., 0, num_true:]
    better = scores[..., 0, :num_true, None] > false[..., None, :]
    return np.asarray(better.all(axis=(-2, -1)))


def outcomes(scores: Iterable[Scores], num_true: int = 1) -> Outcomes:
    """Judge the scores of R records, (O, I, C) each, of whose captions the first `num_true` are true of one image."""
    rows = []
    for one in scores:
        text, image = text_is_right(one), image_is_right(one)
        if num_true > 1:
            text = image = all_true_are_right(one, num_true)
        rows.append((text.mean(), image.mean(), (text & image).mean()))
    columns: NDArray[np.float64] = np.asarray(rows, np.float64).reshape(-1, 3)
    return Outcomes(*columns.T)


def category_index(task: Task) -> NDArray[np.int64]:
    """The number of each record's category, (R,); all 0 for a task that does not average over them."""
    if not task.by_category:
        return np.zeros(len(task.records), np.int64)
    return np.unique([record.category for record in task.records], return_inverse=True)[1].astype(np.int64)


def percent(right: NDArray[np.float64], category: NDArray[np.int64]) -> float:
    """The mean over categories of the mean over their records, (R,) and (R,), in percent.

    A category without a record does not count.
    """
    counts = np.bincount(category)
    sums = np.bincount(category, weights=right)
    return 100 * float(np.mean(sums[counts > 0] / counts[counts > 0]))


def count(tasks: Sequence[Task]) -> str:
    """Describe the number of records in words: the total and its parts."""
    parts = ", ".join(f"{task.name} {len(task.records):,}{_told_left_out(task)}" for task in tasks)
    return f"{sum(len(task.records) for task in tasks):,} records: {parts}"


def _told_left_out(task: Task) -> str:
    return f" ({task.left_out:,} without images left out)" if task.left_out else ""
