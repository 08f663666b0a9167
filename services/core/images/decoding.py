"""Images as clients send them: what a request names, and bytes to RGB pixels under limits.

Nothing a client sends may cost more than the limits allow, or end as anything but an image or a 4xx.
"""

import binascii
import re
import struct
import zlib
from dataclasses import dataclass
from io import BytesIO
from urllib.parse import unquote

from PIL import Image, ImageChops, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from services.core.errors import InvalidField, InvalidRequest, TooLarge, UnsupportedMediaType, blaming
from services.core.images import webp
from services.core.images.headers import ImageHeader, orientation, read_header
from services.core.scarce_memory import check_memory

MEBIBYTE = 1024 * 1024
MAX_URL_CHARACTERS = 8_192
STRIP_PIXELS = 1_000_000

# `Image.open` would warn through the process-wide filters about large sizes; a plugin alone does not.
_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
}

# The pixels as the file has them, and as RGB.
DECODING_BYTES_PER_PIXEL = 8

# What decoders raise on damaged files: the first four in every few thousand damaged ones, the others by their code.
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

_DATA_URI = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
# URL-safe base64 writes two characters otherwise.
_BASE64_ALPHABET = bytes.maketrans(b"-_", b"+/")
_BASE64_SPACE = b" \t\r\n\f\v"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True)
class ImageLimits:
    """Largest accepted file in bytes, product of width and height, and longer side in pixels."""

    max_image_bytes: int = 20 * MEBIBYTE
    max_pixels: int = 64_000_000
    max_side: int = 32_768


@dataclass(frozen=True)
class ImageUrl:
    """An `http` or `https` URL, not yet checked for where it leads (`services.core.images.fetch` does)."""

    url: str


@dataclass(frozen=True)
class StoredImage:
    """An image that a collection holds."""

    collection: str
    image_id: str


ImageReference = bytes | ImageUrl | StoredImage


def decode_image(data: bytes, limits: ImageLimits, *, param: str | None = None) -> Image.Image:
    """The first frame of a JPEG, PNG, WebP, GIF or BMP as loaded RGB pixels, turned upright.

    Transparent pixels are laid over white, 16-bit channels keep their upper byte, colour profiles are ignored, and
    the result carries no metadata, so nothing turns it a second time. Safe to call from several threads.

    Raises TooLarge (naming limit and value), UnsupportedMediaType (naming what was found) or InvalidRequest;
    `param` is the request field they blame.
    """
    return load_image(read_image_header(data, limits, param=param), limits, param=param)


def read_image_header(data: bytes, limits: ImageLimits, *, param: str | None = None) -> ImageHeader:
    """What `decode_image` would decode, before it does. Raises what `decode_image` raises, but for damaged pixels."""
    with blaming(param):
        if not data:
            raise InvalidRequest("The image is empty.")
        if len(data) > limits.max_image_bytes:
            raise TooLarge(f"The image has {len(data)} bytes; the limit is {limits.max_image_bytes} bytes.")
        header = read_header(data)
        _check_size((header.width, header.height), limits)
        return header


def load_image(header: ImageHeader, limits: ImageLimits, *, param: str | None = None) -> Image.Image:
    """The pixels of what `read_image_header` found. Raises what `decode_image` raises."""
    with blaming(param):
        try:
            return _load(header, limits)
        except _DECODER_FAILURES:
            check_memory(DECODING_BYTES_PER_PIXEL * header.width * header.height)  # decoders call the lack of it damage
            raise InvalidRequest(f"The image is truncated or damaged: its {header.format} does not decode.") from None


def parse_image_reference(value: object, *, param: str, limits: ImageLimits) -> ImageReference:
    """What an `image` in a JSON body means: its bytes, where to fetch them, or which stored image.

    Takes a data URI, bare base64 (standard or URL-safe, with or without padding and line breaks), an `http(s)`
    URL, `{"url": …}` with any of these, OpenAI's `{"type": "image_url", "image_url": {"url": …}}`, or
    `{"id": "collection/image-id"}`. Raises InvalidField for another shape, InvalidRequest for what does not
    decode, TooLarge before decoding what is too long, UnsupportedMediaType for a data URI of something else.
    """
    match value:
        case str():
            return _parse_text(value.strip(), param, limits)
        case {"id": str(stored), **rest} if not rest.keys() & {"url", "image_url"}:
            return _parse_stored(stored, param)
        case {"image_url": {"url": str(url)} | str(url), **rest} if not rest.keys() & {"id", "url"}:
            return _parse_text(url.strip(), param, limits)
        case {"url": str(url), **rest} if not rest.keys() & {"id", "image_url"}:
            return _parse_text(url.strip(), param, limits)
    raise InvalidField(
        'An image is a data URI, base64, an http(s) URL, {"url": …} or, where collections are kept,'
        ' {"id": "collection/image-id"}.',
        param=param,
    )


def _load(header: ImageHeader, limits: ImageLimits) -> Image.Image:
    if header.format == "WEBP" and webp.is_available():
        image, exif = _load_webp(header.data, limits)
    else:
        image = _PLUGINS[header.format](BytesIO(header.data))
        # The decoder's own reading of a contradictory header is the one that will be allocated.
        _check_size(image.size, limits)
        image.load()
        exif = header.exif or image.info.get("exif", b"")
    image = _to_rgb(image)
    transposition = _TRANSPOSITIONS.get(orientation(exif)) if exif else None
    if transposition is not None:
        image = image.transpose(transposition)
    image.info = {}
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
        raise TooLarge(f"The image is {width} x {height} pixels; the limit is {limits.max_side} a side.")
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
    """16-bit grey as 8-bit grey, with an alpha channel where one of its values means transparent.

    `convert` would clip at 255 instead of scaling; the upper byte is what Pillow keeps of 16-bit colour. A strip at a
    time, since each step of one holds the interpreter.
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
        # a value is that one where both of its bytes are
        differs = (_unlike(upper, transparent >> 8), _unlike(lower, transparent & 0xFF))
        upper.putalpha(ImageChops.lighter(*differs))
    return upper


def _unlike(image: Image.Image, value: int) -> Image.Image:
    """8-bit grey that is 255 where an image of the kind has another value, and 0 where it has this one."""
    return image.point([0 if one == value else 255 for one in range(256)])


def _parse_text(text: str, param: str, limits: ImageLimits) -> bytes | ImageUrl:
    scheme = text[:8].lower()
    if scheme.startswith("data:"):
        return _parse_data_uri(text, param, limits)
    if scheme.startswith(("http://", "https://")):
        if len(text) > MAX_URL_CHARACTERS:
            raise TooLarge(f"The image URL has {len(text)} characters; the limit is {MAX_URL_CHARACTERS}.", param=param)
        return ImageUrl(text)
    if _SCHEME.match(text):
        raise InvalidRequest("Only http and https image URLs are accepted.", param=param)
    return _decode_base64(text, param, limits)


def _parse_data_uri(text: str, param: str, limits: ImageLimits) -> bytes:
    head = _DATA_URI.match(text, endpos=256)
    if head is None:
        raise InvalidRequest("The data URI has no comma after its media type.", param=param)
    media_type, options = head[1].strip().lower(), head[2].lower().replace(" ", "")
    if not media_type.startswith("image/"):
        found = media_type or "text/plain"
        raise UnsupportedMediaType(f"The data URI holds {found[:100]}, not image/*.", param=param)
    if not options.endswith(";base64"):
        raise InvalidRequest("The data URI is not base64.", param=param)
    payload = text[head.end() :]
    return _decode_base64(unquote(payload) if "%" in payload else payload, param, limits)


def _decode_base64(text: str, param: str, limits: ImageLimits) -> bytes:
    try:
        encoded = text.encode("ascii").translate(_BASE64_ALPHABET, _BASE64_SPACE).rstrip(b"=")
    except UnicodeEncodeError:
        raise InvalidRequest("The image is not valid base64.", param=param) from None
    num_bytes = len(encoded) * 3 // 4
    if num_bytes > limits.max_image_bytes:
        raise TooLarge(f"The image has {num_bytes} bytes; the limit is {limits.max_image_bytes} bytes.", param=param)
    if not encoded:
        raise InvalidRequest("The image is empty.", param=param)
    try:
        return binascii.a2b_base64(encoded + b"=" * (-len(encoded) % 4), strict_mode=True)
    except binascii.Error:
        raise InvalidRequest("The image is not valid base64.", param=param) from None


def _parse_stored(text: str, param: str) -> StoredImage:
    collection, _, image_id = text.partition("/")
    if not (collection and image_id):
        raise InvalidField('The id of a stored image is "collection/image-id".', param=param)
    return StoredImage(collection, image_id)
