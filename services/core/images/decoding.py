"""Decode images as clients send them: bytes to RGB pixels, under limits.

Nothing that a client sends may cost more than the limits allow, or give any result but an image or a 4xx.
"""

import struct
import zlib
from io import BytesIO

import structlog
from PIL import Image, ImageChops, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from services.core.errors import InvalidRequest, TooLarge, blaming
from services.core.images import webp
from services.core.images.headers import ImageHeader, orientation, read_header
from services.core.images.references import ImageLimits
from services.core.memory import check_memory

STRIP_PIXELS = 1_000_000
END_OF_JPEG = b"\xff\xd9"
# Reducing a JPEG leaves at least this many times the size to which it will be resized, so that the result differs from
# that of the whole image by few steps of 256.
LEFT_TO_RESIZE = 2
REDUCTIONS = (8, 4, 2)  # those that libjpeg has
# Stands for pixels of a JPEG that may be missing: they would be other ones than without it.
_OTHER_PIXELS = b"\xaa" * 4096

# `Image.open` would warn through the process-wide filters about large sizes; a plugin alone does not.
_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}

# Bytes per pixel as the file has it, and as RGB.
DECODING_BYTES_PER_PIXEL = 8

# Exceptions of decoders on damaged files: the first four are common, the others follow from the decoders' code.
_DECODER_FAILURES = (
    OSError,
    SyntaxError,
    ValueError,
    AssertionError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    EOFError,
    NotImplementedError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)

_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(data: bytes, limits: ImageLimits, *, side: int | None = None, param: str | None = None) -> Image.Image:
    """Return the first frame of a JPEG, PNG, WebP, GIF or BMP as loaded RGB pixels, turned upright.

    Transparent pixels are laid over white, 16-bit channels keep their upper byte, colour profiles are ignored, and
    the result carries no metadata, so nothing turns it a second time. Safe to call from several threads.

    `side` is the length in pixels to which the caller will resize the shorter side. A JPEG whose shorter side is at
    least four times as long then comes at a half, a quarter or an eighth of its size, if that divides both sides.

    Raises TooLarge (naming limit and value), UnsupportedMediaType (naming what was found) or InvalidRequest;
    `param` is the request field they blame.
    """
    return load_image(read_image_header(data, limits, param=param), limits, side=side, param=param)


def read_image_header(data: bytes, limits: ImageLimits, *, param: str | None = None) -> ImageHeader:
    """Return what `decode_image` would decode. Raises what `decode_image` raises, except for damaged pixels."""
    with blaming(param):
        if not data:
            raise InvalidRequest("The image is empty.")
        if len(data) > limits.max_image_bytes:
            raise TooLarge(f"The image has {len(data)} bytes; the limit is {limits.max_image_bytes} bytes.")
        header = read_header(data)
        _check_size((header.width, header.height), limits)
        return header


def load_image(
    header: ImageHeader, limits: ImageLimits, *, side: int | None = None, param: str | None = None
) -> Image.Image:
    """Decode the image that `read_image_header` found. Raises what `decode_image` raises."""
    with blaming(param):
        try:
            return _load(header, limits, side)
        except _DECODER_FAILURES:
            check_memory(DECODING_BYTES_PER_PIXEL * header.width * header.height)  # decoders report its lack as damage
            raise InvalidRequest(f"The image is truncated or damaged: its {header.format} can't be decoded.") from None


def _load(header: ImageHeader, limits: ImageLimits, side: int | None) -> Image.Image:
    if header.format == "WEBP" and webp.is_available():
        image, exif = _load_webp(header.data, limits)
    else:
        image = _PLUGINS[header.format](BytesIO(header.data))
        # Where a header contradicts itself, the decoder allocates by its own reading.
        _check_size(image.size, limits)
        if side is not None and header.has_scales:
            image.draft(None, _reduced(image.size, side))
        try:
            image.load()
        except OSError:
            if header.format != "JPEG":
                raise
            image.close()  # its pixels: two more images are decoded
            image = _without_end(header.data)
        exif = header.exif or image.info.get("exif", b"")
    image = _to_rgb(image)
    transposition = _TRANSPOSITIONS.get(orientation(exif)) if exif else None
    if transposition is not None:
        image = image.transpose(transposition)
    image.info = {}
    return image


def _reduced(size: tuple[int, int], side: int) -> tuple[int, int]:
    """Return the size at which to decode a JPEG that will be resized to `side`.

    Both sides are divided without a remainder: a last row of fewer pixels would move the others when it is resized.
    """
    width, height = size
    for reduction in REDUCTIONS:
        if min(size) >= LEFT_TO_RESIZE * reduction * side and width % reduction == height % reduction == 0:
            return width // reduction, height // reduction
    return size


def _without_end(data: bytes) -> Image.Image:
    """Decode a JPEG that lacks the marker of its end and no pixel, as browsers do. Raises OSError for others."""
    begun = data.removesuffix(END_OF_JPEG[:1])
    image = JpegImageFile(BytesIO(begun + END_OF_JPEG))
    height = max(1, STRIP_PIXELS // image.width)
    with JpegImageFile(BytesIO(begun + _OTHER_PIXELS + END_OF_JPEG)) as other:
        for top in range(0, image.height, height):
            strip = (0, top, image.width, min(top + height, image.height))
            if ImageChops.difference(image.crop(strip), other.crop(strip)).getbbox() is not None:
                raise OSError("pixels are missing")
    structlog.get_logger(__name__).warning("a JPEG lacks its last bytes; all pixels are there", image_bytes=len(data))
    return image


def _load_webp(data: bytes, limits: ImageLimits) -> tuple[Image.Image, bytes]:
    frame = webp.first_frame(data)
    _check_size(webp.frame_size(frame), limits)
    return webp.decode(frame), frame.exif


def _check_size(size: tuple[int, int], limits: ImageLimits) -> None:
    width, height = size
    if min(size) < 1:
        raise InvalidRequest(f"The image has no pixels: {width} x {height}.")
    if max(size) > limits.max_side:
        raise TooLarge(f"The image is {width} x {height} pixels; the limit is {limits.max_side} per side.")
    if width * height > limits.max_pixels:
        raise TooLarge(f"The image has {width * height} pixels; the limit is {limits.max_pixels} pixels.")


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "I;16":
        image = _upper_bytes(image)
    if image.has_transparency_data:
        pixels = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", pixels.size, "white")
        image.paste(pixels, mask=pixels)
    return image if image.mode == "RGB" else image.convert("RGB")


def _upper_bytes(image: Image.Image) -> Image.Image:
    """Convert 16-bit grey to 8-bit grey, with an alpha channel where one of its values means transparent.

    `convert` would clip at 255 instead of scaling; Pillow keeps the upper byte of 16-bit colour too. It works in
    strips, since each operation holds the interpreter lock.
    """
    upper = Image.new("L" if image.info.get("transparency") is None else "LA", image.size)
    height = max(1, STRIP_PIXELS // image.width)
    for top in range(0, image.height, height):
        strip = image.crop((0, top, image.width, min(top + height, image.height)))
        upper.paste(_upper_bytes_of_strip(strip), (0, top))
    return upper


def _upper_bytes_of_strip(image: Image.Image) -> Image.Image:
    pixels = image.tobytes("raw", "I;16")
    upper, lower = (Image.frombytes("L", image.size, pixels[start::2]) for start in (1, 0))
    transparent = image.info.get("transparency")
    if transparent is not None:
        # a value is the transparent one where both of its bytes are
        differs = (_unlike(upper, transparent >> 8), _unlike(lower, transparent & 0xFF))
        upper.putalpha(ImageChops.lighter(*differs))
    return upper


def _unlike(image: Image.Image, value: int) -> Image.Image:
    """Return 8-bit grey that is 0 where such an image has this value, and 255 elsewhere."""
    return image.point([0 if one == value else 255 for one in range(256)])
