"""Images as a user has them, for bodies in JSON."""

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol


class _File(Protocol):
    def read(self) -> bytes: ...


class _Pillow(Protocol):
    """A PIL image, without the package."""

    @property
    def mode(self) -> str: ...

    def save(self, fp: Any, format: str | None = None) -> None: ...

    def convert(self, mode: str) -> Any: ...


# A path, a file's bytes, an open file, a PIL image, an `http(s)` URL or data URI, or `{"id": "collection/image-id"}`.
Image = str | Path | bytes | _File | _Pillow | Mapping[str, Any]

_MODES_OF_PNG = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}


def encoded(image: Image) -> Any:
    """Return an image as routes take it. Raises OSError for a file that can't be read, TypeError for what is none."""
    is_address = isinstance(image, str) and image[:8].lower().startswith(("http://", "https://", "data:"))
    if is_address or isinstance(image, Mapping):
        return image
    return f"data:;base64,{base64.b64encode(_bytes_of(image)).decode()}"


def listed(field: str, images: Any) -> Any:
    """Return images, of which there may be several. Raises TypeError for one image that is not in a list."""
    if isinstance(images, str | bytes | Path | Mapping) or hasattr(images, "read") or hasattr(images, "save"):
        raise TypeError(f"{field} is a list of images, not one {type(images).__name__}")
    return images


def _bytes_of(image: Any) -> bytes:
    if isinstance(image, str | Path):
        return Path(image).expanduser().read_bytes()
    if isinstance(image, bytes | bytearray | memoryview):
        return bytes(image)
    if hasattr(image, "read"):
        data = image.read()
        if not isinstance(data, bytes):
            raise TypeError("an open file of an image must be opened in binary mode, such as by open(path, 'rb')")
        return data
    if hasattr(image, "save") and hasattr(image, "convert"):
        held = io.BytesIO()
        (image if image.mode in _MODES_OF_PNG else image.convert("RGB")).save(held, format="PNG")
        return held.getvalue()
    raise TypeError(f"an image is a path, bytes, an open file, a PIL image or a URL, not {type(image).__name__}")
