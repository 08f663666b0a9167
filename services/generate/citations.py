"""Citations: which documents each sentence of an answer rests on, by the attention of its tokens.

Attn_t(k) is the attention of the row that generated token t, the mean weight of a token of document k over the layers
and heads that enter rel. The bias of the documents' places is that of the prompt's last row, which the answer's
calibration has estimated: a sentence's attention to document k is the positive part of the mean over its tokens of
Attn_t(k) minus the bias, as a share of that of all documents.

Shapes: T tokens, K documents.
"""

import re
from collections.abc import Iterator, Sequence
from statistics import fmean

# Share of a sentence's attention from which a document supports it: best F1 on the calibration questions of
# `python -m benchmarks.citations`.
CITED_SHARE = 0.45

Span = tuple[int, int]

# A terminator with its closing quotes before white space, one of those that no space follows, or a new line. Initials,
# some titles and what goes on in lower case end no sentence.
_BOUNDARY = re.compile(
    r"(?<=[.!?…])(?<!\b\w\.)(?<!\b[DMS][rst]\.)(?<!\bMrs\.)[\"'”’»)\]]*\s+(?![a-z])|(?<=[。！？])[」』”’]*|\n\s*"
)


def sentences(text: str) -> Iterator[Span]:
    """Yield the start and end of each sentence of a text, in characters, without the white space around it."""
    ends = [match.end() for match in _BOUNDARY.finditer(text)]
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        sentence = text[start:end]
        if bare := sentence.strip():
            start += sentence.index(bare)
            yield start, start + len(bare)


def attention_shares(attention: Sequence[Sequence[float]], bias: Sequence[float]) -> list[float]:
    """Return each document's share of a sentence's attention, from Attn_t(k) (T, K) and its bias (K,).

    Zeros where no document gets more than its bias, and without tokens.
    """
    if not attention:
        return [0.0] * len(bias)
    means = [fmean(of_document) for of_document in zip(*attention, strict=True)]
    above = [max(0.0, mean - of_place) for mean, of_place in zip(means, bias, strict=True)]
    return [one / (sum(above) or 1.0) for one in above]
