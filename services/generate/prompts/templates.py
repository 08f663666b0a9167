"""Questions over documents as prompts: templates, the text that they give, and its tokens with the documents' spans.

Legend: K documents, T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from services.core.errors import InvalidRequest
from services.generate.prompts.abandonment import check_wanted

# Length of a text that is read at first, and tokens at its end that the unread rest could change.
CHARACTERS_PER_TOKEN = 8
NUM_UNCERTAIN_TOKENS = 16


def shorten(tokenizer: Any, text: str, max_tokens: int) -> str | None:
    """`text` without what begins after its first `max_tokens` tokens; None where it has no more than these.

    `tokenizer` is a fast tokenizer of transformers; special tokens do not count. A character that takes several
    tokens is kept or left out whole, so fewer tokens may be left. Takes time for what is kept, not for what is not.
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


SpanRule = Literal["newline", "text"]


@dataclass(frozen=True)
class Document:
    """One retrieved passage. An empty `title` is none; `id` is the caller's own and never shown to a model."""

    text: str
    title: str = ""
    id: str | None = None


@dataclass(frozen=True)
class Prompt:
    """A tokenised prompt.

    input_ids: T token ids. spans: one half-open token range (start, end) for each of the K documents, in order and
    disjoint; empty documents may have few tokens, never wrong ones. tail_start: the first token after the last
    document, where the question's tail begins; 0 without documents.
    """

    input_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    tail_start: int


@dataclass(frozen=True)
class Piece:
    """A stretch of a prompt's text that is tokenised by itself, so that its ends are token borders.

    document: which document it is, counted from 0; None for the text around them. is_chat: written by a chat
    template, whose control tokens count as such; `plain` are then the half-open ranges of `text` in which they do
    not, because a user wrote them. Without `is_chat` all of `text` is plain.
    """

    text: str
    document: int | None = None
    is_chat: bool = False
    plain: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Template:
    """The text before, in and after the documents.

    `{question}`, `{number}` (from 1), `{title}` and `{text}` are filled in.
    head, tail: around the documents. titled, untitled: one document, its newline included. closed_book: the whole
    prompt where there are no documents.
    """

    head: str
    titled: str
    untitled: str
    tail: str
    closed_book: str

    def render(
        self, question: str, documents: Sequence[Document], span_rule: SpanRule = "newline"
    ) -> tuple[Piece, ...]:
        """The prompt in pieces, one for each document.

        With `span_rule` "newline" a document's piece ends with its newline, with "text" before it. Filled-in text is
        taken as it is: braces in it mean nothing.
        """
        if not documents:
            return (Piece(self.closed_book.replace("{question}", question)),)
        pieces = [Piece(self.head.replace("{question}", question))]
        for k, document in enumerate(documents):
            line = self._line(k, document)
            if span_rule == "newline":
                pieces.append(Piece(line, k))
            else:
                pieces += [Piece(line.removesuffix("\n"), k), Piece("\n")]
        last = pieces.pop().text if span_rule == "text" else ""
        return (*pieces, Piece(last + self.tail.replace("{question}", question)))

    def _line(self, k: int, document: Document) -> str:
        form = self.titled if document.title else self.untitled
        # cut at the fields instead of replacing one after the other, so that a title holding "{text}" stays a title
        before, after = form.replace("{number}", str(k + 1)).split("{text}")
        return before.replace("{title}", document.title) + document.text + after


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
TEMPLATES = {"plain": PLAIN, "query_aware": QUERY_AWARE, "random_order": RANDOM_ORDER}

# The dummy document's text, which is about nothing that anybody asks.
FILLER = " This passage was left blank on purpose and says nothing about the matter."

# Texts to put before one that is tokenised, so that it is read as the middle of a text and not as its start, where
# some tokenizers put a space. The first that does not merge with the text is taken.
_ANCHORS = ("\n", "x", "1", ".")


def tokenise(tokenizer: Any, pieces: Sequence[Piece]) -> Prompt:
    """Token ids of the pieces one after the other, with the documents' spans.

    Each piece is tokenised by itself, as the continuation of a text. The ids are those of the whole text unless a
    token would cross from one piece into the next; they are never cut off. The tokenizer's own opening (`<s>`) comes
    first, except where a chat template has written it. Control tokens (every added token but white space) come from
    chat templates alone: where plain text spells one, it is tokenised in two parts.

    tokenizer: a fast tokenizer of transformers. Raises InvalidRequest where plain text holds a control token of one
    character, which no tokenisation can make plain.
    """
    check_wanted()
    encoder = _Encoder(tokenizer)
    input_ids = [] if any(piece.is_chat for piece in pieces) else encoder.opening()
    spans: dict[int, tuple[int, int]] = {}
    fragments = [
        _Fragment(piece.text, piece.plain if piece.is_chat else ((0, len(piece.text)),), None if i == 0 else 0)
        for i, piece in enumerate(pieces)
    ]
    for piece, ids in zip(pieces, encoder.encode(fragments), strict=True):
        if piece.document is not None:
            spans[piece.document] = (len(input_ids), len(input_ids) + len(ids))
        input_ids += ids
    ordered = tuple(spans[k] for k in range(len(spans)))
    return Prompt(tuple(input_ids), ordered, ordered[-1][1] if ordered else 0)


def filler_ids(tokenizer: Any) -> tuple[int, ...]:
    """Return the token ids of FILLER, to be repeated or cut to the length of the document that a dummy replaces."""
    encoder = _Encoder(tokenizer)
    return tuple(encoder.encode([_Fragment(FILLER, ((0, len(FILLER)),), 0)])[0])


def control_tokens(tokenizer: Any) -> dict[int, str]:
    """Ids and contents of the added tokens that steer a model: all but those of white space, which are text."""
    return {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.content.strip()}


@dataclass(frozen=True)
class _Fragment:
    """Text to be tokenised by itself: its plain ranges, and the anchor before it (None where it opens a text)."""

    text: str
    plain: tuple[tuple[int, int], ...]
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

    def encode(self, fragments: Sequence[_Fragment]) -> list[list[int]]:
        """Return one list of ids for each fragment; as many as possible are read at once."""
        anchors = [self._anchors[f.anchor] if f.anchor is not None and f.text else "" for f in fragments]
        results: list[list[int] | None] = []
        again: list[_Fragment] = []
        shares: list[int] = []
        for fragment, anchor, (ids, offsets) in zip(
            fragments, anchors, self._batch([a + f.text for a, f in zip(anchors, fragments, strict=True)]), strict=True
        ):
            parts = self._second_try(fragment, len(anchor), ids, offsets)
            results.append(None if parts else ids[_first_from(len(anchor), offsets) :])
            again += parts
            shares.append(len(parts))
        tokenised = iter(self.encode(again) if again else [])
        return [
            ids if ids is not None else [i for _ in range(share) for i in next(tokenised)]
            for ids, share in zip(results, shares, strict=True)
        ]

    def _second_try(
        self, fragment: _Fragment, shift: int, ids: list[int], offsets: list[tuple[int, int]]
    ) -> list[_Fragment]:
        """Return what to tokenise instead where the fragment merged with its anchor or spells control tokens."""
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
        # the token for what is unknown may well come from text; written out it is a control token like others
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


def _first_from(shift: int, offsets: Sequence[tuple[int, int]]) -> int:
    if shift == 0:
        return 0
    return next((i for i, (start, _) in enumerate(offsets) if start >= shift), len(offsets))
