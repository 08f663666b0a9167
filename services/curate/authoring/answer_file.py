"""A model's answers on disk, by what was asked: no request is paid for twice, whatever ended the job before."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from services.core.openai_client import EndpointClient
from services.jobs.inquiry.record_file import Identified, RecordFile, digest_of
from services.score.negatives.prompting.writer import Chat, Reply, Requests

JOB = "generation"


class Answered(Identified):
    """An answer; `id` is the digest of the request and the number of its draw."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None
    text: str
    finish_reason: str | None
    prompt_tokens: int | None
    completion_tokens: int | None

    @property
    def reply(self) -> Reply:
        return Reply(self.text, self.finish_reason == "length")


@contextmanager
def opened_answers(path: Path) -> Iterator[RecordFile[Answered]]:
    """Open a file of answers, or create it. Raises OutputError."""
    with RecordFile.opened(path, Answered, JOB, lambda found, num_torn_bytes: None) as file:
        yield file


class KeptAnswers:
    """Answers of an endpoint: `ask` returns those that are on disk, and asks for the others and writes them there.

    Of equal requests at the same time, one is sent.
    """

    def __init__(
        self,
        client: EndpointClient,
        requests: Requests,
        file: RecordFile[Answered],
        on_answer: Callable[[Answered], None],
    ) -> None:
        self._client = client
        self._requests = requests
        self._file = file
        self._on_answer = on_answer
        self._known: dict[str, Reply] = {one.id: one.reply for one in file.found}
        self._locks: dict[str, asyncio.Lock] = {}

    async def ask(self, chat: Chat) -> Reply:
        """Return the reply to a chat. Raises EndpointError and OutputError."""
        body = self._requests.body(chat)
        key = digest_of({"body": body, "draw": chat.draw})
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._known:
                self._known[key] = await self._send(key, body)
        self._locks.pop(key, None)  # whoever waits for it has it
        return self._known[key]

    async def _send(self, key: str, body: dict[str, Any]) -> Reply:
        answer = await self._client.ask(body)
        record = Answered(
            id=key,
            model=answer.model,
            text=answer.text,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            completion_tokens=answer.completion_tokens,
        )
        await self._file.append(record)
        self._on_answer(record)
        return record.reply
