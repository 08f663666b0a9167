"""Questions over documents as prompts: templates, the text that they give, and its tokens with the documents' spans.

Legend: K documents, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
    """A stretch of a prompt's text that is tokenised by itself, so that its ends lie on token borders.

    document: which document it is, counted from 0; None for what stands around them.
    """

    text: str
    document: int | None = None


@dataclass(frozen=True)
class Template:
    """What stands before, in and after the documents.

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
