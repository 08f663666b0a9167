"""The images of requests as bytes and pixels: fetched, looked up, decoded on a few threads.

Decoding takes up to 8 bytes per pixel. Small images share threads whose number bounds their memory; large ones share a
budget of pixels, on threads of their own. In both, requests take turns: one with a thousand images and one with a
single image each decode one image per turn. An image that is cancelled while it waits is never decoded.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from PIL import Image

from services.core.errors import InvalidField, InvalidRequest, NotFound, Overloaded
from services.core.fair_threads import FairThreads
from services.core.images.decoding import load_image, read_image_header
from services.core.images.fetch import FetchLimits, ImageFetcher
from services.core.images.headers import ImageHeader
from services.core.images.references import (
    ImageLimits,
    ImageReference,
    ImageUrl,
    JsonImage,
    StoredImage,
    parse_image_reference,
)
from services.core.metrics import Metrics
from services.core.settings import ImageSettings

T = TypeVar("T")


# Images of one client that may wait for a decoding thread; further ones are refused.
MAX_WAITING_IMAGES = 1024
# Images of each slice that one request submits at a time, so that many requests find room before any is refused.
DECODED_AT_ONCE = 8
# Just above a 12-megapixel phone photograph.
SMALL_IMAGE_PIXELS = 12_600_000
# Large images of one client that may wait, in units of the budget of pixels.
MAX_WAITING_BUDGETS = 64


@dataclass(frozen=True)
class DecodeLimits:
    """Limits of decoding: `num_threads` decode small images, half as many large ones of `max_pixels` in sum at most.

    `max_waiting` small images of one client may wait.
    """

    num_threads: int
    max_pixels: int = 64_000_000
    max_waiting: int = MAX_WAITING_IMAGES


@dataclass(frozen=True, eq=False)
class ImageInput:
    """An image as the request names it; `param` is the field to blame."""

    reference: ImageReference
    param: str


def image_input(image: JsonImage, param: str, limits: ImageLimits) -> ImageInput:
    """Parse an image in a JSON body. Raises what `parse_image_reference` raises."""
    return ImageInput(parse_image_reference(image, param=param, limits=limits), param)


class ImageInputs:
    """A service's image inputs, used inside an `async with` block.

    Without `fetch_limits` image URLs are rejected with an error that names `url_setting`, the variable that allows
    them. `stored_image` looks up an image of a collection; the process that has collections sets it. `threads` are for
    the other work of requests, such as hashing images and tokenising texts.
    """

    def __init__(
        self,
        limits: ImageLimits,
        *,
        fetch_limits: FetchLimits | None,
        url_setting: str,
        decoding: DecodeLimits,
        metrics: Metrics,
    ) -> None:
        self.limits = limits
        self.threads = FairThreads(1, "prepare")
        self.stored_image: Callable[[StoredImage], Awaitable[bytes]] | None = None
        self._fetch_limits = fetch_limits
        self._url_setting = url_setting
        self._fetcher: ImageFetcher | None = None
        self._small = FairThreads(
            decoding.num_threads, "decode", max_waiting_of_client=decoding.max_waiting, refusal=self._refusal
        )
        self._large = FairThreads(
            max(1, decoding.num_threads // 2),
            "decode-large",
            capacity=decoding.max_pixels,
            max_waiting_of_client=MAX_WAITING_BUDGETS * decoding.max_pixels,
            refusal=self._refusal,
        )
        self._rejected = metrics.rejected.labels("decode_queue_full")
        self._decode_seconds = metrics.stage_seconds.labels("decode")
        self._fetch_seconds = metrics.stage_seconds.labels("fetch")

    async def __aenter__(self) -> Self:
        if self._fetch_limits is not None:
            self._fetcher = ImageFetcher(self._fetch_limits)
        return self

    async def __aexit__(self, *failure: object) -> None:
        if self._fetcher is not None:
            await self._fetcher.close()
        for threads in (self.threads, self._small, self._large):
            threads.close()

    async def bytes_of(self, reference: ImageReference, param: str) -> bytes:
        """Return the image's bytes. Raises NotFound, InvalidField for a stored image where there are no collections,
        InvalidRequest where URLs are disabled, and what fetching raises, all naming `param`."""
        if isinstance(reference, StoredImage):
            return await self._stored(reference, param)
        if not isinstance(reference, ImageUrl):
            return reference
        if self._fetcher is None:
            raise InvalidRequest(
                f"Image URLs are disabled on this server ({self._url_setting}); send the image itself.",
                param=param,
                code="image_url_not_allowed",
            )
        with self._fetch_seconds.time():
            return await self._fetcher.fetch(reference.url, param=param)

    async def decode(self, data: bytes, param: str, use: Callable[[Image.Image], T], *, side: int | None = None) -> T:
        """Return what `use` makes of the RGB pixels, on a decoding thread; `side` is as in `decode_image`.

        Raises Overloaded where too many images of the client wait, and what `decode_image` raises.
        """

        def decode(header: ImageHeader) -> T:
            with self._decode_seconds.time():
                return use(load_image(header, self.limits, side=side, param=param))

        def decode_small() -> T | ImageHeader:
            header = read_image_header(data, self.limits, param=param)
            return decode(header) if header.num_pixels <= SMALL_IMAGE_PIXELS else header

        begun = await self._small.run(decode_small)
        if not isinstance(begun, ImageHeader):
            return begun
        return await self._large.run(lambda: decode(begun), begun.num_pixels)

    def _refusal(self) -> Overloaded:
        self._rejected.inc()
        return Overloaded("Too many images are waiting to be decoded.", code="queue_full")

    async def _stored(self, reference: StoredImage, param: str) -> bytes:
        if self.stored_image is None:
            raise InvalidField(
                "This service has no collections, so images have no ids; send the image itself.", param=param
            )
        try:
            return await self.stored_image(reference)
        except NotFound as error:
            error.param = param
            raise


def image_inputs(settings: ImageSettings, limits: ImageLimits, metrics: Metrics) -> ImageInputs:
    """Make the reader of requests' images, from URLs too where the settings allow it."""
    fetch_limits = None
    if settings.image_urls:
        fetch_limits = FetchLimits(max_image_bytes=limits.max_image_bytes, allowed_hosts=settings.image_url_hosts)
    return ImageInputs(
        limits,
        fetch_limits=fetch_limits,
        url_setting=f"{settings.model_config.get('env_prefix')}IMAGE_URLS",
        decoding=DecodeLimits(settings.num_decode_threads, settings.max_decode_pixels),
        metrics=metrics,
    )
