"""Chat completions in the forms of other APIs: a request is translated to that of a chat, and its one choice back."""

from collections.abc import AsyncGenerator, Collection, Iterator, Mapping
from contextlib import aclosing, contextmanager
from functools import partial
from typing import Any, ClassVar

import orjson
from fastapi import Request, Response
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from services.core.errors import FoveaError
from services.core.exchange import context_of
from services.core.http.bodies import OpenRequest, check_known, refuse_unsupported
from services.generate.generation.generation import Progress
from services.generate.generation.input_processor import InputProcessor
from services.generate.http.openai_bodies import ChoiceSoFar, usage_of
from services.generate.http.openai_routes import charged_choices
from services.generate.http.openai_schemas import ChatRequest
from services.generate.http.streaming import EventStream, event
from services.generate.service import GenerateService

NOT_READ = "Accepted, and changes nothing here."


class ChatDialect:
    """One answer in another API's form, accumulated over its steps; a subclass says how it is written.

    `names` are the API's names of a chat's fields, for errors. An event has its name as `type`.
    """

    names: ClassVar[Mapping[str, str]] = {}
    last: ClassVar[bytes] = b""

    def __init__(self) -> None:
        self.choice = ChoiceSoFar(0, 0, is_reply=True)
        self.model = ""

    @property
    def usage(self) -> dict[str, Any]:
        """Usage in the form of chat completions."""
        return usage_of([self.choice])

    def whole(self) -> dict[str, Any]:
        """Render the whole answer."""
        raise NotImplementedError

    def opening(self) -> Iterator[dict[str, Any]]:
        """Render the events before the text; the prompt's facts are known."""
        raise NotImplementedError

    def delta(self, text: str) -> Iterator[dict[str, Any]]:
        """Render the events of a text that the choice has just ended with."""
        raise NotImplementedError

    def closing(self) -> Iterator[dict[str, Any]]:
        """Render the events after the text."""
        raise NotImplementedError


async def answer_chat(service: GenerateService, request: Request, chat: ChatRequest, answer: ChatDialect) -> Response:
    """Answer a chat in a dialect, whole or as a stream."""
    context = context_of(request.scope)

    async def steps() -> AsyncGenerator[Progress, None]:
        prepare = partial(charged_choices, service.limits, chat)
        with renaming(answer.names):
            async with aclosing(service.generate(chat.model, prepare, context)) as found:
                async for _, progress in found:
                    answer.model = context.model or ""
                    yield answer.choice.add(progress)

    if chat.stream:
        return await EventStream.begin(_events(steps(), answer))
    async with aclosing(steps()) as all_steps:
        async for _ in all_steps:
            pass
    return Response(orjson.dumps(answer.whole()), media_type="application/json")


async def count_chat(service: GenerateService, request: Request, chat: ChatRequest, names: Mapping[str, str]) -> int:
    """Count the tokens of a chat's prompt. Raises what preparing its answer raises."""

    def tokens(processor: InputProcessor) -> list[int]:
        return list(charged_choices(service.limits, chat, processor)[0].generation.prompt.input_ids)

    with renaming(names):
        found, _ = await service.tokenize(chat.model, tokens, context_of(request.scope))
    return len(found)


def check_fields(
    body: OpenRequest, harmless: Mapping[str, Collection[Any]], synonyms: Mapping[str, str], reason: str
) -> None:
    """Raises InvalidRequest with the reason for a field that would change the answer there and not here, InvalidField
    for every other that is not known, whatever it holds."""
    known = type(body).model_fields
    refuse_unsupported(body.model_extra, harmless, known, synonyms, reason=reason)
    check_known([name for name in body.model_extra or () if name not in harmless], known)


def of_types(*known: str) -> BeforeValidator:
    """Refuse a part of a message of another type before its fields are read; the first type is the default."""

    def check(given: Any) -> Any:
        kind = given.get("type", known[0]) if isinstance(given, dict) else known[0]
        if kind not in known:
            told = {"known": " and ".join(known), "given": repr(kind)[:40]}
            raise PydanticCustomError("unsupported_part", "Only {known} can be read here, not {given}", told)
        return given

    return BeforeValidator(check)


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Let errors about a chat's fields name those of the request."""
    try:
        yield
    except FoveaError as error:
        if error.param is not None and (name := names.get(error.param)):
            error.message = error.message.replace(f"{error.param}: ", f"{name}: ", 1)
            error.param = name
        raise


async def _events(steps: AsyncGenerator[Progress, None], answer: ChatDialect) -> AsyncGenerator[bytes, None]:
    """Yield the events of an answer; nothing is sent before its first step, so errors keep their status."""
    has_begun = False
    async with aclosing(steps):
        async for progress in steps:
            for one in () if has_begun else answer.opening():
                yield _event(one)
            has_begun = True
            for one in answer.delta(progress.text) if progress.text else ():
                yield _event(one)
    for one in answer.closing():
        yield _event(one)
    if answer.last:
        yield answer.last


def _event(members: dict[str, Any]) -> bytes:
    return f"event: {members['type']}\n".encode() + event(members)
