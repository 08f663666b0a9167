"""Prompts in a model's own chat template, with the documents located in the rendered text.

A template is a program, and may cut, strip or compare users' text. So users' text is rendered with private characters
in two places: instead of each character of a control token that a user spelt (otherwise the template's own control
tokens could not be distinguished from the user's), and around each document. Afterwards they are restored, character
for character.

Legend: K documents.
"""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.core.errors import InvalidRequest, TooLarge
from services.generate.prompts.bounded_templates import templates_of_this_process
from services.generate.prompts.templates import (
    QUERY_AWARE,
    Document,
    Piece,
    Range,
    SpanRule,
    Template,
    control_tokens,
)

# A plane of private characters: the first ones are marks around documents, the others replace other characters.
_FIRST, _LAST = 0xF0000, 0xFFFFD
_MAX_DOCUMENTS = 0x4000
# the mark around the question after the documents
_QUESTION = _MAX_DOCUMENTS
_PRIVATE = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_MARK = re.compile(f"[{chr(_FIRST)}-{chr(_FIRST + _QUESTION)}]")

Message = Mapping[str, Any]


def render_question(
    tokenizer: Any,
    question: str,
    documents: Sequence[Document],
    template: Template = QUERY_AWARE,
    span_rule: SpanRule = "newline",
) -> tuple[Piece, ...]:
    """Render the template's prompt, as the user's message if the tokenizer has a chat template, else unchanged."""
    if tokenizer.chat_template is None:
        return template.render(question, documents, span_rule)
    return _in_message(_Chat(tokenizer), [{"role": "user", "content": question}], documents, template, span_rule)


def render_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    documents: Sequence[Document] = (),
    template: Template = QUERY_AWARE,
    span_rule: SpanRule = "newline",
) -> tuple[Piece, ...]:
    """Render a conversation, answered over documents.

    The chat template writes the documents if it supports `documents` and writes each once, in order, with text after
    them; a document's piece then includes the lines that the template puts around it. Otherwise the last message of the
    user becomes `template`'s prompt, with that message as its question.

    messages: each with `role` and `content`. Raises InvalidRequest if the tokenizer has no chat template, if the
    template rejects the messages, or if there are documents and no message of a user.
    """
    chat = _chat(tokenizer)
    if not documents:
        return chat.pieces(chat.written(messages), [])
    return _in_template(chat, messages, documents, span_rule) or _in_message(
        chat, messages, documents, template, span_rule
    )


def render_tool_chat(
    tokenizer: Any,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    documents: Sequence[Document] = (),
    span_rule: SpanRule = "newline",
) -> tuple[tuple[Piece, ...], tuple[Message, ...]]:
    """Render a conversation with tools, and return the messages that vLLM renders to the same text as well.

    Documents are in the last message of the user. messages: also with OpenAI's `tool_calls` and `tool_call_id`. Raises
    InvalidRequest as `render_chat`, and where tools or calls spell a control token, which vLLM would read as one.
    """
    chat = _chat(tokenizer, tools)
    _check_spellings(tokenizer, "tools", tools)
    for index, message in enumerate(messages):
        of_calls = [message.get(name) for name in ("tool_calls", "tool_call_id", "name")]
        _check_spellings(tokenizer, f"messages.{index}", of_calls)
    read = [_with_arguments(message) for message in messages]
    if not documents:
        return chat.pieces(chat.written(read), []), tuple(messages)
    pieces = _in_message(chat, read, documents, QUERY_AWARE, span_rule)
    asked, sent = _last_of_user(messages), list(messages)
    prompt = QUERY_AWARE.render(messages[asked]["content"], documents, span_rule)
    sent[asked] = {**messages[asked], "content": "".join(piece.text for piece in prompt)}
    return pieces, tuple(sent)


def _chat(tokenizer: Any, tools: Sequence[Mapping[str, Any]] = ()) -> "_Chat":
    if tokenizer.chat_template is None:
        message = "this checkpoint has no chat template: use completions instead"
        raise InvalidRequest(message, param="messages")
    return _Chat(tokenizer, tools)


def _with_arguments(message: Message) -> Message:
    """Parse the arguments of its calls of tools, as vLLM does: templates write them as objects."""
    if not message.get("tool_calls"):
        return message
    return {
        **message,
        "tool_calls": [
            {**call, "function": {**call["function"], "arguments": _arguments(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ],
    }


def _arguments(text: str) -> Any:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _check_spellings(tokenizer: Any, param: str, value: Any) -> None:
    for text in _texts(value):
        spelt = next((one for one in control_tokens(tokenizer).values() if one in text), None)
        if spelt is not None:
            message = f"{param}: {spelt!r} is a control token of this model, and cannot be part of tools or their calls"
            raise InvalidRequest(message, param=param)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a JSON value, names of fields among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from itertools.chain.from_iterable(map(_texts, itertools.chain(value, value.values())))
    elif isinstance(value, Sequence):
        yield from itertools.chain.from_iterable(map(_texts, value))


def _last_of_user(messages: Sequence[Message]) -> int:
    asked = max((i for i, message in enumerate(messages) if message["role"] == "user"), default=None)
    if asked is None:
        message = "documents need a user message that asks about them"
        raise InvalidRequest(message, param="messages")
    return asked


def _in_message(
    chat: "_Chat", messages: Sequence[Message], documents: Sequence[Document], template: Template, span_rule: SpanRule
) -> tuple[Piece, ...]:
    asked = _last_of_user(messages)
    pieces = template.render(messages[asked]["content"], documents, span_rule)
    prompt = "".join(chat.marked(piece.text, piece.document, piece.contents) for piece in pieces)
    escaped = [{**m, "content": chat.escaped(m["content"])} for m in messages]
    escaped[asked] = {**escaped[asked], "content": prompt}
    text = chat.rendered(escaped)
    found = _found(text, [*range(len(documents)), *[_QUESTION] * bool(pieces[-1].contents)])
    if found is None:
        message = "this checkpoint's chat template does not render the user's last message exactly once and in full"
        raise InvalidRequest(message, param="messages")
    places = [_Place((at[0], at[-1]), _pairs(at[1:-1])) for at in found[: len(documents)]]
    return chat.pieces(text, places, _pairs(list(itertools.chain(*found[len(documents) :]))))


def _in_template(
    chat: "_Chat", messages: Sequence[Message], documents: Sequence[Document], span_rule: SpanRule
) -> tuple[Piece, ...] | None:
    try:
        text = chat.written(messages, documents)
        # the same document twice: the text between them is the end of one and the beginning of the next
        twice = chat.written(messages, [documents[0]] * 2)
    except InvalidRequest:  # it does not support documents of this form, which is not an error of the messages
        return None
    found, pair = _found(text, range(len(documents))), _found(twice, range(2))
    if found is None or pair is None:
        return None
    bare = _MARK.sub("", text)
    between = _MARK.sub("", twice)[pair[0][-1] : pair[1][0]]
    ranges = _with_frame(bare, [(at[0], at[-1]) for at in found], between, span_rule)
    places = [_Place(range_, _pairs(at)) for range_, at in zip(ranges, found, strict=True)]
    # without text after the documents, no question would attend to them
    if not bare[ranges[-1][1] :].strip():
        return None
    return chat.pieces(text, places, _only(chat, messages, bare, ranges[-1][1]))


def _only(chat: "_Chat", messages: Sequence[Message], text: str, start: int) -> tuple[Range, ...]:
    """The range of the user's last message in the text from `start` on, if it is there exactly once."""
    asked = next((one["content"] for one in reversed(messages) if one["role"] == "user"), "").strip()
    question = chat.escaped(asked)
    if not asked or text.count(question, start) != 1:
        return ()
    first = text.index(question, start)
    return ((first, first + len(question)),)


def _with_frame(text: str, found: list[Range], between: str, span_rule: SpanRule) -> list[Range]:
    """Extend the ranges of K documents' titles and texts by the text that the template writes for each document.

    Of the text between two documents, everything up to the first line break ends the first; the rest begins the second.
    The same text, with other numbers, is searched for before the first and after the last document.
    """
    num_closing = _closing(between)
    opening = re.sub(r"\d+", lambda _: r"\d+", re.escape(between[num_closing:]))
    head = text[: found[0][0]]
    match = re.search(f"(?:{opening})\\Z", head)
    starts = [match.start() if match else head.rfind("\n") + 1]
    ends = []
    for (_, end), (start, _) in itertools.pairwise(found):
        ends.append(end + _closing(text[end:start]))
        starts.append(ends[-1])
    last = found[-1][1]
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(between[:num_closing], text[last:], strict=False))
    ends.append(last + len(list(same)))
    if span_rule == "text":
        ends = [after + len(text[after:end].rstrip("\n")) for (_, after), end in zip(found, ends, strict=True)]
    return list(zip(starts, ends, strict=True))


def _closing(between: str) -> int:
    match = re.match(r"[^\n]*\n+", between)
    return match.end() if match else 0


def _found(text: str, marks: Sequence[int]) -> list[list[int]] | None:
    """Find the places of each of these marks in the text without marks; None unless all are present, disjoint and in
    order."""
    places = [(ord(mark.group()) - _FIRST, mark.start() - i) for i, mark in enumerate(_MARK.finditer(text))]
    by_document = [(k, [at for _, at in group]) for k, group in itertools.groupby(places, key=lambda place: place[0])]
    # a title or a text whose second mark is missing was cut off by the template
    if [k for k, _ in by_document] != list(marks) or any(len(at) % 2 for _, at in by_document):
        return None
    return [at for _, at in by_document]


def _pairs(places: Sequence[int]) -> tuple[Range, ...]:
    return tuple(zip(places[::2], places[1::2], strict=True))


@dataclass(frozen=True)
class _Place:
    """A document's range in a text, and within it those of its title and text."""

    range: Range
    contents: tuple[Range, ...]


@dataclass(frozen=True)
class _Spellings:
    """Spellings of control tokens in a user's text: whole, or up to the template's own text before or after it."""

    whole: re.Pattern[str] | None
    beginnings: frozenset[str]
    endings: frozenset[str]
    max_length: int

    @classmethod
    @functools.lru_cache(maxsize=8)
    def of(cls, contents: tuple[str, ...]) -> "_Spellings":
        longest_first = sorted(contents, key=len, reverse=True)
        return cls(
            re.compile("|".join(map(re.escape, longest_first))) if contents else None,
            frozenset(content[:i] for content in contents for i in range(1, len(content))),
            frozenset(content[i:] for content in contents for i in range(1, len(content))),
            max(map(len, contents), default=0),
        )

    def ranges(self, text: str) -> list[tuple[int, int]]:
        ranges = [match.span() for match in self.whole.finditer(text)] if self.whole else []
        longest = range(min(self.max_length, len(text)), 0, -1)
        before = next((n for n in longest if text[:n] in self.endings), 0)
        after = next((n for n in longest if text[len(text) - n :] in self.beginnings), 0)
        return [*ranges, (0, before), (len(text) - after, len(text))]


class _Chat:
    """Conversion of one prompt's text for a chat template, and back."""

    def __init__(self, tokenizer: Any, tools: Sequence[Mapping[str, Any]] = ()) -> None:
        self._tokenizer = tokenizer
        self._tools = tools
        self._spellings = _Spellings.of(tuple(control_tokens(tokenizer).values()))
        self._stand_ins: dict[str, str] = {}

    def escaped(self, text: str) -> str:
        """Replace spellings of control tokens in `text`, and its own private characters, by private characters."""
        ranges = [*self._spellings.ranges(text), *(match.span() for match in _PRIVATE.finditer(text))]
        characters = list(text)
        for i in {i for start, end in ranges for i in range(start, end)}:
            characters[i] = self._stand_in(text[i])
        return "".join(characters)

    def marked(self, text: str, document: int | None, contents: Sequence[Range] = ()) -> str:
        """Escape `text` and put its document's marks around it and around each of `contents`; the question's only
        around these."""
        if document is None:
            escaped = self.escaped(text)
            borders = [0, *itertools.chain.from_iterable(contents), len(text)]
            return chr(_FIRST + _QUESTION).join(escaped[start:end] for start, end in itertools.pairwise(borders))
        if document >= _MAX_DOCUMENTS:
            message = f"a prompt takes {_MAX_DOCUMENTS} documents at most"
            raise TooLarge(message, param="documents")
        mark = chr(_FIRST + document)
        escaped = self.escaped(text)
        borders = [0, *itertools.chain.from_iterable(contents), len(text)]
        return f"{mark}{mark.join(escaped[start:end] for start, end in itertools.pairwise(borders))}{mark}"

    def written(self, messages: Sequence[Message], documents: Sequence[Document] = ()) -> str:
        """Render the template with messages and documents, escaped and marked."""
        return self.rendered(
            [{**message, "content": self.escaped(message["content"])} for message in messages],
            [
                {"title": self.marked(d.title, k) if d.title else "", "text": self.marked(d.text, k)}
                for k, d in enumerate(documents)
            ],
        )

    def rendered(self, messages: Sequence[Message], documents: Sequence[Mapping[str, str]] = ()) -> str:
        """Render the template with escaped text. Raises what `BoundedTemplates.render` does."""
        variables = {**self._tokenizer.special_tokens_map, "tools": list(self._tools) or None}
        template = self._tokenizer.get_chat_template()
        return templates_of_this_process().render(template, messages, documents, variables)

    def pieces(self, text: str, places: Sequence[_Place], question: Sequence[Range] = ()) -> tuple[Piece, ...]:
        """Remove marks, restore escaped characters: one piece for each document and each text between them.

        `question` is its range after the documents, if it is known.
        """
        bare = _MARK.sub("", text)
        pieces, at = [], 0
        for k, place in enumerate(places):
            start, end = place.range
            contents = tuple((first - start, stop - start) for first, stop in place.contents)
            pieces += [self._piece(bare[at:start], None), self._piece(bare[start:end], k, contents)]
            at = end
        asked = tuple((first - at, stop - at) for first, stop in question)
        pieces.append(self._piece(bare[at:], None, asked))
        return tuple(piece for piece in pieces if piece.text or piece.document is not None)

    def _piece(self, text: str, document: int | None, contents: tuple[Range, ...] = ()) -> Piece:
        characters = {stand_in: character for character, stand_in in self._stand_ins.items()}
        plain = tuple(match.span() for match in re.finditer(f"{_PRIVATE.pattern}+", text))
        original = _PRIVATE.sub(lambda match: characters.get(match.group(), match.group()), text)
        return Piece(original, document, is_chat=True, plain=plain, contents=contents)

    def _stand_in(self, character: str) -> str:
        code = _FIRST + _QUESTION + 1 + len(self._stand_ins)
        if code > _LAST:
            message = "a conversation has too many different private-use characters; the limit is some ten thousand"
            raise InvalidRequest(message, param="messages")
        return self._stand_ins.setdefault(character, chr(code))
