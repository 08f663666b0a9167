"""Benchmark images in the layout of their owners' archives, and error messages for missing files."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from services.jobs.progress import watched


class MissingData(Exception):
    """A file of a data set is missing; the message names it and the source of the data set."""


@dataclass(frozen=True)
class Source:
    """A data set's name and address."""

    name: str
    address: str

    def existing(self, path: Path) -> Path:
        """Return the path. Raises MissingData if nothing is there."""
        if not path.exists():
            raise MissingData(f"{path} is missing. It belongs to {self.name}, available from {self.address}")
        return path

    def images(self, paths: Sequence[Path], description: str) -> Iterator[Image.Image]:
        """Yield the files as RGB images, one at a time, with a progress bar of that name.

        Raises MissingData before the first is read if any is missing.
        """
        for path in paths:
            self.existing(path)
        return map(read_image, watched(paths, description, len(paths)))


def read_image(path: Path) -> Image.Image:
    """Read a file as an RGB image."""
    with Image.open(path) as image:
        return image.convert("RGB")
