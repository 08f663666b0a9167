"""Photographs for loads, each of them new to every cache."""

import itertools
from io import BytesIO

from PIL import Image

SOURCES = ("astronaut", "coffee", "chelsea")
ANGLES = range(0, 40, 5)


class Photographs:
    """Distinct JPEG files of `size` (width, height): real photographs, rotated a little, each with different bytes
    after its last marker."""

    def __init__(self, size: tuple[int, int] = (640, 480)) -> None:
        import skimage.data  # benchmarks without photographs run where scikit-image is not installed

        pictures = [Image.fromarray(getattr(skimage.data, name)()) for name in SOURCES]
        self.files = [_encode(picture.rotate(angle, expand=False), size) for picture in pictures for angle in ANGLES]
        self._numbers = itertools.count()

    def take(self, num_images: int) -> list[bytes]:
        numbers = itertools.islice(self._numbers, num_images)
        return [self.files[number % len(self.files)] + number.to_bytes(8, "little") for number in numbers]


def _encode(picture: Image.Image, size: tuple[int, int]) -> bytes:
    file = BytesIO()
    picture.convert("RGB").resize(size).save(file, "JPEG", quality=90)
    return file.getvalue()
