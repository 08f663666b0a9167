"""A client of a large model behind an OpenAI-compatible address, with a limited number of retries.

If the endpoint asks to wait, all requests wait, not only the one that was told.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import aiohttp
import orjson
import stamina

T = TypeVar("T")

MAX_RETRY_AFTER_S = 120.0
CONNECT_TIMEOUT_S = 10.0
MAX_MESSAGE_CHARACTERS = 500
# Attempts at a request whose answers are not in OpenAI's format: each may be paid for, and more seldom help.
MAX_MALFORMED = 3
STOPPED = "stopped before it was answered"

# In what reasoning models write before their answer, unless the endpoint takes it out of the content.
_THOUGHTS = ("think", "thinking", "thought", "reasoning")

Api = Literal["chat", "completions"]

_PATHS: Mapping[Api, str] = {"chat": "chat/completions", "completions": "completions"}
UNAUTHORIZED = 401
_RETRIED_STATUSES = frozenset({408, 409, 425, 429, *range(500, 600)})
# Errors about one request, its texts or its image; a wrong key, an unpaid bill or an unknown model affects all.
FILTERED = 451
_REFUSING_STATUSES = frozenset({400, 413, 415, 422, FILTERED})
_CODES_ABOUT_ALL = frozenset({"insufficient_quota", "billing_hard_limit_reached"})


class EndpointError(Exception):
    """A request that failed; the message can be shown to users.

    `status` is the HTTP status if the endpoint answered and a retry would not help; `is_about_all` means that all other
    requests would fail too.
    """

    def __init__(self, message: str, *, status: int | None = None, is_about_all: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.is_about_all = is_about_all

    @property
    def is_refusal(self) -> bool:
        """Whether the endpoint rejects only this request."""
        return self.status in _REFUSING_STATUSES and not self.is_about_all


class Malformed(EndpointError):
    """An answer with status 200 that is not in OpenAI's format."""


class Busy(Exception):
    """A response that asks to retry, in `retry_after_s` seconds if it says when."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


_NO_ADDRESS = (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError)
_PASSING = (aiohttp.ClientError, TimeoutError, Busy)


@dataclass(frozen=True)
class Endpoint:
    """An address such as `http://127.0.0.1:8080/v1`, the route below it, and its key."""

    base_url: str
    api: Api = "chat"
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Patience:
    """Attempts at one request, the time limit of each, and the waits between them, which double up to the longest
    unless the endpoint names one; whoever watches is told after `silence_s` without any answer."""

    attempts: int = 10
    timeout_s: float = 600.0
    first_wait_s: float = 0.5
    longest_wait_s: float = 60.0
    silence_s: float = 60.0


@dataclass(frozen=True)
class Answer:
    """The model's text after its thoughts, the reason for its end, the endpoint's name of the model, numbers of tokens.

    `first_token` has the log-probabilities of the most probable first tokens, if the request asked for them. A field
    that the endpoint leaves out is None.
    """

    text: str
    finish_reason: str | None
    model: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    first_token: Mapping[str, float] | None = None


class EndpointClient:
    """A client to be used as a context manager; `ask` may be called concurrently."""

    def __init__(self, endpoint: Endpoint, patience: Patience) -> None:
        self._endpoint = endpoint
        self._patience = patience
        self._url = f"{endpoint.base_url.rstrip('/')}/{_PATHS[endpoint.api]}"
        self._has_answered = False  # to any request
        self._not_before = 0.0  # on the monotonic clock
        self._stopped = asyncio.Event()
        self._num_asked = 0  # requests without an answer yet
        self._last_answer = 0.0  # on the monotonic clock
        self._last_failure = ""
        self.num_retries = 0

    async def __aenter__(self) -> Self:
        key = self._endpoint.key
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=aiohttp.ClientTimeout(total=self._patience.timeout_s, sock_connect=CONNECT_TIMEOUT_S),
            connector=aiohttp.TCPConnector(limit=0),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    def stop(self) -> None:
        """Stop sending requests; those already sent still get their answers."""
        self._stopped.set()

    async def ask(self, body: Mapping[str, Any]) -> Answer:
        """Return the answer to a request's JSON.

        Raises EndpointError: at once if a connection fails and nothing has ever answered, or if a retry would not help;
        otherwise after the last attempt, or when the client is stopped.
        """
        content = orjson.dumps(body)
        self._num_asked += 1
        try:
            return await self._send_until_answered(content)
        finally:
            self._num_asked -= 1

    async def watch(self, tell: Callable[[str], None]) -> None:
        """Tell whenever requests wait and none has been answered for `silence_s`; runs until it is cancelled."""
        self._last_answer = told = time.monotonic()
        while True:
            await asyncio.sleep(max(self._last_answer, told) + self._patience.silence_s - time.monotonic())
            now = time.monotonic()
            if now - max(self._last_answer, told) >= self._patience.silence_s:
                told = now
                if self._num_asked:
                    failed = f"; last failure: {self._last_failure}" if self._last_failure else ""
                    silence = f"no answer from {self._url} for {now - self._last_answer:.0f} s"
                    tell(f"{silence}; requests waiting: {self._num_asked}{failed}")

    async def _send_until_answered(self, content: bytes) -> Answer:
        patience = self._patience
        num_malformed = 0

        def wait_s(error: Exception) -> bool | float:
            nonlocal num_malformed
            num_malformed += isinstance(error, Malformed)
            return num_malformed < MAX_MALFORMED and self._wait_s(error)

        context = stamina.retry_context(
            on=wait_s,
            attempts=patience.attempts,
            timeout=None,
            wait_initial=patience.first_wait_s,
            wait_max=patience.longest_wait_s,
            wait_jitter=patience.first_wait_s,
        )
        try:
            attempts = aiter(context)
            while True:
                attempt = await self._unless_stopped(anext(attempts))
                await self._unless_stopped(asyncio.sleep(max(0.0, self._not_before - time.monotonic())))
                with attempt:
                    return await self._send(content)
        except _NO_ADDRESS:
            raise EndpointError(f"{self._url} is not an HTTP address", is_about_all=True) from None
        except _PASSING as error:
            reason = _reason(error)
            if not self._has_answered and isinstance(error, aiohttp.ClientConnectorError):
                raise EndpointError(f"no response from {self._url}: {reason}", is_about_all=True) from None
            raise EndpointError(f"{patience.attempts} attempts have failed; last error: {reason}") from None

    async def _unless_stopped(self, wait: Awaitable[T]) -> T:
        """Wait, but no longer than until `stop`. Raises EndpointError if that has come."""
        stopped, waiting = asyncio.create_task(self._stopped.wait()), asyncio.ensure_future(wait)
        try:
            await asyncio.wait((stopped, waiting), return_when=asyncio.FIRST_COMPLETED)
            if self._stopped.is_set():
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
                raise EndpointError(STOPPED, is_about_all=True)
            return waiting.result()
        finally:
            stopped.cancel()
            waiting.cancel()

    def _wait_s(self, error: Exception) -> bool | float:
        """Decide whether to retry after an error, and after how many seconds if the endpoint says so."""
        if isinstance(error, _NO_ADDRESS) or not isinstance(error, (*_PASSING, Malformed)):
            return False
        if isinstance(error, aiohttp.ClientConnectorError) and not self._has_answered:
            return False
        self.num_retries += 1
        self._last_failure = _reason(error)
        if not isinstance(error, Busy) or error.retry_after_s is None:
            return True
        self._not_before = max(self._not_before, time.monotonic() + error.retry_after_s)
        return error.retry_after_s

    async def _send(self, content: bytes) -> Answer:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._url, data=content, headers=headers, allow_redirects=False) as response:
            received = await response.read()
        self._has_answered = True
        if response.status == 200:
            return self._answer(received)
        told, code = _error(received)
        message = f"{response.status}: {told or response.reason}"
        if self._endpoint.key:
            message = message.replace(self._endpoint.key, "…")
        elif response.status == UNAUTHORIZED:
            message += " (no key was sent)"
        if code not in _CODES_ABOUT_ALL:
            if response.status in _RETRIED_STATUSES:
                raise Busy(message, retry_after_s(response.headers))
            if response.status in _REFUSING_STATUSES:
                raise EndpointError(message, status=response.status)
        raise EndpointError(f"{self._url} returned {message}", status=response.status, is_about_all=True)

    def _answer(self, received: bytes) -> Answer:
        try:
            body = orjson.loads(received)
            choice = body["choices"][0]
            text = choice["message"]["content"] if self._endpoint.api == "chat" else choice["text"]
            usage, finish_reason = body.get("usage") or {}, choice.get("finish_reason")
            self._last_answer = time.monotonic()
            if finish_reason == "content_filter":
                raise EndpointError("the endpoint's filter has withheld the answer", status=FILTERED)
            return Answer(
                after_thoughts(_text_of(text or "")),
                finish_reason,
                body.get("model"),
                usage.get("prompt_tokens"),
                usage.get("completion_tokens"),
                _first_token(choice),
            )
        except (AttributeError, LookupError, TypeError, ValueError):  # JSON's errors are ValueErrors
            is_page = received.lstrip().startswith(b"<")
            told = ": it is a web page, so the address may lack its end, such as /v1" if is_page else ""
            raise Malformed(f"the response of {self._url} does not have OpenAI's format{told}", status=200) from None


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read how long a response asks to wait, in seconds up to MAX_RETRY_AFTER_S; None if it does not say."""
    for header, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return min(max(float(headers[header]) * unit_s, 0.0), MAX_RETRY_AFTER_S)
        except (KeyError, ValueError):
            continue
    return None


def _text_of(content: Any) -> str:
    """Return the text of a message's content, which some endpoints send in parts. Raises TypeError, LookupError."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def after_thoughts(text: str) -> str:
    """Return the answer that follows a model's thoughts, empty where these were cut off.

    Some chat templates write the opening themselves, so that the text has the closing alone.
    """
    for name in _THOUGHTS:
        _, closing, answer = text.rpartition(f"</{name}>")
        if closing:
            return answer.lstrip()
        if text.lstrip().startswith(f"<{name}>"):
            return ""
    return text


def _first_token(choice: Mapping[str, Any]) -> dict[str, float] | None:
    """Read the log-probabilities of a chat answer's first token. Raises LookupError, TypeError, ValueError."""
    content = (choice.get("logprobs") or {}).get("content")
    if not content:
        return None
    return {str(one["token"]): float(one["logprob"]) for one in content[0].get("top_logprobs") or ()}


def _error(received: bytes) -> tuple[str | None, str | None]:
    """Read message and code of an error; a proxy in front of the endpoint may respond in another format."""
    try:
        error = orjson.loads(received)["error"]
        if isinstance(error, str):
            return error[:MAX_MESSAGE_CHARACTERS], None
        return str(error["message"])[:MAX_MESSAGE_CHARACTERS], error.get("code")
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None, None
