"""Headers of image files, read without decoding a pixel.

`read_header` recognises a file by its content, finds its size, and passes on only what a decoder needs for the first
frame: comments, colour profiles, thumbnails, text and EXIF never reach it. So a sender can't make us inflate,
concatenate or parse them, and no decoder warns about them.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass

from services.core.errors import InvalidRequest, TooLarge, UnsupportedMediaType

# Each bounds a loop whose length the sender chooses, at a hundred times what photographs need.
MAX_JPEG_SEGMENTS = 2_048
MAX_JPEG_SCANS = 100
MAX_PNG_CHUNKS = 32_768
MAX_GIF_BLOCKS = 65_536

_JPEG_MARKER = re.compile(rb"\xff([\x01-\xfe])")
_JPEG_START_OF_SCAN = 0xDA
_JPEG_END = 0xD9
_JPEG_STANDALONE = frozenset({0x01, *range(0xD0, 0xDA)})
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_JPEG_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
_JPEG_LOSSLESS = frozenset({0xC3, 0xC7, 0xCB, 0xCF})
# Comments, and all application segments except JFIF (0) and Adobe (14), which name the colour space.
_JPEG_METADATA = (frozenset(range(0xE1, 0xF0)) - {0xEE}) | {0xFE}
_JPEG_EXIF = 0xE1

_PNG_PIXELS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})

_BMP_RUN_LENGTH_CODED = (1, 2)

_ORIENTATION_TAG = 0x0112
_SHORT = 3


@dataclass(frozen=True)
class ImageHeader:
    """A recognised image: `format` in Pillow's spelling, `data` without metadata, `exif` a TIFF structure, or empty.

    `has_scales` tells whether its decoder can make it smaller, as libjpeg can any JPEG but a lossless one.
    """

    format: str
    data: bytes
    width: int
    height: int
    exif: bytes = b""
    has_scales: bool = False

    @property
    def num_pixels(self) -> int:
        return self.width * self.height


def read_header(data: bytes) -> ImageHeader:
    """Recognise an image by its content.

    Raises UnsupportedMediaType for a known file type that is not accepted, InvalidRequest for anything else that is
    not an image or ends before its size is known, TooLarge for more parts than the MAX_… constants allow.
    """
    for _, accepts, read in _READERS:
        if accepts(data):
            try:
                return read(data)
            except (struct.error, IndexError):
                raise InvalidRequest("The image is truncated within its header.") from None
    for offset, magic, name in _REFUSED:
        if data.startswith(magic, offset):
            raise UnsupportedMediaType(f"The image is {name}; JPEG, PNG, WebP, GIF and BMP are accepted.")
    raise InvalidRequest("The content is not an image: JPEG, PNG, WebP, GIF and BMP are accepted.")


def media_type_of(data: bytes) -> str | None:
    """Return `image/png` and the like by the first bytes; None where `read_header` refuses every such file."""
    return next((media_type for media_type, accepts, _ in _READERS if accepts(data)), None)


def orientation(exif: bytes) -> int:
    """Return the orientation of a TIFF structure, 1 to 8; 1 where there is none or the structure is malformed."""
    exif = exif.removeprefix(b"Exif\0\0")
    byte_order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if byte_order is None:
        return 1
    try:
        (directory,) = struct.unpack_from(f"{byte_order}I", exif, 4)
        (num_entries,) = struct.unpack_from(f"{byte_order}H", exif, directory)
        for entry in range(num_entries):
            tag, kind, _, value = struct.unpack_from(f"{byte_order}HHIH", exif, directory + 2 + 12 * entry)
            if tag == _ORIENTATION_TAG:
                return value if kind == _SHORT and 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def _read_jpeg(data: bytes) -> ImageHeader:
    kept = [data[:2]]
    width = height = num_components = 0
    is_progressive, is_lossless = False, False
    position = 2
    exif = b""
    for _ in range(MAX_JPEG_SEGMENTS):
        marker = _JPEG_MARKER.search(data, position)
        if marker is None or marker[1][0] == _JPEG_END:
            raise InvalidRequest("The JPEG ends before its image data.")
        code, begin, position = marker[1][0], marker.start(), marker.end()
        if code == _JPEG_START_OF_SCAN:
            if is_progressive or data[begin + 4] < num_components:
                _refuse_many_scans(data, begin)
            kept.append(data[begin:])
            return ImageHeader("JPEG", b"".join(kept), width, height, exif, has_scales=not is_lossless)
        if code in _JPEG_STANDALONE:
            continue
        position = begin + 2 + struct.unpack_from(">H", data, begin + 2)[0]
        if code in _JPEG_FRAMES:
            height, width, num_components = struct.unpack_from(">HHB", data, begin + 5)
            is_progressive = code in _JPEG_PROGRESSIVE
            is_lossless |= code in _JPEG_LOSSLESS
        if code == _JPEG_EXIF and not exif and data.startswith(b"Exif\0\0", begin + 4):
            exif = data[begin + 10 : position]
        if code not in _JPEG_METADATA:
            kept.append(data[begin:position])
    raise TooLarge(f"The JPEG has more than {MAX_JPEG_SEGMENTS} segments, the limit.")


def _refuse_many_scans(data: bytes, first_scan: int) -> None:
    """Refuse a JPEG with many scans: each may touch every pixel again, so that a few bytes cost a whole decode."""
    # The marker's two bytes are rare in other data, so the exact walk is for suspicious files only.
    if data.count(b"\xff\xda", first_scan) <= MAX_JPEG_SCANS:
        return
    num_scans, position = 0, first_scan
    for _ in range(MAX_JPEG_SEGMENTS):
        marker = _JPEG_MARKER.search(data, position)
        if marker is None or marker[1][0] == _JPEG_END:
            return
        code, position = marker[1][0], marker.end()
        num_scans += code == _JPEG_START_OF_SCAN
        if num_scans > MAX_JPEG_SCANS:
            raise TooLarge(f"The JPEG has more than {MAX_JPEG_SCANS} scans, the limit.")
        if code not in _JPEG_STANDALONE:
            position += struct.unpack_from(">H", data, position)[0]
    raise TooLarge(f"The JPEG has more than {MAX_JPEG_SEGMENTS} segments, the limit.")


def _read_png(data: bytes) -> ImageHeader:
    width, height = struct.unpack_from(">II", data, 16)
    view = memoryview(data)
    kept = [view[:8]]
    exif = b""
    position = 8
    for _ in range(MAX_PNG_CHUNKS):
        if len(data) - position < 8:
            break
        length, kind = struct.unpack_from(">I4s", data, position)
        end = position + 12 + length
        if kind in _PNG_PIXELS:
            kept.append(view[position:end])
        elif kind == b"eXIf":
            exif = data[position + 8 : end - 4]
        position = end
        if kind == b"IEND":
            break
    else:
        raise TooLarge(f"The PNG has more than {MAX_PNG_CHUNKS} chunks, the limit.")
    return ImageHeader("PNG", b"".join(kept), width, height, exif)


def _read_gif(data: bytes) -> ImageHeader:
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    position = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    kept = [data[:position]]
    num_blocks = 0
    while data[position] == 0x21:
        begin = position
        position += 2
        while size := data[position]:
            position += 1 + size
            num_blocks += 1
            if num_blocks > MAX_GIF_BLOCKS:
                raise TooLarge(f"The GIF has more than {MAX_GIF_BLOCKS} blocks before its first frame, the limit.")
        position += 1
        if data[begin + 1] == 0xF9:  # graphic control, with the transparent colour
            kept.append(data[begin:position])
    if data[position] != 0x2C:
        raise InvalidRequest("The GIF has no frame.")
    left, top, frame_width, frame_height = struct.unpack_from("<HHHH", data, position + 1)
    kept.append(data[position:])
    # A frame that exceeds the screen widens it.
    return ImageHeader("GIF", b"".join(kept), max(width, left + frame_width), max(height, top + frame_height))


def _read_webp(data: bytes) -> ImageHeader:
    kind = data[12:16]
    if kind == b"VP8X":
        low_width, high_width, low_height, high_height = struct.unpack_from("<HBHB", data, 24)
        width, height = (high_width << 16 | low_width) + 1, (high_height << 16 | low_height) + 1
    elif kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", data, 26))
    else:
        raise InvalidRequest("The WebP has no image chunk.")
    return ImageHeader("WEBP", data, width, height)


def _read_bmp(data: bytes) -> ImageHeader:
    (header_bytes,) = struct.unpack_from("<I", data, 14)
    if header_bytes == 12:  # OS/2
        width, height = struct.unpack_from("<HH", data, 18)
        return ImageHeader("BMP", data, width, height)
    width, height, _, _, compression = struct.unpack_from("<iiHHI", data, 18)
    # Its decoder runs Python code for each pixel.
    if compression in _BMP_RUN_LENGTH_CODED:
        raise UnsupportedMediaType("The image is a run-length coded BMP; only plain BMP is accepted.")
    return ImageHeader("BMP", data, width, abs(height))


_READERS: tuple[tuple[str, Callable[[bytes], bool], Callable[[bytes], ImageHeader]], ...] = (
    ("image/jpeg", lambda data: data.startswith(b"\xff\xd8\xff"), _read_jpeg),
    ("image/png", lambda data: data.startswith(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"), _read_png),
    ("image/webp", lambda data: data.startswith(b"RIFF") and data[8:12] == b"WEBP", _read_webp),
    ("image/gif", lambda data: data.startswith((b"GIF87a", b"GIF89a")), _read_gif),
    ("image/bmp", lambda data: data.startswith(b"BM"), _read_bmp),
)

_REFUSED = (
    (0, b"II*\0", "a TIFF"),
    (0, b"MM\0*", "a TIFF"),
    (4, b"ftypavif", "an AVIF"),
    (4, b"ftypavis", "an AVIF"),
    (4, b"ftyphei", "a HEIC"),
    (4, b"ftypmif1", "a HEIF"),
    (4, b"ftyp", "an MP4 or QuickTime video"),
    (0, b"\0\0\0\x0cjP  ", "a JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "a JPEG 2000"),
    (0, b"\0\0\0\x0cJXL ", "a JPEG XL"),
    (0, b"\xff\x0a", "a JPEG XL"),
    (0, b"\0\0\1\0", "an icon"),
    (0, b"8BPS", "a Photoshop document"),
    (0, b"%PDF", "a PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"<svg", "an SVG"),
    (0, b"<?xml", "XML"),
    (0, b"qoif", "a QOI"),
    (0, b"P6", "a PPM"),
    (0, b"P5", "a PGM"),
)
