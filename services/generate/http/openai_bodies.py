"""Answers in OpenAI's formats: whole, and as chunks of a stream.

An answer has several choices if the request has several prompts or `n` is above 1; those of one prompt are adjacent.
"""

import codecs
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from services.generate.generation.answer_text import TokenOut
from services.generate.generation.generation import Progress, PromptFacts
from services.generate.http.citations import TokenAttention
from services.generate.http.documents import DocumentReport, applied_of, without_leading_space


@dataclass(frozen=True)
class Identity:
    """Fields that every chunk of one answer repeats; `created` is Unix time in seconds."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def head(self, object_name: str) -> dict[str, Any]:
        """The fields before `choices`."""
        return {"id": self.id, "object": object_name, **vars(self)}


@dataclass
class ChoiceSoFar:
    """One choice, accumulated over its steps.

    `prompt` is the place of its prompt in the request. If `is_reply`, leading white space is stripped; otherwise the
    choice continues its prompt and keeps it. `num_tokens` includes end-of-text and stop strings, which are not in
    `tokens`. `offsets` are the numbers of characters before each token; a token inside a character has the offset of
    that character's start. `tool_calls` are by index.
    """

    index: int
    prompt: int
    is_reply: bool = False
    text: str = ""
    tokens: list[TokenOut] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    num_tokens: int = 0
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)
    finish_reason: str | None = None
    stop_string: str | None = None
    facts: PromptFacts | None = None
    attention: TokenAttention = field(default_factory=TokenAttention)

    def __post_init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_read = 0

    def add(self, progress: Progress) -> Progress:
        """Add the next step, and return it in the form to be sent."""
        if self.is_reply:
            progress = without_leading_space(progress, self.text)
        self.attention.add(progress, len(self.text))
        self.text += progress.text
        self.num_tokens = progress.num_tokens
        for token in progress.tokens:
            self.tokens.append(token)
            self.offsets.append(self._num_read)
            self._num_read += len(self._decoder.decode(token.utf8))
        for part in progress.tool_calls:
            self._add_call(part)
        self.finish_reason, self.stop_string = progress.finish_reason, progress.stop_string
        self.facts = self.facts or progress.facts
        return progress

    def citations(self) -> list[dict[str, Any]]:
        """The citations of the whole choice."""
        return [] if self.facts is None else self.attention.citations(self.text, self.facts)

    def _add_call(self, part: Mapping[str, Any]) -> None:
        """Add a part of a call: of its arguments, or its beginning."""
        begun = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        call, function = self.tool_calls.setdefault(part["index"], begun), part.get("function") or {}
        call["id"] = part.get("id") or call["id"]
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""


def usage_of(choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
    """Count the tokens of all choices and of all prompts, each prompt once regardless of its number of choices."""
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
        # the least of a prompt's choices: all but the first find its tokens in the cache, which is no saving
        "prompt_tokens_details": {
            "cached_tokens": sum(min(one.cached_tokens for one in of_prompt) for of_prompt in facts.values())
        },
        "calibration_passes": sum(one.calibration_passes for of_prompt in facts.values() for one in of_prompt),
    }


class Form:
    """One of OpenAI's two formats of choices; a subclass says how a choice and its parts are written."""

    whole_name: ClassVar[str]
    chunk_name: ClassVar[str]

    def whole(self, identity: Identity, choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
        """Render the whole answer, without its usage."""
        return {**identity.head(self.whole_name), "choices": [self.choice(choice) for choice in choices]}

    def chunk(self, identity: Identity, *choices: Mapping[str, Any]) -> dict[str, Any]:
        """Render a chunk of these parts of choices; the one that holds the usage has none."""
        filled = [{"logprobs": None, "finish_reason": None, **one} for one in choices]
        return {**identity.head(self.chunk_name), "choices": filled}

    def choice(self, choice: ChoiceSoFar) -> dict[str, Any]:
        """Render a whole choice."""
        raise NotImplementedError

    def opening(self, identity: Identity, choice: ChoiceSoFar) -> Iterator[dict[str, Any]]:
        """Render the chunks of a choice that come before its text."""
        return iter(())

    def chunks(self, identity: Identity, choice: ChoiceSoFar, progress: Progress) -> Iterator[dict[str, Any]]:
        """Render the chunks of a choice for its latest step."""
        raise NotImplementedError


@dataclass(frozen=True)
class ChatForm(Form):
    """Chat format. `documents` is part of each whole answer and each choice's last chunk if the request had any."""

    whole_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    has_logprobs: bool = False
    reports: Callable[[PromptFacts], Sequence[DocumentReport]] | None = None
    cites: bool = False

    def whole(self, identity: Identity, choices: Sequence[ChoiceSoFar]) -> dict[str, Any]:
        return {**super().whole(identity, choices), **self._documents(choices[0])}

    def choice(self, choice: ChoiceSoFar) -> dict[str, Any]:
        return {
            "index": choice.index,
            "message": _message(choice) | self._citations(choice),
            "logprobs": self._logprobs(choice.tokens),
            "finish_reason": choice.finish_reason,
        }

    def opening(self, identity: Identity, choice: ChoiceSoFar) -> Iterator[dict[str, Any]]:
        yield self.chunk(identity, {"index": choice.index, "delta": {"role": "assistant", "content": ""}})

    def chunks(self, identity: Identity, choice: ChoiceSoFar, progress: Progress) -> Iterator[dict[str, Any]]:
        index = choice.index
        if progress.text or (self.has_logprobs and progress.tokens):
            logprobs = self._logprobs(progress.tokens)
            yield self.chunk(identity, {"index": index, "delta": {"content": progress.text}, "logprobs": logprobs})
        if progress.tool_calls:
            yield self.chunk(identity, {"index": index, "delta": {"tool_calls": list(progress.tool_calls)}})
        if progress.finish_reason is not None:
            delta = self._citations(choice)
            last = self.chunk(identity, {"index": index, "delta": delta, "finish_reason": progress.finish_reason})
            yield {**last, **self._documents(choice)}

    def _logprobs(self, tokens: Sequence[TokenOut]) -> dict[str, Any] | None:
        if not self.has_logprobs:
            return None
        content = [{**_token(token), "top_logprobs": [_token(top) for top in token.top]} for token in tokens]
        return {"content": content, "refusal": None}

    def _citations(self, choice: ChoiceSoFar) -> dict[str, Any]:
        return {"citations": choice.citations()} if self.cites else {}

    def _documents(self, choice: ChoiceSoFar) -> dict[str, Any]:
        if self.reports is None or choice.facts is None:
            return {}
        calibration = applied_of(choice.facts)
        return {
            "documents": [report.model_dump() for report in self.reports(choice.facts)],
            "calibration": calibration and calibration.model_dump(),
        }


@dataclass(frozen=True)
class CompletionForm(Form):
    """Completion format. `num_logprobs` None means no log-probabilities; echoed prompts come with a choice's facts."""

    whole_name = chunk_name = "text_completion"
    num_logprobs: int | None = None

    def choice(self, choice: ChoiceSoFar) -> dict[str, Any]:
        return {
            "index": choice.index,
            "text": _echo(choice) + choice.text,
            "logprobs": self._logprobs(choice, choice.tokens, 0, scored=_scored(choice)),
            "finish_reason": choice.finish_reason,
        }

    def chunks(self, identity: Identity, choice: ChoiceSoFar, progress: Progress) -> Iterator[dict[str, Any]]:
        index = choice.index
        if progress.facts is not None and progress.facts.echo is not None:
            scored = self._logprobs(choice, (), 0, scored=_scored(choice))
            yield self.chunk(identity, {"index": index, "text": progress.facts.echo, "logprobs": scored})
        logprobs = self._logprobs(choice, progress.tokens, len(choice.tokens) - len(progress.tokens))
        if progress.text or progress.finish_reason is not None or (logprobs and progress.tokens):
            part = {"index": index, "text": progress.text, "logprobs": logprobs}
            yield self.chunk(identity, {**part, "finish_reason": progress.finish_reason})

    def _logprobs(
        self, choice: ChoiceSoFar, tokens: Sequence[TokenOut], first: int, *, scored: Sequence[TokenOut] = ()
    ) -> dict[str, Any] | None:
        """Render the tokens of the echoed prompt, `scored`, and of the answer from its `first` on."""
        if self.num_logprobs is None:
            return None
        shift = len(_echo(choice))
        offsets = choice.offsets[first : first + len(tokens)]
        told = [*scored, *tokens]
        return {
            "tokens": [token.text for token in told],
            "token_logprobs": [token.logprob for token in told],
            "top_logprobs": [_by_text(token) for token in told] if self.num_logprobs else None,
            "text_offset": [
                *_prompt_offsets(scored, _echo(choice)),
                *(shift + min(offset, len(choice.text)) for offset in offsets),
            ],
        }


def _message(choice: ChoiceSoFar) -> dict[str, Any]:
    calls = [choice.tool_calls[index] for index in sorted(choice.tool_calls)]
    message = {"role": "assistant", "content": (choice.text or None) if calls else choice.text}
    return {**message, "tool_calls": calls} if calls else message


def _token(token: TokenOut) -> dict[str, Any]:
    return {"token": token.text, "logprob": token.logprob, "bytes": list(token.utf8)}


def _echo(choice: ChoiceSoFar) -> str:
    return (choice.facts.echo or "") if choice.facts is not None else ""


def _scored(choice: ChoiceSoFar) -> Sequence[TokenOut]:
    return choice.facts.scored if choice.facts is not None else ()


def _prompt_offsets(tokens: Sequence[TokenOut], text: str) -> Iterator[int]:
    """Find where each token of a prompt begins in its text; one that the text does not show, such as BOS, is empty."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    at = 0
    for token in tokens:
        yield at
        piece = decoder.decode(token.utf8)
        # SentencePiece adds a space before the first word
        shown = piece if text.startswith(piece, at) else piece.removeprefix(" ")
        at += len(shown) if text.startswith(shown, at) else 0


def _by_text(token: TokenOut) -> dict[str, float | None] | None:
    """The most likely tokens and the one that was taken; of two that read alike the likelier one. None for the first
    token of a prompt, which is not predicted."""
    if token.logprob is None:
        return None
    by_text: dict[str, float | None] = {}
    for one in (*token.top, token):
        by_text.setdefault(one.text, one.logprob)
    return by_text
