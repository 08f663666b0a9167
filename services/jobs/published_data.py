"""Images of the benchmarks where their owners' archives put them, and what to say when a file is not there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from PIL import Image
from rich.console import Console
from rich.progress import track

T = TypeVar("T")


class MissingData(Exception):
    """A file of a data set is not where it belongs; the message says which, and where the data set comes from."""


@dataclass(frozen=True)
class Source:
    """A data set's name and address."""

    name: str
    address: str

    def existing(self, path: Path) -> Path:
        """The path. Raises MissingData where nothing is there."""
        if not path.exists():
            raise MissingData(f"{path} is missing. It belongs to {self.name}, available from {self.address}")
        return path

    def images(self, paths: Sequence[Path], description: str) -> Iterator[Image.Image]:
        """The files as RGB images, one at a time, with a progress bar of that name.

        Raises MissingData before the first is read, if any is not there.
        """
        for path in paths:
            self.existing(path)
        return map(read_image, progress(paths, description))


def read_image(path: Path) -> Image.Image:
    """A file as an RGB image."""
    with Image.open(path) as image:
        return image.convert("RGB")


def progress(items: Sequence[T], description: str) -> Iterable[T]:
    """The items, with a bar on a terminal's standard error that goes when it is done."""
    return track(items, description, console=Console(stderr=True), transient=True)
