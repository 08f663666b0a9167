"""The first frame of a WebP, decoded without stopping other threads.

Pillow 13 frees the interpreter lock while libwebp decodes, but copies the pixels with the lock held: other threads stop
for a fifth of a second at 64 million pixels, each of which takes 16 bytes. The same library called through ctypes
decodes into the image's own memory: they stop for a fortieth, and a pixel takes half. The pixels are equal.
"""

import ctypes
import mmap
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

from PIL import Image, _webp

# Each costs a step of a loop; photographs have a dozen, animations one per frame, of which only the first is read.
MAX_WEBP_CHUNKS = 1_024

_HAS_ALPHA = 0x10
_DECODER_ABI_VERSION = 0x0209


@dataclass(frozen=True)
class FirstFrame:
    """A still WebP and its position on its canvas, in pixels; `exif` is a TIFF structure, or empty.

    `has_alpha` is None where only the frame itself says so.
    """

    data: bytes
    canvas: tuple[int, int] | None = None
    offset: tuple[int, int] = (0, 0)
    has_alpha: bool | None = None
    exif: bytes = b""


class _Features(ctypes.Structure):
    _fields_ = (
        ("width", ctypes.c_int),
        ("height", ctypes.c_int),
        ("has_alpha", ctypes.c_int),
        ("has_animation", ctypes.c_int),
        ("format", ctypes.c_int),
        ("pad", ctypes.c_uint32 * 5),
    )


@cache
def is_available() -> bool:
    """Whether Pillow's WebP library can be called directly: it can't where Pillow links it statically."""
    library = _library()
    return all(hasattr(library, name) for name in ("WebPDecodeRGBAInto", "WebPGetFeaturesInternal"))


def first_frame(data: bytes) -> FirstFrame:
    """Return the first frame of a file with a WebP signature. Raises ValueError for one without a frame, and
    struct.error or IndexError for a truncated one."""
    if data[12:16] != b"VP8X":
        return FirstFrame(data)
    exif = frame = b""
    is_animated = False
    position = 30
    for _ in range(MAX_WEBP_CHUNKS):
        if position + 8 > len(data) or (frame and exif):
            break
        kind, size = struct.unpack_from("<4sI", data, position)
        payload_at = position + 8
        if kind == b"EXIF":
            exif = data[payload_at : payload_at + size]
        elif kind == b"ANMF" and not frame:
            frame, is_animated = data[payload_at : payload_at + size], True
        position = payload_at + size + size % 2
    if not is_animated:
        return FirstFrame(data, exif=exif)
    canvas = (int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1)
    left, top, width, height = (int.from_bytes(frame[start : start + 3], "little") for start in (0, 3, 6, 9))
    still = _still(frame[16:], width + 1, height + 1)
    return FirstFrame(still, canvas, (2 * left, 2 * top), bool(data[20] & _HAS_ALPHA), exif)


def frame_size(frame: FirstFrame) -> tuple[int, int]:
    """Return the width and height that decoding allocates. Raises ValueError for what libwebp does not recognise."""
    features = _features(frame.data)
    size = (features.width, features.height)
    if frame.canvas is None:
        return size
    if any(at + side > whole for at, side, whole in zip(frame.offset, size, frame.canvas, strict=True)):
        raise ValueError("the frame leaves its canvas")
    return frame.canvas


def decode(frame: FirstFrame) -> Image.Image:
    """Return the frame on its canvas as RGBA, or RGB where nothing can be transparent. Raises ValueError where decoding
    fails."""
    features = _features(frame.data)
    has_alpha = bool(features.has_alpha) if frame.has_alpha is None else frame.has_alpha
    # unlike a bytearray's, its pages are zeroed when libwebp first writes to them, without the interpreter lock
    pixels = mmap.mmap(-1, 4 * features.width * features.height)
    target = (ctypes.c_char * len(pixels)).from_buffer(pixels)
    size = ctypes.c_size_t(len(pixels))
    if not _library().WebPDecodeRGBAInto(
        frame.data, ctypes.c_size_t(len(frame.data)), target, size, 4 * features.width
    ):
        raise ValueError("the WebP does not decode")
    raw_mode, mode = ("RGBA", "RGBA") if has_alpha else ("RGBX", "RGB")
    buffer: Any = pixels  # Pillow accepts any buffer, though its types allow few
    image = Image.frombuffer(raw_mode, (features.width, features.height), buffer, "raw", raw_mode, 0, 1).convert(mode)
    if frame.canvas is None or image.size == frame.canvas:
        return image
    canvas = Image.new(mode, frame.canvas)
    canvas.paste(image, frame.offset)
    return canvas


def _still(chunks: bytes, width: int, height: int) -> bytes:
    """Return a WebP file of one image with these chunks."""
    if chunks.startswith(b"ALPH"):
        sides = b"".join((side - 1).to_bytes(3, "little") for side in (width, height))
        chunks = struct.pack("<4sII", b"VP8X", 10, _HAS_ALPHA) + sides + chunks
    return struct.pack("<4sI4s", b"RIFF", len(chunks) + 4, b"WEBP") + chunks


def _features(data: bytes) -> _Features:
    features = _Features()
    status = _library().WebPGetFeaturesInternal(
        data, ctypes.c_size_t(len(data)), ctypes.byref(features), _DECODER_ABI_VERSION
    )
    if status != 0 or features.has_animation:
        raise ValueError("libwebp does not know what this is")
    return features


@cache
def _library() -> ctypes.CDLL:
    """Return Pillow's own libwebp: symbols are looked up in the libraries that its module was linked against."""
    library = ctypes.CDLL(_webp.__file__)
    if hasattr(library, "WebPDecodeRGBAInto"):
        library.WebPDecodeRGBAInto.restype = ctypes.c_void_p
    return library
