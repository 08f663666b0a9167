"""From the images that requests name to their bytes and pixels: fetched, looked up, decoded on a few threads."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self, TypeVar

from PIL import Image

from services.core.errors import InvalidField, InvalidRequest, NotFound, Overloaded
from services.core.fetch import FetchLimits, ImageFetcher
from services.core.images import ImageLimits, ImageReference, ImageUrl, StoredImage, decode_image, parse_image_reference
from services.core.json_bodies import JsonImage
from services.core.metrics import Metrics

T = TypeVar("T")


# Images that may wait for a decoding thread, over all requests; what comes after them is refused.
MAX_WAITING_IMAGES = 1024


@dataclass(frozen=True, eq=False)
class ImageInput:
    """An image as the request names it; `param` is the field to blame."""

    reference: ImageReference
    param: str


def image_input(image: JsonImage, param: str, limits: ImageLimits) -> ImageInput:
    """An image in a JSON body. Raises what `parse_image_reference` raises."""
    return ImageInput(parse_image_reference(image, param=param, limits=limits), param)


class ImageInputs:
    """Used inside its `async with` block. Without `fetch_limits` images by URL are refused,
    naming `url_setting`, the variable that would allow them.

    `stored_image` looks up an image of a collection; the process that has collections sets it.
    """

    def __init__(
        self,
        limits: ImageLimits,
        *,
        fetch_limits: FetchLimits | None,
        url_setting: str,
        num_threads: int,
        max_waiting: int = MAX_WAITING_IMAGES,
        metrics: Metrics,
    ) -> None:
        self.limits = limits
        self.threads = ThreadPoolExecutor(num_threads, "decode")
        self.stored_image: Callable[[StoredImage], Awaitable[bytes]] | None = None
        self._fetch_limits = fetch_limits
        self._url_setting = url_setting
        self._fetcher: ImageFetcher | None = None
        self._max_waiting = max_waiting
        self._num_waiting = 0
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
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def bytes_of(self, reference: ImageReference, param: str) -> bytes:
        """Raises NotFound, InvalidField for a stored image where there are no collections, InvalidRequest where URLs
        are turned off, and what fetching raises, all naming `param`."""
        if isinstance(reference, StoredImage):
            return await self._stored(reference, param)
        if not isinstance(reference, ImageUrl):
            return reference
        if self._fetcher is None:
            raise InvalidRequest(
                f"Image URLs are turned off on this server ({self._url_setting}); send the image itself.",
                param=param,
                code="image_url_not_allowed",
            )
        with self._fetch_seconds.time():
            return await self._fetcher.fetch(reference.url, param=param)

    async def decode(self, data: bytes, param: str, use: Callable[[Image.Image], T]) -> T:
        """What `use` makes of the RGB pixels, on a decoding thread. Raises Overloaded where too many images wait,
        and what `decode_image` raises."""
        if self._num_waiting >= self._max_waiting:
            self._rejected.inc()
            raise Overloaded("Too many images are waiting to be decoded.", code="queue_full")

        def decode() -> T:
            with self._decode_seconds.time():
                return use(decode_image(data, self.limits, param=param))

        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.threads, decode)
        finally:
            self._num_waiting -= 1

    async def _stored(self, reference: StoredImage, param: str) -> bytes:
        if self.stored_image is None:
            raise InvalidField(
                "This service keeps no collections, so no image has an id here; send the image itself.", param=param
            )
        try:
            return await self.stored_image(reference)
        except NotFound as error:
            error.param = param
            raise
