"""Decisions by a student first, and by its teacher where the student hands over.

Both are asked as the client would ask them: with its key and its tenant, within the one deadline, counted for each.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Message, Send

# Sends a body to a model, and passes its answer on.
Ask = Callable[[bytes, Send], Awaitable[None]]


@dataclass
class Answer:
    """A whole answer, read in place of the client."""

    start: Message = field(default_factory=dict)
    body: bytes = b""

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.body += message.get("body", b"")

    @property
    def is_refusal(self) -> bool:
        return bool(self.start["status"] >= 400)

    async def pass_on(self, send: Send) -> None:
        headers = [(name, value) for name, value in self.start["headers"] if name != b"content-length"]
        await send({**self.start, "headers": [*headers, (b"content-length", b"%d" % len(self.body))]})
        await send({"type": "http.response.body", "body": self.body})


async def cascade(body: bytes, teacher: str, ask_student: Ask, ask_teacher: Ask, send: Send) -> None:
    """Send the student's answers with the teacher's in place of those that it hands over, or a refusal of either."""
    answer, second = Answer(), Answer()
    await ask_student(body, answer.send)
    if not answer.is_refusal:
        places, asked = await asyncio.to_thread(_handed_over, body, answer.body, teacher)
        if places:
            await ask_teacher(asked, second.send)
            if second.is_refusal:
                answer = second
                answer.body = _refusal(second.body, places, teacher)
            else:
                answer.body = await asyncio.to_thread(_merged, answer.body, second.body, places)
    await answer.pass_on(send)


def _handed_over(body: bytes, answered: bytes, teacher: str) -> tuple[list[int], bytes]:
    """Return the places of the questions that nobody has decided, and the teacher's request about these alone."""
    request, decision = orjson.loads(body), orjson.loads(answered)
    places = [place for place, one in enumerate(decision["answers"]) if one["model"] is None]
    questions = [request["questions"][place] for place in places]
    return places, orjson.dumps({**request, "model": teacher, "teacher": None, "questions": questions})


def _merged(answered: bytes, by_teacher: bytes, places: list[int]) -> bytes:
    decision, larger = orjson.loads(answered), orjson.loads(by_teacher)
    for place, one in zip(places, larger["answers"], strict=True):
        decision["answers"][place] = {**one, "model": larger["model"]}
    return orjson.dumps({**decision, "usage": _sum(decision["usage"], larger["usage"])})


def _sum(first: Any, second: Any) -> Any:
    """Add two usages: numbers, and objects of these."""
    return {key: _sum(first[key], second[key]) for key in first} if isinstance(first, dict) else first + second


def _refusal(body: bytes, places: list[int], teacher: str) -> bytes:
    """Return the teacher's error by the client's own question, or by the field `teacher` if it is about another."""
    envelope = orjson.loads(body)
    error = envelope["error"]
    if re.match(r"questions\.\d", error["param"] or ""):
        for key in ("message", "param"):
            error[key] = re.sub(r"^questions\.(\d+)", lambda found: f"questions.{places[int(found[1])]}", error[key])
    elif error["param"]:
        told = error["message"].removeprefix("model: ")
        error |= {"message": f"teacher: {teacher} refused: {told}", "param": "teacher"}
    return orjson.dumps(envelope)
