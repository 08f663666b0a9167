"""Requests to an OpenAI-compatible endpoint for a chat."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.core.openai_client import Answer, Api
from services.score.negatives.prompting.writer import Chat, Reply

# A completion stops where it would begin the next example.
STOP = "\n\nSentence:"


@dataclass(frozen=True)
class Requests:
    """The common part of all requests; `extra` adds fields to their JSON, null removes a field."""

    model: str
    api: Api = "chat"
    max_tokens: int = 256
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, chat: Chat) -> dict[str, Any]:
        """Return a request's JSON; the completions route gets the chat as one text, to be continued."""
        body: dict[str, Any] = {"model": self.model, "temperature": chat.temperature, "max_tokens": self.max_tokens}
        if self.api == "chat":
            body["messages"] = list(chat.messages)
        else:
            body["prompt"] = _as_text(chat)
            body["stop"] = [STOP]
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}


def reply_of(answer: Answer) -> Reply:
    """Return the text of an answer, and whether the limit of tokens ended it."""
    return Reply(answer.text, answer.finish_reason == "length")


def _as_text(chat: Chat) -> str:
    first, *turns = chat.messages
    parts = [first["content"]]
    for turn in turns:
        if turn["role"] == "user":
            parts.append(turn["content"])
        else:
            parts[-1] += f"\n{turn['content']}"
    return "\n\n".join(parts) + "\n"
