"""A client that asks a running Fovea as a visitor does: over HTTP, with JSON."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson

from services.core.openai_client import retry_after_s
from services.core.printable import printable
from services.core.refusals import Refused
from services.jobs.options import LOCAL_URL
from starters.visitor.questions import (
    PATHS,
    RELEVANCE_THRESHOLD,
    Asked,
    BadResponse,
    Question,
    Reply,
    read_response,
)

TIMEOUT_S = 120.0
ATTEMPTS = 6
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 10.0
MAX_MESSAGE_CHARACTERS = 300
# The service rejects this question, for instance because it is too long; others may pass.
_REJECTED = frozenset({400, 413, 422})
_BUSY = frozenset({429, 503})


class VisitorError(Refused):
    """A failure that concerns all questions; the message is one line and can be shown to users."""


@dataclass(frozen=True)
class Address:
    """An address such as `http://127.0.0.1:8080`, its key, and how many requests to send at a time."""

    url: str = LOCAL_URL
    key: str | None = field(default=None, repr=False)
    concurrency: int = 4
    threshold: float = RELEVANCE_THRESHOLD


class VisitorClient:
    """A client to be used as a context manager. `rejections` counts the rejected questions by the service's message."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._url = address.url
        self._permits = asyncio.Semaphore(address.concurrency)
        self.rejections: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        key = self._address.key
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def ask(self, questions: Sequence[Question], on_answer: Callable[[], None] = lambda: None) -> list[Asked]:
        """Ask questions, a few at a time, and return them with their replies. A rejected one has an empty reply.

        Raises VisitorError.
        """

        async def ask_one(question: Question) -> Asked:
            async with self._permits:
                reply = await self._reply(question)
            on_answer()
            return Asked(question, reply, self._address.threshold)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(ask_one(question)) for question in questions]
        except* VisitorError as errors:
            failed = errors.exceptions[0]
        else:
            return [task.result() for task in tasks]
        raise failed

    async def _reply(self, question: Question) -> Reply:
        path = PATHS[question.form]
        content = orjson.dumps(question.body)
        for attempt in range(ATTEMPTS):
            status, received, wait_s = await self._post(path, content)
            if status not in _BUSY:
                break
            await asyncio.sleep(min(FIRST_WAIT_S * 2**attempt if wait_s is None else wait_s, LONGEST_WAIT_S))
        if status in _REJECTED:
            message = f"{path} returned {status}{_message(received)}"
            self.rejections[message] = self.rejections.get(message, 0) + 1
            return Reply()
        if status != 200:
            raise VisitorError(f"{self._url}{path} returned {status}{_message(received)}")
        try:
            return read_response(question, orjson.loads(received))
        except (BadResponse, orjson.JSONDecodeError) as error:
            reason = error if isinstance(error, BadResponse) else "the response is not JSON"
            raise VisitorError(f"{self._url}{path}: {reason}") from None

    async def _post(self, path: str, content: bytes) -> tuple[int, bytes, float | None]:
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.post(
                f"{self._url}{path}", data=content, headers=headers, allow_redirects=False
            ) as response:
                return response.status, await response.read(), retry_after_s(response.headers)
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            raise VisitorError(f"{self._url} is not an HTTP address") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            reason = _line(str(error)) or f"no answer within {TIMEOUT_S:g} s"
            raise VisitorError(f"no response from {self._url}{path}: {reason}") from None


def _message(received: bytes) -> str:
    """Read the message of an error in OpenAI's envelope, or else the beginning of the body, after a colon."""
    try:
        told: Any = orjson.loads(received)["error"]["message"]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        told = received.decode(errors="replace")
    line = _line(str(told))
    return f": {line}" if line else ""


def _line(text: str) -> str:
    return printable(" ".join(text.split()))[:MAX_MESSAGE_CHARACTERS]
