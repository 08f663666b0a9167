"""A large model behind an OpenAI-compatible address: each request is sent again until it is answered, or too often not.

Where the endpoint asks for patience, all requests have it, not only the one that was told.
"""

import asyncio
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import orjson

MAX_RETRY_AFTER_S = 120.0
CONNECT_TIMEOUT_S = 10.0
MAX_MESSAGE_CHARACTERS = 500

Api = Literal["chat", "completions"]

_PATHS: Mapping[Api, str] = {"chat": "chat/completions", "completions": "completions"}
_RETRIED_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
# A wrong key, an unpaid bill, no such address or model: they are not about one request.
_STATUSES_ABOUT_ALL = frozenset({*range(300, 400), 401, 402, 403, 404, 405})
_CODES_ABOUT_ALL = frozenset({"insufficient_quota", "billing_hard_limit_reached"})


class TeacherError(Exception):
    """A request without an answer; the message is fit to be shown. `is_about_all`: no other would get one either."""

    def __init__(self, message: str, *, status: int | None = None, is_about_all: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_about_all = is_about_all


@dataclass(frozen=True)
class Endpoint:
    """An address such as `http://127.0.0.1:8080/v1`, the route below it, and the key that opens it."""

    base_url: str
    api: Api = "chat"
    key: str | None = None


@dataclass(frozen=True)
class Patience:
    """Attempts at one request, the time that each may take, and the waits between them, which double up to the longest
    unless the endpoint names one."""

    attempts: int = 10
    timeout_s: float = 600.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0


@dataclass(frozen=True)
class Answer:
    """What the teacher wrote, why it ended, under which name the endpoint knows it, and the tokens that it counted.

    What an endpoint leaves out is None.
    """

    text: str
    finish_reason: str | None
    model: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


class Teacher:
    """Use it as a context manager; `ask` may be called many times at once."""

    def __init__(self, endpoint: Endpoint, patience: Patience | None = None) -> None:
        self._endpoint = endpoint
        self._patience = patience or Patience()
        self._url = f"{endpoint.base_url.rstrip('/')}/{_PATHS[endpoint.api]}"
        self._headers = {"Authorization": f"Bearer {endpoint.key}"} if endpoint.key else {}
        self._has_answered = False  # anything, at any time
        self._not_before = 0.0  # on the monotonic clock
        self._stopped = asyncio.Event()
        self.num_retries = 0

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self._patience.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def stop(self) -> None:
        """Send nothing any more; requests that are on their way still get their answers."""
        self._stopped.set()

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """The answer to a request's JSON.

        Raises TeacherError: at once where nobody has ever listened and for what no repetition would mend, else after
        so many attempts, or when it is stopped.
        """
        patience = self._patience
        content = orjson.dumps(body)
        wait_s = patience.first_wait_s
        for attempt in range(1, patience.attempts + 1):
            await self._wait_until(self._not_before)
            asked_s = 0.0
            try:
                return await self._send(content)
            except _Busy as busy:
                reason, asked_s = str(busy), busy.retry_after_s
            except aiohttp.ClientConnectorError as error:
                reason = str(error)
                if not self._has_answered:
                    raise TeacherError(f"nobody answers at {self._url}: {reason}", is_about_all=True) from None
            except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
                raise TeacherError(f"{self._url} is no address over HTTP", is_about_all=True) from None
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            if attempt < patience.attempts:
                self.num_retries += 1
                self._not_before = max(self._not_before, time.monotonic() + asked_s)
                # apart, so that requests that failed together do not come back together
                await self._wait_until(time.monotonic() + max(asked_s, wait_s * random.uniform(0.5, 1.0)))
                wait_s = min(2 * wait_s, patience.longest_wait_s)
        raise TeacherError(f"{patience.attempts} attempts have failed, the last with: {reason}")

    async def _wait_until(self, moment: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, moment - time.monotonic())):
                await self._stopped.wait()
        if self._stopped.is_set():
            raise TeacherError("stopped before it was answered", is_about_all=True)

    async def _send(self, content: bytes) -> Answer:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=content, headers=headers, allow_redirects=False) as response:
            received = await response.read()
        self._has_answered = True
        if response.status == 200:
            return self._answer(received)
        message, code = _error(received)
        message = self._without_key(f"{response.status}: {message or response.reason}")
        if code in _CODES_ABOUT_ALL or response.status in _STATUSES_ABOUT_ALL:
            raise TeacherError(message, status=response.status, is_about_all=True)
        if response.status in _RETRIED_STATUSES:
            raise _Busy(message, _retry_after_s(response.headers))
        raise TeacherError(message, status=response.status)

    def _answer(self, received: bytes) -> Answer:
        try:
            body = orjson.loads(received)
            choice = body["choices"][0]
            text = choice["message"]["content"] if self._endpoint.api == "chat" else choice["text"]
            usage = body.get("usage") or {}
            return Answer(
                _text_of(text or ""),
                choice.get("finish_reason"),
                body.get("model"),
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
            )
        except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
            raise TeacherError(f"what answers at {self._url} does not answer as OpenAI's does", status=200) from None

    def _without_key(self, message: str) -> str:
        key = self._endpoint.key
        return message.replace(key, "…") if key else message


class _Busy(Exception):
    """An answer that asks to come again, in `retry_after_s` seconds or whenever."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def _text_of(content: Any) -> str:
    """Of a message's content, which some send in parts. Raises TypeError, LookupError."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _error(received: bytes) -> tuple[str | None, str | None]:
    """Message and code of an error; what stands before the endpoint may answer in its own way."""
    try:
        error = orjson.loads(received)["error"]
        if isinstance(error, str):
            return error[:MAX_MESSAGE_CHARACTERS], None
        return str(error["message"])[:MAX_MESSAGE_CHARACTERS], error.get("code")
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None, None


def _retry_after_s(headers: Mapping[str, str]) -> float:
    for header, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return min(max(float(headers[header]) * unit_s, 0.0), MAX_RETRY_AFTER_S)
        except (KeyError, ValueError):
            continue
    return 0.0
