"""Images as requests name them: in the request itself, at a URL, or in a collection."""

import binascii
import re
from dataclasses import dataclass
from urllib.parse import unquote

from pydantic import JsonValue

from services.core.errors import InvalidField, InvalidRequest, TooLarge, UnsupportedMediaType

MEBIBYTE = 1024 * 1024
MAX_URL_CHARACTERS = 8_192

# An image in a request; its form is determined, or refused by name, when it is parsed.
JsonImage = str | dict[str, JsonValue]

_DATA_URI = re.compile(r"data:([^,;]*)((?:;[^,;]*)*),", re.IGNORECASE)
# URL-safe base64 replaces two characters.
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
    """An `http` or `https` URL, whose host has not been checked yet (`services.core.images.fetch` does)."""

    url: str


@dataclass(frozen=True)
class StoredImage:
    """An image that a collection holds."""

    collection: str
    image_id: str


ImageReference = bytes | ImageUrl | StoredImage


def parse_image_reference(value: object, *, param: str, limits: ImageLimits) -> ImageReference:
    """Parse an `image` in a JSON body to its bytes, the URL to fetch them from, or the stored image.

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
        'An image must be a data URI, base64, an http(s) URL, {"url": …} or, in a service with collections,'
        ' {"id": "collection/image-id"}.',
        param=param,
    )


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
    # browsers say so of files whose type they do not know; the bytes tell it
    if not media_type.startswith("image/") and media_type not in ("", "application/octet-stream"):
        raise UnsupportedMediaType(f"The data URI contains {media_type[:100]}, not image/*.", param=param)
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
        raise InvalidField('The id of a stored image must have the form "collection/image-id".', param=param)
    return StoredImage(collection, image_id)
