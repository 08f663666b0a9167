"""Questions over documents as prompts: templates, their rendered text, and its tokens with the documents' spans.

Legend: K documents, T tokens.
"""

import itertools
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from services.core.errors import InvalidRequest
from services.generate.prompts.abandonment import check_wanted

# Length of the text that is read first, and the number of tokens at its end that the unread rest could change.
CHARACTERS_PER_TOKEN = 8
NUM_UNCERTAIN_TOKENS = 16


def shorten(tokenizer: Any, text: str, max_tokens: int) -> str | None:
    """Cut `text` after its first `max_tokens` tokens; None if it has no more than these.

    `tokenizer` is a fast tokenizer of transformers; special tokens do not count. A character of several tokens is kept
    or dropped as a whole, so fewer tokens may remain. The time depends on the kept text, not on the rest.
    """
    num_characters = CHARACTERS_PER_TOKEN * (max_tokens + NUM_UNCERTAIN_TOKENS)
    while True:
        encoded = tokenizer(text[:num_characters], add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = encoded["offset_mapping"]
        is_whole = num_characters >= len(text)
        if len(offsets) > max_tokens and (is_whole or len(offsets) >= max_tokens + NUM_UNCERTAIN_TOKENS):
            return text[: offsets[max_tokens][0]]
        if is_whole:
            return None
        num_characters *= 2


def least_tokens(tokenizer: Any, pieces: Sequence["Piece"], max_tokens: int) -> int:
    """Return a number of tokens that the pieces have at least; 0 where it would not pay to know.

    The beginning of a text that is far longer than `max_tokens` usually are tells, in a fraction of the time, whether
    the whole has more.
    """
    left = CHARACTERS_PER_TOKEN * max_tokens
    if sum(len(piece.text) for piece in pieces) < 1.5 * left:
        return 0
    beginnings: list[str] = []
    for piece in pieces:
        beginnings.append(piece.text[:left])
        left -= len(beginnings[-1])
        if left <= 0:
            break
    encoded = tokenizer(beginnings, add_special_tokens=False, verbose=False)["input_ids"]
    # each may have a token less as the continuation of a text, and the last one those that its rest could change
    return sum(map(len, encoded)) - len(encoded) - NUM_UNCERTAIN_TOKENS


SpanRule = Literal["newline", "text"]
Range = tuple[int, int]


@dataclass(frozen=True)
class Document:
    """One retrieved passage. An empty `title` means none; `id` is the caller's own and never shown to a model."""

    text: str
    title: str = ""
    id: str | None = None

    @property
    def titled(self) -> str:
        """Its text, below its title if it has one."""
        return f"{self.title}\n{self.text}" if self.title else self.text


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt.

    input_ids: T token ids. spans: one half-open token range (start, end) for each of the K documents, in order and
    disjoint; empty documents may have few tokens, never wrong ones. tail_start: the first token after the last
    document, where the question's tail begins; 0 without documents. contents: for each document the token ranges of
    its title and text within its span, without the template's own text; empty if unknown. question: the tokens of the
    question after the last document; None if unknown. messages: of a conversation with tools, which vLLM renders to
    this prompt itself; empty for others.
    """

    input_ids: tuple[int, ...]
    spans: tuple[Range, ...]
    tail_start: int
    contents: tuple[tuple[Range, ...], ...] = ()
    question: Range | None = None
    messages: tuple[Mapping[str, Any], ...] = field(default=(), compare=False, repr=False)


@dataclass(frozen=True)
class Piece:
    """A part of a prompt's text that is tokenised separately, so that its ends are token boundaries.

    document: the number of the document, counted from 0; None for the text around them. is_chat: written by a chat
    template, whose control tokens count as such; `plain` are then the half-open ranges of `text` in which they do not,
    because a user wrote them. Without `is_chat`, all of `text` is plain. contents: the ranges of the document's title
    and text in `text`, in order, or that of the question after the documents.
    """

    text: str
    document: int | None = None
    is_chat: bool = False
    plain: tuple[Range, ...] = ()
    contents: tuple[Range, ...] = ()


@dataclass(frozen=True)
class Template:
    """The text before, in and after the documents.

    `{question}`, `{number}` (from 1), `{title}` and `{text}` are filled in.
    head, tail: around the documents. titled, untitled: one document, including its newline. closed_book: the whole
    prompt if there are no documents.
    """

    head: str
    titled: str
    untitled: str
    tail: str
    closed_book: str

    def render(
        self, question: str, documents: Sequence[Document], span_rule: SpanRule = "newline"
    ) -> tuple[Piece, ...]:
        """Render the prompt in pieces, one for each document.

        With `span_rule` "newline", a document's piece ends with its newline, with "text" before it. Filled-in text is
        literal: braces in it have no meaning.
        """
        if not documents:
            return (Piece(self.closed_book.replace("{question}", question)),)
        pieces = [Piece(self.head.replace("{question}", question))]
        for k, document in enumerate(documents):
            line = self._line(k, document)
            if span_rule == "newline":
                pieces.append(line)
            else:
                pieces += [replace(line, text=line.text.removesuffix("\n")), Piece("\n")]
        last = pieces.pop().text if span_rule == "text" else ""
        before, *after = (last + self.tail).split("{question}")
        places = ((len(before), len(before) + len(question)),) if after else ()
        return (*pieces, Piece(question.join((before, *after)), contents=places))

    def _line(self, k: int, document: Document) -> Piece:
        form = self.titled if document.title else self.untitled
        text, contents = "", []
        # split at the fields instead of replacing them one by one, so that a title containing "{text}" is unchanged
        for part in re.split(r"(\{title\}|\{text\})", form.replace("{number}", str(k + 1))):
            written = {"{title}": document.title, "{text}": document.text}.get(part)
            if written is not None:
                contents.append((len(text), len(text) + len(written)))
            text += part if written is None else written
        return Piece(text, k, contents=tuple(contents))


_INSTRUCTION = (
    "Write a high-quality answer for the given question using only the provided search results "
    "(some of which might be irrelevant)."
)
_DOCUMENT = {"titled": "Document [{number}](Title: {title}) {text}\n", "untitled": "Document [{number}] {text}\n"}
_QUESTION = "Question: {question}\nAnswer:"

# lost-in-the-middle's prompts, to the character
PLAIN = Template(head=f"{_INSTRUCTION}\n\n", **_DOCUMENT, tail=f"\n{_QUESTION}", closed_book=_QUESTION)
QUERY_AWARE = Template(
    head=f"{_INSTRUCTION}\n\nQuestion: {{question}}\n\n", **_DOCUMENT, tail=f"\n{_QUESTION}", closed_book=_QUESTION
)
RANDOM_ORDER = Template(
    head=f"{_INSTRUCTION} The search results are ordered randomly.\n\n",
    **_DOCUMENT,
    tail=f"\n{_QUESTION}",
    closed_book=_QUESTION,
)

# The dummy document's text, which is irrelevant to any question.
FILLER = " This passage was left blank on purpose and says nothing about the matter."
# A question without content, in-context reranking's (Chen et al. 2024).
CONTENT_FREE = " N/A"

# Texts to put before a text when it is tokenised, so that it is not at the start, where some tokenizers add a space.
# The first one that does not merge with the text is used.
_ANCHORS = ("\n", "x", "1", ".")


def tokenise(tokenizer: Any, pieces: Sequence[Piece]) -> Prompt:
    """Tokenise the pieces one after the other, with the documents' spans.

    Each piece is tokenised separately, as the continuation of a text. The ids are those of the whole text unless a
    token would cross from one piece into the next; they are never truncated. The tokenizer's own opening (`<s>`) comes
    first, unless a chat template has written it. Control tokens (every added token except white space) come only from
    chat templates: if plain text spells one, it is tokenised in two parts.

    tokenizer: a fast tokenizer of transformers. Raises InvalidRequest if plain text contains a control token of one
    character, which no tokenisation can make plain.
    """
    check_wanted()
    encoder = _Encoder(tokenizer)
    input_ids = [] if any(piece.is_chat for piece in pieces) else encoder.opening()
    fragments = [
        _Fragment(piece.text, piece.plain if piece.is_chat else ((0, len(piece.text)),), None if i == 0 else 0)
        for i, piece in enumerate(pieces)
    ]
    places: list[tuple[int, list[Range]]] = []
    for tokens in encoder.encode(fragments):
        places.append((len(input_ids), tokens.offsets))
        input_ids += tokens.ids
    return _located(input_ids, pieces, places)


def tokenise_whole(tokenizer: Any, pieces: Sequence[Piece]) -> Prompt:
    """Tokenise a chat template's pieces as one text, as vLLM does, with the spans that `tokenise` finds.

    A token that crosses from one piece into the next belongs to the first. Raises InvalidRequest where a user's text
    spells a control token, which vLLM would read as one.
    """
    check_wanted()
    text = "".join(piece.text for piece in pieces)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    input_ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    starts, control, at = [start for start, _ in offsets], control_tokens(tokenizer), 0
    places: list[tuple[int, list[Range]]] = []
    for piece in pieces:
        first, stop = bisect_left(starts, at), bisect_left(starts, at + len(piece.text))
        own = [(start - at, end - at) for start, end in offsets[first:stop]]
        for token_id, (start, end) in zip(input_ids[first:stop], own, strict=True):
            spelt = control.get(token_id)
            if spelt and spelt in piece.text[start:end] and any(a < end and start < b for a, b in piece.plain):
                message = f"{spelt!r} is a control token of this model, and cannot be part of a conversation with tools"
                raise InvalidRequest(message)
        places.append((first, own))
        at += len(piece.text)
    return _located(input_ids, pieces, places)


def _located(input_ids: Sequence[int], pieces: Sequence[Piece], places: Sequence[tuple[int, list[Range]]]) -> Prompt:
    """Make the prompt of pieces, each with its first token and its tokens' ranges of characters."""
    spans: dict[int, Range] = {}
    contents: dict[int, tuple[Range, ...]] = {}
    question: Range | None = None
    for piece, (start, offsets) in zip(pieces, places, strict=True):
        found = tuple((start + first, start + stop) for first, stop in _content_tokens(piece, offsets))
        if piece.document is not None:
            spans[piece.document] = (start, start + len(offsets))
            contents[piece.document] = found
        elif found:
            question = found[0]
    ordered = tuple(spans[k] for k in range(len(spans)))
    tail_start = ordered[-1][1] if ordered else 0
    return Prompt(tuple(input_ids), ordered, tail_start, tuple(contents[k] for k in range(len(spans))), question)


def with_question(prompt: Prompt, content_free: Sequence[int]) -> tuple[int, ...]:
    """Return a prompt's tokens with others, repeated to its length, in the place of the question, if there is one."""
    start, stop = prompt.question or (0, 0)
    asked = itertools.islice(itertools.cycle(content_free), stop - start)
    return (*prompt.input_ids[:start], *asked, *prompt.input_ids[stop:])


def filler_ids(tokenizer: Any, text: str = FILLER) -> tuple[int, ...]:
    """Return the token ids of a filler, to be repeated or cut to the length of the replaced text."""
    encoder = _Encoder(tokenizer)
    return tuple(encoder.encode([_Fragment(text, ((0, len(text)),), 0)])[0].ids)


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """Ids and contents of the added tokens that control a model: all except white space, which is text."""
    return {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}


def _content_tokens(piece: Piece, offsets: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges of tokens of a document's title and text, or of the question.

    A token that also contains text of the template belongs to the template, unless that text is only spaces.
    """
    done = 0
    for start, stop in piece.contents:
        first = max(done, bisect_right(offsets, start, key=lambda offset: offset[1]))
        last = bisect_left(offsets, stop, key=lambda offset: offset[0])
        if first < last and piece.text[offsets[first][0] : start].strip(" "):
            first += 1
        if first < last and piece.text[stop : offsets[last - 1][1]].strip(" "):
            last -= 1
        if start < stop and first < last:
            yield first, last
            done = last


@dataclass(frozen=True)
class _Tokens:
    """Token ids of a text, with each one's range of characters."""

    ids: list[int]
    offsets: list[Range]


@dataclass(frozen=True)
class _Fragment:
    """Text to be tokenised separately: its plain ranges, and the anchor before it (None if it opens a text)."""

    text: str
    plain: tuple[Range, ...]
    anchor: int | None

    def cut(self, borders: Sequence[int]) -> Iterator["_Fragment"]:
        starts = [0, *borders]
        for start, end in zip(starts, [*borders, len(self.text)], strict=True):
            plain = tuple((max(a, start) - start, min(b, end) - start) for a, b in self.plain if a < end and b > start)
            yield _Fragment(self.text[start:end], plain, self.anchor if start == 0 else 0)


class _Encoder:
    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._control = control_tokens(tokenizer)
        alone, continued = self._batch(["x", "\nx"])
        adds_space = continued[0][-len(alone[0]) :] != alone[0]
        self._anchors = _ANCHORS if adds_space else ("",)

    def opening(self) -> list[int]:
        """The special tokens that the tokenizer puts before a text."""
        with_special = self._tokenizer("x").input_ids
        alone = self._tokenizer("x", add_special_tokens=False).input_ids
        return next(with_special[:i] for i in range(len(with_special)) if with_special[i : i + len(alone)] == alone)

    def encode(self, fragments: Sequence[_Fragment]) -> list[_Tokens]:
        """Return the tokens of each fragment; as many fragments as possible are tokenised at once."""
        anchors = [self._anchors[f.anchor] if f.anchor is not None and f.text else "" for f in fragments]
        results: list[_Tokens | None] = []
        again: list[_Fragment] = []
        shares: list[int] = []
        for fragment, anchor, (ids, offsets) in zip(
            fragments, anchors, self._batch([a + f.text for a, f in zip(anchors, fragments, strict=True)]), strict=True
        ):
            shift = len(anchor)
            parts = self._second_try(fragment, shift, ids, offsets)
            first = _first_from(shift, offsets)
            own = [(start - shift, end - shift) for start, end in offsets[first:]]
            results.append(None if parts else _Tokens(ids[first:], own))
            again += parts
            shares.append(len(parts))
        parts_of = iter(zip(again, self.encode(again), strict=True) if again else ())
        return [
            tokens if tokens is not None else _joined(itertools.islice(parts_of, share))
            for tokens, share in zip(results, shares, strict=True)
        ]

    def _second_try(
        self, fragment: _Fragment, shift: int, ids: list[int], offsets: list[tuple[int, int]]
    ) -> list[_Fragment]:
        """Return fragments to tokenise instead if this one merged with its anchor or spells control tokens."""
        if fragment.anchor is not None and any(start < shift < end for start, end in offsets):
            if fragment.anchor + 1 < len(self._anchors):
                return [_Fragment(fragment.text, fragment.plain, fragment.anchor + 1)]
            return [_Fragment(fragment.text, fragment.plain, None)]
        borders = {
            self._border_in(fragment.text, token_id, start - shift, end - shift)
            for token_id, (start, end) in zip(ids, offsets, strict=True)
            if token_id in self._control and self._is_spelt(fragment, token_id, start - shift, end - shift)
        }
        return list(fragment.cut(sorted(borders))) if borders else []

    def _is_spelt(self, fragment: _Fragment, token_id: int, start: int, end: int) -> bool:
        if not any(a < end and start < b for a, b in fragment.plain):
            return False
        # the unknown token may result from text; if spelt out, it is a control token like others
        is_unknown = token_id == self._tokenizer.unk_token_id
        return not is_unknown or self._control[token_id] in fragment.text[start:end]

    def _border_in(self, text: str, token_id: int, start: int, end: int) -> int:
        found = text.find(self._control[token_id], start, end)
        border = max(found, start) + 1
        if border >= end:
            message = f"{text[start:end]!r} is a control token of this model and cannot be read as text"
            raise InvalidRequest(message)
        return border

    def _batch(self, texts: list[str]) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
        batch = self._tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return zip(batch["input_ids"], batch["offset_mapping"], strict=True)


def _joined(parts: Iterable[tuple[_Fragment, _Tokens]]) -> _Tokens:
    """Join the tokens of a text that was tokenised in parts."""
    length, whole = 0, _Tokens([], [])
    for fragment, tokens in parts:
        whole.ids.extend(tokens.ids)
        whole.offsets.extend((length + start, length + end) for start, end in tokens.offsets)
        length += len(fragment.text)
    return whole


def _first_from(shift: int, offsets: Sequence[tuple[int, int]]) -> int:
    if shift == 0:
        return 0
    return next((i for i, (start, _) in enumerate(offsets) if start >= shift), len(offsets))
