"""Answers in OpenAI's forms: whole, and in the chunks of a stream.

An answer to a request has several choices where it has several prompts or `n` is above 1; those of one prompt are
adjacent.
"""

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.generate.generation.answer_text import TokenOut
from services.generate.generation.generation import Progress, PromptFacts
from services.generate.http.generate_calls import without_leading_space
from services.generate.http.generate_schemas import DocumentReport


@dataclass(frozen=True)
class Identity:
    """Fields that every chunk of one answer repeats; `created` is Unix time in seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def head(self, object_name: str) -> dict[str, Any]:
        """The fields before `choices`."""
        return {
            "id": self.id,
            "object": object_name,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


@dataclass
class ChoiceSoFar:
    """One choice, of which more and more is known.

    `prompt` is which of the request's prompts it answers. An `is_reply` begins with its text; what is none continues
    its prompt, from which white space may part it. `num_tokens` counts end-of-text and stop strings too, which are not
    among `tokens`. `offsets` are the characters of the tokens' text before each token, a token in the middle of a
    character standing where that begins.
    """

    index: int
    prompt: int
    is_reply: bool = False
    text: str = ""
    tokens: list[TokenOut] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    num_tokens: int = 0
    finish_reason: str | None = None
    facts: PromptFacts | None = None

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_read = 0

    def add(self, progress: Progress) -> Progress:
        """Take in what the next step brought, and return it as it is told."""
        if self.is_reply:
            progress = without_leading_space(progress, self.text)
        self.text += progress.text
        self.num_tokens = progress.num_tokens
        for token in progress.tokens:
            self.tokens.append(token)
            self.offsets.append(self._num_read)
            self._num_read += len(self._decoder.decode(token.utf8))
        self.finish_reason = progress.finish_reason
        self.facts = self.facts or progress.facts
        return progress


def usage_of(choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
    """Tokens of all prompts, each counted once however many choices it has, and of all choices."""
    facts: dict[int, list[PromptFacts]] = {}
    for choice in choices:
        if choice.facts is not None:
            facts.setdefault(choice.prompt, []).append(choice.facts)
    prompt_tokens = sum(of_prompt[0].prompt_tokens for of_prompt in facts.values())
    completion_tokens = sum(choice.num_tokens for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        # a prompt's second choice finds what its first has left, which is no saving to tell of
        "prompt_tokens_details": {
            "cached_tokens": sum(min(one.cached_tokens for one in of_prompt) for of_prompt in facts.values())
        },
        "calibration_passes": sum(one.calibration_passes for of_prompt in facts.values() for one in of_prompt),
    }


class Form(Protocol):
    """One of OpenAI's two ways to write choices."""

    def whole(self, identity: Identity, choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
        """The answer in one piece, without its usage."""

    def opening(self, identity: Identity, choice: ChoiceSoFar) -> Iterator[dict[str, Any]]:
        """The chunks of a choice that come before any of its text."""

    def chunks(self, identity: Identity, choice: ChoiceSoFar, progress: Progress) -> Iterator[dict[str, Any]]:
        """The chunks of a choice for what it was just added."""

    def bare(self, identity: Identity) -> dict[str, Any]:
        """The chunk without choices that carries the usage."""


@dataclass(frozen=True)
class ChatForm:
    """`documents` is told with each whole answer and with each choice's last chunk, where the request had any."""

    has_logprobs: bool = False
    reports: "Reports | None" = None

    def whole(self, identity: Identity, choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
        body = {
            **identity.head("chat.completion"),
            "choices": [
                {
                    "index": choice.index,
                    "message": {"role": "assistant", "content": choice.text},
                    "logprobs": self._logprobs(choice.tokens),
                    "finish_reason": choice.finish_reason,
                }
                for choice in choices
            ],
        }
        return {**body, **self._documents(choices[0])}

    def opening(self, identity: Identity, choice: ChoiceSoFar) -> Iterator[dict[str, Any]]:
        yield self._chunk(identity, choice, {"role": "assistant", "content": ""})

    def chunks(self, identity: Identity, choice: ChoiceSoFar, progress: Progress) -> Iterator[dict[str, Any]]:
        if progress.text or (self.has_logprobs and progress.tokens):
            yield self._chunk(identity, choice, {"content": progress.text}, logprobs=self._logprobs(progress.tokens))
        if progress.finish_reason is not None:
            last = self._chunk(identity, choice, {}, finish_reason=progress.finish_reason)
            yield {**last, **self._documents(choice)}

    def bare(self, identity: Identity) -> dict[str, Any]:
        return {**identity.head("chat.completion.chunk"), "choices": []}

    def _chunk(
        self,
        identity: Identity,
        choice: ChoiceSoFar,
        delta: dict[str, Any],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        one = {"index": choice.index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**identity.head("chat.completion.chunk"), "choices": [one]}

    def _logprobs(self, tokens: Sequence[TokenOut]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        content = [{**_token(token), "top_logprobs": [_token(top) for top in token.top]} for token in tokens]
        return {"content": content, "refusal": None}

    def _documents(self, choice: ChoiceSoFar) -> dict[str, Any]:
        if self.reports is None or choice.facts is None:
            return {}
        return {"documents": [report.model_dump() for report in self.reports(choice.facts)]}


@dataclass(frozen=True)
class CompletionForm:
    """`num_logprobs` None tells none. `echoes` are the prompts where they are to be repeated, else empty."""

    num_logprobs: int | None = None
    echoes: Sequence[str] = ()

    def whole(self, identity: Identity, choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
        return {
            **identity.head("text_completion"),
            "choices": [
                {
                    "index": choice.index,
                    "text": self._echo(choice) + choice.text,
                    "logprobs": self._logprobs(choice, choice.tokens, 0),
                    "finish_reason": choice.finish_reason,
                }
                for choice in choices
            ],
        }

    def opening(self, identity: Identity, choice: ChoiceSoFar) -> Iterator[dict[str, Any]]:
        if echo := self._echo(choice):
            yield self._chunk(identity, choice, echo)

    def chunks(self, identity: Identity, choice: ChoiceSoFar, progress: Progress) -> Iterator[dict[str, Any]]:
        logprobs = self._logprobs(choice, progress.tokens, len(choice.tokens) - len(progress.tokens))
        if progress.text or progress.finish_reason is not None or (logprobs and progress.tokens):
            yield self._chunk(identity, choice, progress.text, logprobs=logprobs, finish_reason=progress.finish_reason)

    def bare(self, identity: Identity) -> dict[str, Any]:
        return {**identity.head("text_completion"), "choices": []}

    def _chunk(
        self,
        identity: Identity,
        choice: ChoiceSoFar,
        text: str,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> dict[str, Any]:
        one = {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**identity.head("text_completion"), "choices": [one]}

    def _echo(self, choice: ChoiceSoFar) -> str:
        return self.echoes[choice.prompt] if self.echoes else ""

    def _logprobs(self, choice: ChoiceSoFar, tokens: Sequence[TokenOut], first: int) -> dict[str, Any] | None:
        if self.num_logprobs is None:
            return None
        shift = len(self._echo(choice))
        offsets = choice.offsets[first : first + len(tokens)]
        return {
            "tokens": [token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [_by_text(token) for token in tokens] if self.num_logprobs else None,
            "text_offset": [shift + min(offset, len(choice.text)) for offset in offsets],
        }


class Reports(Protocol):
    """Makes an answer's reports of each document of its prompt."""

    def __call__(self, facts: PromptFacts) -> Sequence[DocumentReport]: ...


def _token(token: TokenOut) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.utf8)}


def _by_text(token: TokenOut) -> dict[str, float | None]:
    """The most likely tokens and the one that was taken; of two that read alike the likelier one."""
    by_text: dict[str, float | None] = {}
    for one in (*token.top, token):
        by_text.setdefault(one.text, one.logprob)
    return by_text
