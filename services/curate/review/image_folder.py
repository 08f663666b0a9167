"""Images of the pairs, from one folder and nowhere else."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from services.core.errors import NotFound, UnsupportedMediaType
from services.core.images.headers import media_type_of

# Longer than what tells a file's type.
NUM_BYTES_READ = 32


@dataclass(frozen=True)
class ImageFile:
    path: Path
    media_type: str


class ImageFolder:
    """A folder, of which only the named files are shown, and only those that lie in it: no link leads out of it."""

    def __init__(self, folder: Path, filenames: Iterable[str]) -> None:
        self._folder = folder.resolve()
        self._filenames = frozenset(filenames)

    def find(self, filename: str) -> ImageFile:
        """Return an image. Raises NotFound for a file that is absent, elsewhere or of no pair, and
        UnsupportedMediaType for one that is no image that browsers show.
        """
        path = self._folder / filename
        if filename not in self._filenames or "\0" in filename or not self._is_inside(path):
            raise NotFound(f"No pair has an image {filename[:200]!r} in the folder of images.")
        try:
            with path.open("rb") as file:
                media_type = media_type_of(file.read(NUM_BYTES_READ))
        except OSError as missing:
            reason = "is not in the folder of images" if isinstance(missing, FileNotFoundError) else missing.strerror
            raise NotFound(f"The image {filename!r} {reason}.") from None
        if media_type is None:
            raise UnsupportedMediaType(f"{filename!r} is not a JPEG, PNG, WebP, GIF or BMP.")
        return ImageFile(path, media_type)

    def problem(self, filename: str) -> str | None:
        """Return why an image can't be shown, or None if it can."""
        try:
            self.find(filename)
        except (NotFound, UnsupportedMediaType) as refused:
            return refused.message
        return None

    def _is_inside(self, path: Path) -> bool:
        try:
            return path.resolve().is_relative_to(self._folder)
        except (OSError, RuntimeError):  # a loop of links, or a name that is too long
            return False
