"""Images to store in tests: their bytes follow from a number, so that any process can tell whether they are whole."""

import hashlib
import random
from typing import Any

from services.embed.collections.storage.image_store import (
    CollectionInfo,
    CollectionLimits,
    ImageStore,
    NewImage,
    StoredImage,
)

INFO = CollectionInfo("birds", "focallens-shapes", 1_700_000_000.5)
LIMITS = CollectionLimits(max_images=10_000, max_bytes=100_000_000, max_conditions=8, max_metadata_bytes=1000)


def content(number: int, size: int = 2000) -> bytes:
    """`size` bytes that are the same for the same number, and take their full room on a disk."""
    return random.Random(number).randbytes(size)


def new_image(image_id: str, data: bytes, metadata: dict[str, Any] | None = None, param: str = "images.0") -> NewImage:
    return NewImage(image_id, data, hashlib.sha256(data).hexdigest(), metadata, param)


def everything(store: ImageStore) -> dict[str, tuple[StoredImage, bytes]]:
    """Return all images by id, with their bytes, checked against the store's other answers about them."""
    images = store.images(None, 1_000_000)
    rows = store.rows().tolist()
    assert sorted(image.row for image in images) == rows
    assert list(store.by_rows(rows)) == list(store.data_by_rows(rows)) == list(store.digests_by_rows(rows)) == rows
    found = {image.id: (image, store.data(image.id)) for image in images}
    for image, data in found.values():
        assert image.digest == hashlib.sha256(data).hexdigest()
        assert image.num_bytes == len(data)
        assert store.by_rows([image.row]) == {image.row: image}
    assert store.size() == (len(found), sum({image.digest: image.num_bytes for image in images}.values()))
    return found
