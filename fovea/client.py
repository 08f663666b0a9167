"""Clients of a running Fovea: the calls, sent with retries, in synchronous and in asynchronous code."""

import asyncio
import inspect
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args

import httpx2

from fovea import calls
from fovea.calls import Call
from fovea.errors import FoveaError, error_of, error_of_envelope, error_of_transport, unreadable
from fovea.schemas import GenerateDelta, GenerateEnd

H = TypeVar("H", httpx2.Client, httpx2.AsyncClient)
P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")
Event = GenerateDelta | GenerateEnd

LOCAL_URL = "http://127.0.0.1:8080"
DONE = "data: [DONE]"
RETRIED = (429, 503)
FIRST_WAIT_S = 0.25


class _Attempts:
    """The attempts of one call, all within its time."""

    def __init__(self, timeout: float, max_retries: int) -> None:
        self._end = time.monotonic() + timeout
        self._max_retries = max_retries
        self._num_failures = 0

    def left_s(self) -> float:
        return max(0.001, self._end - time.monotonic())

    def wait_s(self, error: FoveaError) -> float:
        """Return how long to wait before the next attempt. Raises the error if there is none."""
        self._num_failures += 1
        may_succeed = error.retry_after_s is not None and (error.status is None or error.status in RETRIED)
        wait_s = error.retry_after_s or FIRST_WAIT_S * 2 ** (self._num_failures - 1)
        if not may_succeed or self._num_failures > self._max_retries or wait_s >= self.left_s():
            raise error
        return wait_s


class _Settings(Generic[H]):
    """Settings of a client, synchronous or asynchronous.

    `timeout` is the time of a call in seconds, its retries included, of which services are told. `base_url` and
    `api_key` are by default those of FOVEA_URL and FOVEA_API_KEY, else this machine's Fovea without a key; a `/v1` at
    the end of `base_url` is dropped. Raises ValueError for a value that can't be used.
    """

    def __init__(
        self, base_url: str | None = None, *, api_key: str | None = None, timeout: float = 60.0, max_retries: int = 2
    ) -> None:
        base_url = base_url or os.environ.get("FOVEA_URL") or LOCAL_URL
        if not base_url.lower().startswith(("http://", "https://")):
            raise ValueError(f"base_url: {base_url} does not begin with http:// or https://")
        # an OpenAI client of the same Fovea has its base URL with /v1; the paths here have it where they need it
        base_url = base_url.rstrip("/").removesuffix("/v1").rstrip("/")
        # a key that is read from a file ends with a line break
        key = (api_key or os.environ.get("FOVEA_API_KEY", "")).strip()
        if not (key.isascii() and key.isprintable()):
            raise ValueError("api_key: the key holds a character that no header may hold")
        if timeout is None or timeout <= 0:
            raise ValueError(f"timeout: {timeout} is not a number of seconds above 0")
        self.base_url = base_url
        self.timeout = timeout
        self.max_retries = max_retries
        self._http: H = self._opened(base_url, {"Authorization": f"Bearer {key}"} if key else {})

    @staticmethod
    def _opened(base_url: str, headers: dict[str, str]) -> H:
        raise NotImplementedError

    def _attempts(self) -> _Attempts:
        return _Attempts(self.timeout, self.max_retries)


def _request(http: httpx2.Client | httpx2.AsyncClient, call: Call[Any], left_s: float) -> httpx2.Request:
    headers = {"X-Request-Timeout": f"{left_s:.3f}"}
    return http.build_request(
        call.method, call.path, json=call.body, params=call.params, headers=headers, timeout=left_s
    )


def _streamed(call: Call[Any]) -> Call[Any]:
    return replace(call, body={**(call.body or {}), "stream": True})


def _event(line: str, response: httpx2.Response) -> Event | None:
    """Return the event of a line, None for a line without one. Raises FoveaError for an error."""
    if not line.startswith("data:"):
        return None
    try:
        event: Any = json.loads(line.removeprefix("data:"))
    except ValueError:
        raise unreadable(response) from None
    if "error" in event:
        raise error_of_envelope(event, response, None)
    found: Event = event
    return found


def _as_method(method: Callable[Q, R], build: Callable[..., Any], returned: Callable[[Any], Any]) -> Callable[Q, R]:
    """Give a method the name, docstring and parameters of the function that builds its call."""
    signature = inspect.signature(build)
    (answer,) = get_args(signature.return_annotation)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method = wraps(build)(method)
    shown = signature.replace(parameters=[own, *signature.parameters.values()], return_annotation=returned(answer))
    setattr(method, "__signature__", shown)  # noqa: B010 - functions have no such attribute for type checkers
    return method


def _sync(build: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = build(*args, **kwargs)
        answer: T = call.answer(self._send(call))
        return answer

    return _as_method(method, build, lambda answer: answer)


def _async(build: Callable[P, Call[T]]) -> Callable[Concatenate["AsyncClient", P], Awaitable[T]]:
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        call = await asyncio.to_thread(build, *args, **kwargs)  # it may read files
        answer: T = call.answer(await self._send(call))
        return answer

    return _as_method(method, build, lambda answer: answer)


def _sync_stream(build: Callable[P, Call[Any]]) -> Callable[Concatenate["Client", P], Iterator[Event]]:
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Event]:
        return self._events(_streamed(build(*args, **kwargs)))

    return _as_method(method, build, lambda answer: Iterator[Event])


def _async_stream(build: Callable[P, Call[Any]]) -> Callable[Concatenate["AsyncClient", P], AsyncIterator[Event]]:
    def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Event]:
        return self._events(_streamed(build(*args, **kwargs)))

    return _as_method(method, build, lambda answer: AsyncIterator[Event])


class Client(_Settings[httpx2.Client]):
    """Calls Fovea and waits for the answer; every method raises FoveaError for a call that fails."""

    embed = _sync(calls.embed)
    search = _sync(calls.search)
    collections = _sync(calls.collections)
    collection = _sync(calls.collection)
    create_collection = _sync(calls.create_collection)
    delete_collection = _sync(calls.delete_collection)
    add_images = _sync(calls.add_images)
    images = _sync(calls.images)
    image = _sync(calls.image)
    update_image = _sync(calls.update_image)
    delete_image = _sync(calls.delete_image)
    generate = _sync(calls.generate)
    generate_stream = _sync_stream(calls.generate)
    rerank = _sync(calls.rerank)
    tasks = _sync(calls.tasks)
    predict = _sync(calls.predict)
    score = _sync(calls.score)
    hard_negatives = _sync(calls.hard_negatives)
    decide = _sync(calls.decide)
    models = _sync(calls.models)

    @staticmethod
    def _opened(base_url: str, headers: dict[str, str]) -> httpx2.Client:
        return httpx2.Client(base_url=base_url, headers=headers)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _send(self, call: Call[Any], *, stream: bool = False) -> httpx2.Response:
        """Return a successful response, unread with `stream`. Raises FoveaError."""
        attempts = self._attempts()
        while True:
            try:
                response = self._http.send(_request(self._http, call, attempts.left_s()), stream=stream)
                if response.is_success:
                    return response
                response.read()
                error = error_of(response)
            except httpx2.RequestError as lost:
                error = error_of_transport(lost, self.base_url)
            time.sleep(attempts.wait_s(error))

    def _events(self, call: Call[Any]) -> Iterator[Event]:
        response = self._send(call, stream=True)
        try:
            for line in response.iter_lines():
                if line == DONE:
                    return
                if event := _event(line, response):
                    yield event
        except httpx2.RequestError as lost:
            raise error_of_transport(lost, self.base_url) from None
        finally:
            response.close()
        raise unreadable(response)


class AsyncClient(_Settings[httpx2.AsyncClient]):
    """Calls Fovea in asynchronous code; every method raises FoveaError for a call that fails."""

    embed = _async(calls.embed)
    search = _async(calls.search)
    collections = _async(calls.collections)
    collection = _async(calls.collection)
    create_collection = _async(calls.create_collection)
    delete_collection = _async(calls.delete_collection)
    add_images = _async(calls.add_images)
    images = _async(calls.images)
    image = _async(calls.image)
    update_image = _async(calls.update_image)
    delete_image = _async(calls.delete_image)
    generate = _async(calls.generate)
    generate_stream = _async_stream(calls.generate)
    rerank = _async(calls.rerank)
    tasks = _async(calls.tasks)
    predict = _async(calls.predict)
    score = _async(calls.score)
    hard_negatives = _async(calls.hard_negatives)
    decide = _async(calls.decide)
    models = _async(calls.models)

    @staticmethod
    def _opened(base_url: str, headers: dict[str, str]) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(base_url=base_url, headers=headers)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _send(self, call: Call[Any], *, stream: bool = False) -> httpx2.Response:
        """Return a successful response, unread with `stream`. Raises FoveaError."""
        attempts = self._attempts()
        while True:
            try:
                response = await self._http.send(_request(self._http, call, attempts.left_s()), stream=stream)
                if response.is_success:
                    return response
                await response.aread()
                error = error_of(response)
            except httpx2.RequestError as lost:
                error = error_of_transport(lost, self.base_url)
            await asyncio.sleep(attempts.wait_s(error))

    async def _events(self, call: Call[Any]) -> AsyncIterator[Event]:
        response = await self._send(call, stream=True)
        try:
            async for line in response.aiter_lines():
                if line == DONE:
                    return
                if event := _event(line, response):
                    yield event
        except httpx2.RequestError as lost:
            raise error_of_transport(lost, self.base_url) from None
        finally:
            await response.aclose()
        raise unreadable(response)
