"""A client for a collection of a running Fovea: each call is retried until it is answered or has failed for too long.

Adding or removing an image again changes nothing, so a lost response costs only another call.
"""

import asyncio
import itertools
import random
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from services.core.backoff import backoff_s
from services.core.openai_client import Busy, retry_after_s
from services.embed.bulk.image_sources import Skipped

IDS_A_PAGE = 1000
REQUEST_TIMEOUT_S = 120.0

COLLECTION_FULL = "collection_full"
NOT_A_COPY = "collection_not_a_copy"
NO_IMAGE = "image_not_found"

BATCH_SIZE = 64
# Far below the size that a service accepts for a body (64 MiB undecoded), base64 included.
MAX_BATCH_BYTES = 8 * 1024 * 1024

_ABOUT_THE_COLLECTION = frozenset({COLLECTION_FULL, NOT_A_COPY})
_TOO_LARGE = frozenset({413, 422})
_ABOUT_IMAGES = frozenset({400, 409, 415, *_TOO_LARGE})
_RETRIED_STATUSES = frozenset({408, 429, 502, 503, 504})
_IMAGE_AT_FAULT = re.compile(r"images\.(\d+)(?:\.|$)")
T = TypeVar("T")


class Unavailable(Exception):
    """The service does not respond, or not like a Fovea; the message can be shown to users."""


class CallRefused(Exception):
    """A call that would fail again if repeated.

    `status` is the HTTP status, `image` the index in the request of the image at fault if the service names one.
    """

    def __init__(self, status: int, message: str, param: str | None, code: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        named = _IMAGE_AT_FAULT.match(param or "")
        self.image = int(named[1]) if named else None


@dataclass(frozen=True)
class Patience:
    """Seconds without a response, or with responses that ask to retry, after which a call is given up; the wait between
    two attempts grows from the first to the longest, unless the service names one."""

    give_up_after_s: float = 120.0
    first_wait_s: float = 0.25
    longest_wait_s: float = 10.0


@dataclass(frozen=True)
class Additions:
    """Numbers of images that were added and that existed with the same content, and those that were not taken."""

    num_added: int = 0
    num_unchanged: int = 0
    rejected: Sequence[Skipped] = ()

    def __add__(self, other: "Additions") -> "Additions":
        return Additions(
            self.num_added + other.num_added,
            self.num_unchanged + other.num_unchanged,
            [*self.rejected, *other.rejected],
        )


class CollectionClient:
    """A client for one collection, to be used as a context manager. At most `num_connections` calls are made at once;
    0 does not limit them. With `fill`, its additions and deletions fill a copy."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        api_key: str | None = None,
        patience: Patience | None = None,
        num_connections: int = 0,
        fill: bool = False,
    ) -> None:
        self._url = f"{url}/collections/{quote(name, safe='')}"
        self.service = url
        self._patience = patience or Patience()
        self._num_connections = num_connections
        self._changes = "?fill=true" if fill else ""
        headers = {"X-Request-Timeout": f"{REQUEST_TIMEOUT_S:g}"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self._headers = headers

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=REQUEST_TIMEOUT_S + 10)
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=self._num_connections)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def put(self, description: Mapping[str, Any]) -> dict[str, Any]:
        """Create the collection, or change what the description names; return what it is now.

        Raises Unavailable at once if nothing listens, and CallRefused.
        """
        return await self._first("PUT", orjson.dumps(description))

    async def describe(self) -> dict[str, Any]:
        """Return what it is. Raises Unavailable at once if nothing listens, and CallRefused."""
        return await self._first("GET", None)

    async def listed(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the entries of its images, ascending by id. Raises Unavailable, CallRefused."""
        after: str | None = None
        while True:
            query = f"?limit={IDS_A_PAGE}" + ("" if after is None else f"&after={quote(after, safe='')}")
            page = await self._call("GET", f"/images{query}")
            for image in page["data"]:
                yield image
            if not page["has_more"] or not page["data"]:
                return
            after = page["data"][-1]["id"]

    async def add(self, images: Sequence[Mapping[str, Any]]) -> Additions:
        """Add images, JSON objects, except those at fault, which do not keep the others out.

        Raises Unavailable, and CallRefused for what does not concern a single image.
        """
        if not images:
            return Additions()
        try:
            body = await asyncio.to_thread(orjson.dumps, {"images": list(images)})
            answer = await self._call("POST", f"/images{self._changes}", body)
            return Additions(answer["added"], answer["unchanged"])
        except CallRefused as refused:
            if refused.code in _ABOUT_THE_COLLECTION or refused.status not in _ABOUT_IMAGES:
                raise
            if len(images) == 1:
                return Additions(rejected=[Skipped(images[0]["id"], str(refused))])
            if refused.image is not None and refused.image < len(images):
                at_fault = Additions(rejected=[Skipped(images[refused.image]["id"], str(refused))])
                return at_fault + await self.add([*images[: refused.image], *images[refused.image + 1 :]])
            # a service that takes fewer images or bytes in a request is sent smaller batches
            size = (len(images) + 1) // 2 if refused.status in _TOO_LARGE else 1
        done = Additions()
        for start in range(0, len(images), size):
            done += await self.add(images[start : start + size])
        return done

    async def data(self, image_id: str) -> bytes | None:
        """Return an image as it was uploaded, None if there is none. Raises Unavailable, CallRefused."""
        try:
            data: bytes = await self._call("GET", f"/images/{quote(image_id)}", is_json=False)
        except CallRefused as refused:
            if refused.code != NO_IMAGE:
                raise
            return None
        return data

    async def remove(self, image_id: str) -> None:
        """Remove an image, which may be gone already. Raises Unavailable, CallRefused."""
        try:
            await self._call("DELETE", f"/images/{quote(image_id)}{self._changes}", is_json=False)
        except CallRefused as refused:
            if refused.code != NO_IMAGE:
                raise

    async def _first(self, method: str, body: bytes | None) -> dict[str, Any]:
        """Call as `_call` does, but give up at once if nothing listens."""
        answer: dict[str, Any]
        try:
            answer = await self._send(method, "", body)
        except aiohttp.ClientConnectorError as error:
            raise Unavailable(f"no Fovea at {self.service}: {error}") from None
        except (aiohttp.ClientError, TimeoutError, Busy):
            answer = await self._call(method, "", body)
        return answer

    async def _call(self, method: str, path: str, body: bytes | None = None, *, is_json: bool = True) -> Any:
        """Call until there is a response, and return its JSON or its bytes."""
        patience = self._patience
        began = time.monotonic()
        for num_failures in itertools.count(1):
            asked_s = 0.0
            try:
                return await self._send(method, path, body, is_json=is_json)
            except Busy as busy:
                reason, asked_s = str(busy), busy.retry_after_s or 0.0
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            if time.monotonic() - began > patience.give_up_after_s:
                raise Unavailable(f"{self.service} has not responded for {patience.give_up_after_s:g} s: {reason}")
            wait_s = backoff_s(num_failures, patience.first_wait_s, patience.longest_wait_s)
            # randomised, so that calls that failed together are not repeated at the same time
            await asyncio.sleep(max(asked_s, wait_s * random.uniform(0.5, 1.0)))

    async def _send(self, method: str, path: str, body: bytes | None = None, *, is_json: bool = True) -> Any:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        url = URL(f"{self._url}{path}", encoded=True)
        async with self._session.request(method, url, data=body, headers=headers) as response:
            content = await response.read()
            if response.status < 300:
                return _parsed(content, self.service) if is_json else content
            message, param, code = _error(content, response)
            if response.status in _RETRIED_STATUSES:
                raise Busy(f"{response.status}: {message}", retry_after_s(response.headers))
            raise CallRefused(response.status, message, param, code)


def _parsed(content: bytes, service: str) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        raise Unavailable(f"the server at {service} is not Fovea: its response is not JSON") from None


def _error(content: bytes, response: aiohttp.ClientResponse) -> tuple[str, str | None, str | None]:
    """Extract message, param and code of an error; a proxy in front of the service may respond in another format."""
    try:
        error = orjson.loads(content)["error"]
        return error["message"], error.get("param"), error.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return f"{response.status} {response.reason}", None, None


class Sized(Protocol):
    """A thing of a known size."""

    @property
    def num_bytes(self) -> int: ...


SizedT = TypeVar("SizedT", bound=Sized)


async def in_batches(items: AsyncIterator[SizedT], size: int = BATCH_SIZE) -> AsyncGenerator[list[SizedT], None]:
    """Cut into batches of at most `size` things and MAX_BATCH_BYTES; a larger one is a batch of its own."""
    batch: list[SizedT] = []
    num_bytes = 0
    async for one in items:
        if len(batch) == size or (batch and num_bytes + one.num_bytes > MAX_BATCH_BYTES):
            yield batch
            batch, num_bytes = [], 0
        batch.append(one)
        num_bytes += one.num_bytes
    if batch:
        yield batch


async def each(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield things for a loop that waits for others."""
    for one in items:
        yield one


async def in_workers(items: AsyncIterator[T], work: Callable[[T], Awaitable[None]], num_workers: int) -> None:
    """Work at items, several at once, each taken from the iterator when a worker is free. Raises the first failure."""
    taking = asyncio.Lock()

    async def keep_working() -> None:
        while True:
            async with taking:
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    return
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(num_workers):
                group.create_task(keep_working())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
