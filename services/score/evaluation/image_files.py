"""Images of benchmarks in files: a whole file, a part of one, or a member of a zip archive.

Benchmarks crop images to the thing that their captions name, and the largest sets are published as archives.
"""

import io
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image

from services.jobs.published_data import read_image


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
