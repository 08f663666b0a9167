"""Citations as clients get them: which of the request's documents each sentence of an answer rests on."""

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from services.core.errors import InvalidRequest
from services.generate.citations import CITED_SHARE, Span, attention_shares, sentences
from services.generate.generation.generation import Progress, PromptFacts

CITATIONS_DESCRIPTION = (
    "Return which documents support each sentence of the answer, by the attention of its tokens; not over vLLM."
)


class CitedDocument(BaseModel):
    index: int = Field(description="Its place in the request, from 0.")
    attention: float = Field(
        ge=0, le=1, description="Its share of the sentence's attention to documents, without the bias of their places."
    )


class Citation(BaseModel):
    """A sentence of the answer and its documents, the most attended first; none has enough attention where the list is
    empty."""

    start: int = Field(description="Its first character in the answer, from 0.")
    end: int = Field(description="The place after its last character.")
    text: str
    documents: list[CitedDocument]


def check_citations(field: str = "citations", *, has_documents: bool = True, is_over_vllm: bool) -> None:
    """Raises InvalidRequest without a list of documents, and where the engine can't measure the attention of tokens."""
    if not has_documents:
        raise InvalidRequest(f"{field}: There is nothing to cite; give documents.", param=field)
    if is_over_vllm:
        raise InvalidRequest(
            f"{field}: vLLM does not return the attention of an answer's tokens, only Fovea's own engine does"
            " (FOVEA_GENERATE_ENGINE=own); leave the field out.",
            param=field,
        )


@dataclass
class TokenAttention:
    """The text of an answer's tokens, in characters, and their attention, accumulated over its steps."""

    spans: list[Span] = field(default_factory=list)
    attention: list[tuple[float, ...]] = field(default_factory=list)

    def add(self, progress: Progress, start: int) -> None:
        """Add a step whose text begins at `start`; its tokens share its text."""
        self.spans += [(start, start + len(progress.text))] * len(progress.tokens)
        self.attention += progress.attention

    def citations(self, text: str, facts: PromptFacts) -> list[dict[str, Any]]:
        """The citations of the whole answer; the sentence by which the model refuses rests on no document."""
        return [
            {
                "start": start,
                "end": end,
                "text": text[start:end],
                "documents": [] if text[start:end] == facts.refusal else self._documents((start, end), facts),
            }
            for start, end in sentences(text)
        ]

    def shares(self, sentence: Span, facts: PromptFacts) -> list[float]:
        """Each document's share of a sentence's attention, in the order of the prompt."""
        # the end of the text is a token without a place in it
        placed = zip(self.spans, self.attention, strict=False)
        own = [attention for (start, end), attention in placed if start < sentence[1] and end > sentence[0]]
        return attention_shares(own, facts.bias)

    def _documents(self, sentence: Span, facts: PromptFacts) -> list[dict[str, Any]]:
        shares = enumerate(self.shares(sentence, facts))
        cited = [(share, facts.order[k]) for k, share in shares if share >= CITED_SHARE]
        return [{"index": index, "attention": share} for share, index in sorted(cited, reverse=True)]
