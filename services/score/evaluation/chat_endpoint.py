"""One request to an OpenAI-compatible chat endpoint, sent again until it is answered, refused, or too often not."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
import stamina

from services.score.evaluation.judges import CannotJudge

CONNECT_TIMEOUT_S = 10.0
LONGEST_WAIT_S = 60.0
MAX_MESSAGE_CHARACTERS = 500

_RETRIED_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
# What is about one request, its image or its texts; all others are about every one.
_REFUSING_STATUSES = frozenset({400, 413, 415, 422, 451})


class Refused(Exception):
    """The endpoint does not take one request; the message says why."""


@dataclass(frozen=True)
class Endpoint:
    """An address such as `http://127.0.0.1:8000/v1`, the model's name there, and the key that opens it."""

    base_url: str
    model: str
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Pace:
    """Requests on their way at a time, attempts at each, how long one takes and the first wait between two."""

    concurrency: int = 8
    attempts: int = 8
    timeout_s: float = 120.0
    first_wait_s: float = 0.5


class Chat:
    """Use it as a context manager; `ask` may be called many times at once."""

    def __init__(self, endpoint: Endpoint, pace: Pace) -> None:
        self._endpoint = endpoint
        self._pace = pace
        self._url = f"{endpoint.base_url.rstrip('/')}/chat/completions"
        self._has_answered = False  # anything, at any time

    async def __aenter__(self) -> Self:
        key = self._endpoint.key
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=self._pace.timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=0),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, body: Mapping[str, Any]) -> str:
        """The text of the answer to a request's JSON.

        Raises Refused, and CannotJudge for what no repetition would mend or none has mended.
        """
        content = orjson.dumps(body)
        attempts = stamina.retry_context(
            on=self._wait_s,
            attempts=self._pace.attempts,
            timeout=None,
            wait_initial=self._pace.first_wait_s,
            wait_max=LONGEST_WAIT_S,
            wait_jitter=self._pace.first_wait_s,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    return await self._send(content)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError) as error:
            raise CannotJudge(f"{self._url} is no address over HTTP") from error
        except (aiohttp.ClientError, TimeoutError, _Busy) as error:
            told = str(error) or type(error).__name__
            if not self._has_answered:
                raise CannotJudge(f"nobody answers at {self._url}: {told}") from error
            raise CannotJudge(f"{self._pace.attempts} attempts have failed, the last with: {told}") from error
        raise AssertionError("attempts end with an answer or an error")

    def _wait_s(self, error: Exception) -> bool | float:
        """Whether to send again after an error, and after how many seconds where the endpoint says."""
        if isinstance(error, _Busy):
            return True if error.retry_after_s is None else error.retry_after_s
        if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
            return False
        if isinstance(error, aiohttp.ClientConnectorError):
            return self._has_answered
        return isinstance(error, aiohttp.ClientError | TimeoutError)

    async def _send(self, content: bytes) -> str:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=content, headers=headers, allow_redirects=False) as response:
            received = await response.read()
        self._has_answered = True
        if response.status == 200:
            return self._text(received)
        message = f"{response.status}: {_message(received) or response.reason}"
        if self._endpoint.key:
            message = message.replace(self._endpoint.key, "…")
        if response.status in _RETRIED_STATUSES:
            raise _Busy(message, _retry_after_s(response.headers))
        if response.status in _REFUSING_STATUSES:
            raise Refused(message)
        raise CannotJudge(f"{self._url} answers {message}")

    def _text(self, received: bytes) -> str:
        try:
            content = orjson.loads(received)["choices"][0]["message"]["content"]
            if content is None or isinstance(content, str):
                return content or ""
            return "".join(part["text"] for part in content if part["type"] == "text")
        except (orjson.JSONDecodeError, LookupError, TypeError) as error:
            raise CannotJudge(f"what answers at {self._url} does not answer as OpenAI's does") from error


class _Busy(Exception):
    """An answer that asks to come again, in `retry_after_s` seconds or whenever."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def _message(received: bytes) -> str | None:
    """What an error says; what stands before the endpoint may answer in its own way."""
    try:
        error = orjson.loads(received)["error"]
        return str(error if isinstance(error, str) else error["message"])[:MAX_MESSAGE_CHARACTERS]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    try:
        return min(max(float(headers["Retry-After"]), 0.0), LONGEST_WAIT_S)
    except (KeyError, ValueError):
        return None
