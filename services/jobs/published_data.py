"""Benchmark images in the layout of their owners' archives, and error messages for missing files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from services.core.refusals import Refused
from services.core.text_files import BadFile, Place
from services.jobs.progress import watched

FAULTS = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError)


@dataclass(frozen=True)
class Source:
    """A data set's name and address."""

    name: str
    address: str

    def existing(self, path: Path) -> Path:
        """Return the path. Raises BadFile if nothing is there."""
        if not path.exists():
            raise BadFile(f"{path} is missing. It belongs to {self.name}, available from {self.address}")
        return path

    def images(self, paths: Sequence[Path], description: str) -> Iterator[Image.Image]:
        """Yield the files as RGB images, one at a time, with a progress bar of that name.

        Raises BadFile before the first is read if any is missing.
        """
        for path in paths:
            self.existing(path)
        return map(read_image, watched(paths, description, len(paths)))


@contextmanager
def described(place: Path | Place, name: str, what: str) -> Iterator[None]:
    """Raises BadFile, with the name of the file or the place in it, for a file of another form."""
    try:
        yield
    except Refused:
        raise
    except FAULTS as error:
        told = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise BadFile(f"{place} holds no {what} of {name}: {told}") from error


def read_image(path: Path) -> Image.Image:
    """Read a file as an RGB image."""
    with Image.open(path) as image:
        return image.convert("RGB")
