"""The sources from which a stored image can be read.

Pixels that were decoded when an image was added are kept until it is indexed, so that it is decoded only once.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from services.embed.model.items import ImageState, Pixels


@dataclass(frozen=True, eq=False)
class Source:
    """A stored image: its kept state, its pixels if it was decoded recently, or its bytes."""

    row: int
    digest: str
    state: ImageState | None = None
    pixels: Pixels | None = None
    data: bytes | None = None


class FreshPixels:
    """A cache of at most `max_bytes` that drops the oldest pixels first. Thread-safe.

    Pixels transformed for one checkpoint are useless to another, so the key consists of both digests.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._pixels: OrderedDict[tuple[str, str], Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, checkpoint: str, image: str, pixels: Pixels) -> None:
        with self._lock:
            self._forget((checkpoint, image))
            self._pixels[checkpoint, image] = pixels
            self._num_bytes += pixels.nbytes
            while self._num_bytes > self._max_bytes:
                self._forget(next(iter(self._pixels)))

    def take(self, checkpoint: str, image: str) -> Pixels | None:
        """Remove and return the pixels."""
        with self._lock:
            return self._forget((checkpoint, image))

    def _forget(self, key: tuple[str, str]) -> Pixels | None:
        pixels = self._pixels.pop(key, None)
        if pixels is not None:
            self._num_bytes -= pixels.nbytes
        return pixels
