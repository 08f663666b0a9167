"""The sources that a stored image can be read from.

Pixels that were decoded when an image was added are kept until it is indexed, so that it is decoded once.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from services.embed.model.items import ImageState, Pixels


@dataclass(frozen=True, eq=False)
class Source:
    """A stored image: its kept state, or its pixels where it was decoded just now, or its bytes."""

    row: int
    digest: str
    state: ImageState | None = None
    pixels: Pixels | None = None
    data: bytes | None = None


class FreshPixels:
    """At most `max_bytes`; the oldest are let go first. Used by any thread.

    What a checkpoint's transform has made is of no use to another checkpoint, so both digests name an image.
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
        """Hand them out, once."""
        with self._lock:
            return self._forget((checkpoint, image))

    def _forget(self, key: tuple[str, str]) -> Pixels | None:
        pixels = self._pixels.pop(key, None)
        if pixels is not None:
            self._num_bytes -= pixels.nbytes
        return pixels
