"""Hard negatives written by a language model: the steps of appendix C.3.2, with the request itself left to the caller.

    REPLACE, ADD   locate concepts (temperature 0) → choose one at random → propose a new one (1.5) → compose (0)
    SWAP           one request (0), which first tells whether two concepts can be swapped

With `steps` "one", REPLACE and ADD ask for everything in one request, as in Figures 4.3 and C.2.

Replies are lines with a label, such as `New sentence: …`. Models add blank lines, bullets, bold type and quotation
marks, and leave out the label where only one thing was asked for; all of that is accepted.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, Protocol

from services.core.openai_client import Answer, Api
from services.score.negatives.prompting.checks import (
    FORM_OF,
    MAX_PHRASE_WORDS,
    Problem,
    WrittenKind,
    compared_words,
    dressed_like,
    problem_of,
)
from services.score.negatives.prompting.prompt_files import Prompts

# A label of at most four words before a colon, after a bullet or a number, in bold type or not.
_LINE = re.compile(r"^[\s>*#\-\d.)]*\**\s*([A-Za-z]+(?: [A-Za-z]+){0,3})\s*\**\s*:\s*\**\s*(.*)$")
_QUOTES = "\"'“”‘’«»`*"
# The known labels, with those of the printed prompts, by what they are read as.
LABELS = {
    **{name: name for name in ("possible", "concepts", "chosen", "new", "new sentence", "sentence")},
    **{f"{concept}s": "concepts" for concept in ("noun", "adjective", "relationship")},
    **{f"selected {concept}": "chosen" for concept in ("noun", "adjective", "relationship")},
    **{f"new {concept}": "new" for concept in ("noun", "adjective", "relationship")},
    "original sentence": "sentence",
}


class Unreadable(ValueError):
    """A reply that lacks what was asked for."""


def labelled(reply: str) -> dict[str, str]:
    """Return the text behind each known label, in lower case; of one that occurs twice, the first."""
    found: dict[str, str] = {}
    for line in reply.splitlines():
        match = _LINE.match(line)
        if match and (label := LABELS.get(match[1].lower())):
            found.setdefault(label, match[2].strip())
    return found


def one_text(reply: str, label: str) -> str:
    """Return the text of a label, or the whole reply if it is one line without any. Raises Unreadable."""
    found = labelled(reply)
    lines = [line for line in reply.splitlines() if line.strip()]
    text = found.get(label) or (lines[0] if len(lines) == 1 and not found else "")
    text = unquoted(text)
    if not text:
        raise Unreadable(label)
    return text


def concepts_of(reply: str) -> list[str]:
    """Return the list of concepts: JSON, or words between commas. Raises Unreadable.

    An empty list is `[]`; that is different from a reply without a list.
    """
    text = labelled(reply).get("concepts")
    if text is None:
        lines = [line.strip() for line in reply.splitlines() if line.strip()]
        text = lines[0] if len(lines) == 1 and lines[0].startswith("[") else ""
    if not text:
        raise Unreadable("concepts")
    try:
        found = json.loads(text)
    except ValueError:
        found = text.strip("[]() .").split(",")
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Unreadable("concepts")
    return list(dict.fromkeys(text for one in found if (text := unquoted(one))))


def unquoted(text: str) -> str:
    """Remove quotation marks and bold type around a text."""
    text = text.strip()
    while len(text) > 1 and text[0] in _QUOTES and text[-1] in _QUOTES:
        text = text[1:-1].strip()
    return text.strip("*`").strip()


Steps = Literal["three", "one"]


@dataclass(frozen=True)
class Chat:
    """A request: messages, the temperature, and the number of the draw, by which repeated requests differ."""

    messages: Sequence[Mapping[str, str]]
    temperature: float
    draw: int = 0


@dataclass(frozen=True)
class Reply:
    """A model's text, and whether a limit of tokens ended it."""

    text: str
    is_truncated: bool


class Ask(Protocol):
    """Sends a chat to a model."""

    async def __call__(self, chat: Chat) -> Reply: ...


@dataclass(frozen=True)
class Style:
    """Number of steps, and temperatures: of all requests, and of those for a new concept (C.3.2)."""

    steps: Steps = "three"
    temperature: float = 0.0
    proposing_temperature: float = 1.5


@dataclass(frozen=True)
class Written:
    """The outcome for one caption: a hard negative, or the reason that there is none.

    `text` is the negative if there is no `problem`, and otherwise the rejected text or the model's last reply.
    """

    text: str
    problem: Problem | None = None
    chosen: str | None = None
    new: str | None = None


@dataclass(frozen=True)
class _Task:
    caption: str
    kind: WrittenKind
    draw: int
    ask: Ask
    style: Style
    prompts: Prompts


class _NoNegative(Exception):
    def __init__(self, problem: Problem, text: str) -> None:
        super().__init__(problem)
        self.problem: Problem = problem
        self.text = text


@dataclass(frozen=True)
class Writer:
    """Writes hard negatives with the prompts of each type."""

    prompts: Prompts
    style: Style = field(default_factory=Style)

    async def write(self, caption: str, kind: WrittenKind, ask: Ask, draw: int = 0) -> Written:
        """Write a hard negative and check it. Draws differ in the concept that is changed, and in its new one.

        Raises what `ask` raises.
        """
        task = _Task(caption, kind, draw, ask, self.style, self.prompts)
        try:
            if FORM_OF[kind] == "swap":
                found = await _swap(task)
            elif self.style.steps == "one":
                found = await _all_at_once(task)
            else:
                found = await _step_by_step(task)
        except _NoNegative as reason:
            return Written(reason.text, reason.problem)
        text = dressed_like(found.text, caption)
        chosen = found.chosen if FORM_OF[kind] == "replace" else None
        return Written(text, problem_of(kind, caption, text, chosen), found.chosen, found.new)


async def _swap(task: _Task) -> Written:
    reply = await _ask(task, task.prompts[task.kind].messages("swap", task.caption), task.style.temperature)
    found = labelled(reply)
    if unquoted(found.get("possible", "")).lower().startswith("no"):
        raise _NoNegative("nothing_to_change", reply)
    return Written(_text(reply, "new sentence"))


async def _all_at_once(task: _Task) -> Written:
    reply = await _ask(task, task.prompts[task.kind].messages("one_step", task.caption), task.style.temperature)
    if not _concepts(reply):
        raise _NoNegative("nothing_to_change", reply)
    chosen, new = _text(reply, "chosen"), _text(reply, "new")
    _check_concepts(task, chosen, new, reply)
    return Written(_text(reply, "new sentence"), None, chosen, new)


async def _step_by_step(task: _Task) -> Written:
    prompt = task.prompts[task.kind]
    located = await _ask(task, prompt.messages("locate", task.caption), task.style.temperature)
    concepts = _concepts(located)
    if not concepts:
        raise _NoNegative("nothing_to_change", located)
    concepts = [one for one in concepts if _occurs(one, task.caption)]
    if not concepts:
        raise _NoNegative("not_in_caption", located)
    chosen = _chosen(concepts, task)
    messages = prompt.messages("propose", task.caption, chosen)
    proposed = await _ask(task, messages, task.style.proposing_temperature)
    new = _text(proposed, "new")
    _check_concepts(task, chosen, new, proposed)
    messages = prompt.messages("compose", task.caption, chosen, new)
    composed = await _ask(task, messages, task.style.temperature)
    return Written(_text(composed, "new sentence"), None, chosen, new)


async def _ask(task: _Task, messages: Sequence[Mapping[str, str]], temperature: float) -> str:
    """Return the text of a reply. Raises _NoNegative if it was cut off.

    At temperature 0 all draws send the same request, so that a caller who keeps replies sends it once.
    """
    reply = await task.ask(Chat(messages, temperature, task.draw if temperature > 0 else 0))
    if reply.is_truncated:
        raise _NoNegative("truncated", reply.text)
    return reply.text


def _concepts(reply: str) -> list[str]:
    try:
        return concepts_of(reply)
    except Unreadable:
        raise _NoNegative("unreadable", reply) from None


def _text(reply: str, label: str) -> str:
    try:
        return one_text(reply, label)
    except Unreadable:
        raise _NoNegative("unreadable", reply) from None


def _check_concepts(task: _Task, chosen: str, new: str, reply: str) -> None:
    if not _occurs(chosen, task.caption):
        raise _NoNegative("not_in_caption", reply)
    if not 0 < len(compared_words(new)) <= MAX_PHRASE_WORDS:
        raise _NoNegative("unreadable", reply)
    if compared_words(chosen) == compared_words(new):
        raise _NoNegative("same_concept", reply)


def _occurs(concept: str, caption: str) -> bool:
    """Whether the words of a concept stand together in the caption."""
    words, wanted = compared_words(caption), compared_words(concept)
    return bool(wanted) and any(words[i : i + len(wanted)] == wanted for i in range(len(words)))


def _chosen(concepts: Sequence[str], task: _Task) -> str:
    """Choose a concept at random; later draws take the others first."""
    seed = hashlib.blake2b(f"{task.kind} {task.caption}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    order = Random(int.from_bytes(seed)).sample(concepts, len(concepts))
    return order[task.draw % len(order)]


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
