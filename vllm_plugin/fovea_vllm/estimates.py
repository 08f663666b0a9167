"""Estimates of α from a request's documents alone: measured with them in place and with dummies, Eq. 3.4.

rel(k) = Attn(doc, k) − Attn(dummy, k), a mean over layers and heads of the prompt's last row, and α = softmax(rel / t).
A dummy is neutral text of its document's length: of all of the document, or of `contents`, so that the template's own
text around a title and a text stays; a newline that ends the document stays as well. `exact` replaces one document in
each of K prompts, `single` all of them in one, and a table needs none. `query` replaces no document, but the question
after them by one without content (in-context reranking, arXiv 2410.02642): Attn(dummy, k) is then document k's own.

Shapes: L layers, H heads, K documents.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fovea_vllm.request import (
    DOCUMENTS,
    FIRST_ROW,
    LAYERS,
    LOG_ALPHA,
    MEASURE,
    NUM_PROMPT_TOKENS,
    BadRequest,
    layers_of,
    numbers,
    own_fields,
    spans_of,
)

BIAS = "fovea_bias"
BIAS_TABLE = "fovea_bias_table"
TEMPERATURE = "fovea_temperature"
REL_LAYERS = "fovea_rel_layers"
REL_HEADS = "fovea_rel_heads"
CONTENTS = "fovea_contents"
QUESTION = "fovea_question"
FIELDS = (
    *(DOCUMENTS, LAYERS, FIRST_ROW, NUM_PROMPT_TOKENS),
    *(BIAS, BIAS_TABLE, TEMPERATURE, REL_LAYERS, REL_HEADS, CONTENTS, QUESTION),
)

FILLER = " This passage was left blank on purpose and says nothing about the matter."
CONTENT_FREE = " N/A"
PAPER_TEMPERATURE = 5e-5
KINDS = ("exact", "single", "query", "table")


@dataclass(frozen=True)
class EstimateRequest:
    """A request whose α the server estimates.

    `bias` is where Attn(dummy, k) comes from, `bias_table` its K numbers for a table; `temperature` is t, in units of
    Attn; `rel_layers` enter rel, None for all, or only `rel_heads`, pairs of layer and head. `contents` are the ranges
    that dummies replace, the whole documents by default, and `question` the one that `query` replaces. `kept` are the
    fields of the request that stay as they are.
    """

    spans: tuple[tuple[int, int], ...]
    contents: tuple[tuple[int, int], ...]
    bias: Literal["exact", "single", "query", "table"]
    bias_table: tuple[float, ...]
    temperature: float
    rel_layers: tuple[int, ...] | None
    rel_heads: tuple[tuple[int, int], ...]
    question: tuple[int, int] | None
    kept: Mapping[str, Any]

    @classmethod
    def of(cls, extra_args: Mapping[str, Any] | None) -> "EstimateRequest | None":
        """Read a request's fields; None if it names no documents, or brings α, or only measures. Raises BadRequest."""
        fields = own_fields(extra_args)
        if DOCUMENTS not in fields or LOG_ALPHA in fields or MEASURE in fields:
            return None
        if unknown := sorted(set(fields) - set(FIELDS)):
            raise BadRequest(f"unknown field {unknown[0]!r}; without {LOG_ALPHA}, the fields are {', '.join(FIELDS)}")
        spans = spans_of(fields[DOCUMENTS])
        has_table = BIAS_TABLE in fields
        bias = fields.get(BIAS, "table" if has_table else "exact")
        if bias not in KINDS or (bias == "table") != has_table:
            raise BadRequest(
                f"{BIAS} must be one of {', '.join(KINDS)}; table needs {BIAS_TABLE}, the others exclude it"
            )
        if (bias == "query") != (QUESTION in fields):
            raise BadRequest(f"{BIAS} query and {QUESTION} need each other")
        if REL_HEADS in fields and REL_LAYERS in fields:
            raise BadRequest(f"{REL_HEADS} and {REL_LAYERS} exclude each other")
        return cls(
            spans,
            _contents(fields[CONTENTS], spans) if CONTENTS in fields else spans,
            bias,
            _table(fields[BIAS_TABLE], len(spans)) if has_table else (),
            _temperature(fields.get(TEMPERATURE, PAPER_TEMPERATURE)),
            layers_of(fields[REL_LAYERS], REL_LAYERS) if REL_LAYERS in fields else None,
            _heads(fields[REL_HEADS]) if REL_HEADS in fields else (),
            _question(fields[QUESTION], spans) if QUESTION in fields else None,
            {name: fields[name] for name in (LAYERS, FIRST_ROW, NUM_PROMPT_TOKENS) if name in fields},
        )

    @property
    def filler(self) -> str:
        """The text that replaces documents, or the question."""
        return CONTENT_FREE if self.bias == "query" else FILLER

    def check_prompt(self, num_tokens: int, num_layers: int, num_heads: int) -> None:
        """Raises BadRequest if the request does not fit a prompt of `num_tokens` and a model of these numbers."""
        if self.spans[-1][1] > num_tokens:
            raise BadRequest(f"{DOCUMENTS} ends at token {self.spans[-1][1]}, but the prompt has {num_tokens} tokens")
        if self.bias != "table" and self.spans[-1][1] == num_tokens:
            raise BadRequest("the prompt ends with a document: no question follows it to be measured")
        if self.rel_layers and self.rel_layers[-1] >= num_layers:
            raise BadRequest(f"{REL_LAYERS} names layer {self.rel_layers[-1]}; the model's are 0 to {num_layers - 1}")
        for layer, head in self.rel_heads:
            if layer >= num_layers or head >= num_heads:
                raise BadRequest(
                    f"{REL_HEADS} names head {head} of layer {layer}; the model's are 0 to {num_heads - 1} of layers 0 "
                    f"to {num_layers - 1}"
                )
        if self.question is not None and self.question[1] > num_tokens:
            raise BadRequest(f"{QUESTION} ends at token {self.question[1]}, but the prompt has {num_tokens} tokens")

    def dummy_prompts(
        self, input_ids: Sequence[int], filler_ids: Sequence[int], ends_line: Callable[[int], bool]
    ) -> list[tuple[list[int], tuple[int, ...]]]:
        """Make the prompts with dummies, or without the question, each with the documents that are measured on it.

        `filler_ids` are the tokens of `filler`, repeated or cut to the length of what they replace. `ends_line` tells
        whether a token's text ends with a newline.
        """
        documents = [k for k, (start, stop) in enumerate(self.spans) if start < stop]
        if self.bias == "table" or not documents:
            return []
        if self.question is not None:
            start, stop = self.question
            asked = itertools.islice(itertools.cycle(filler_ids), stop - start)
            return [([*input_ids[:start], *asked, *input_ids[stop:]], tuple(documents))]
        groups = [(k,) for k in documents] if self.bias == "exact" else [tuple(documents)]
        return [(self._replaced(input_ids, filler_ids, ends_line, group), group) for group in groups]

    def _replaced(
        self,
        input_ids: Sequence[int],
        filler_ids: Sequence[int],
        ends_line: Callable[[int], bool],
        documents: Sequence[int],
    ) -> list[int]:
        replaced = list(input_ids)
        for start, stop in (self.spans[k] for k in documents):
            last = stop - 1 if ends_line(input_ids[stop - 1]) else stop
            for first, end in self.contents:
                if start <= first and end <= stop:
                    end = min(end, last)
                    replaced[first:end] = itertools.islice(itertools.cycle(filler_ids), max(0, end - first))
        return replaced

    def log_alpha(self, attention: Tensor, dummy_attention: Tensor | None) -> list[float]:
        """Compute log α up to a constant, K numbers, from two (L, H, K) tensors; None with a table.

        Empty documents have 0 attention in both, and their α does not count. Raises BadRequest for attention that is
        not finite.
        """
        rel = self._mean(attention)
        if dummy_attention is None:
            rel = rel - torch.tensor(self.bias_table, dtype=torch.float64)
        else:
            rel = rel - self._mean(dummy_attention)
        if not bool(rel.isfinite().all()):
            raise BadRequest("the attention that was measured is not finite: the model's outputs are not numbers")
        log_alpha: list[float] = ((rel - rel.amax()) / self.temperature).clamp_min(-1e30).tolist()
        return log_alpha

    def _mean(self, attention: Tensor) -> Tensor:
        """Average (L, H, K) over the layers or the heads that enter rel: (K,) float64."""
        if self.rel_heads:
            of_layers, of_heads = zip(*self.rel_heads, strict=True)
            return attention.double()[list(of_layers), list(of_heads)].mean(dim=0)
        layers = range(len(attention)) if self.rel_layers is None else self.rel_layers
        return attention.double()[list(layers)].mean(dim=(0, 1))


def _heads(value: Any) -> tuple[tuple[int, int], ...]:
    places = numbers(REL_HEADS, value, int)
    heads = tuple(zip(places[::2], places[1::2], strict=False))
    if not places or len(places) % 2 or min(places) < 0 or len(set(heads)) < len(heads):
        raise BadRequest(f"{REL_HEADS} must be different heads, at least one: [layer, head, layer, head, …] from 0")
    return heads


def _question(value: Any, spans: Sequence[tuple[int, int]]) -> tuple[int, int]:
    places = numbers(QUESTION, value, int)
    if len(places) != 2 or not spans[-1][1] <= places[0] < places[1]:
        raise BadRequest(f"{QUESTION} must be [start, end], not empty, after the last document")
    return places[0], places[1]


def _contents(value: Any, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    places = numbers(CONTENTS, value, int)
    if len(places) % 2 or places != sorted(places):
        raise BadRequest(f"{CONTENTS} must ascend: [start, end, start, end, …]")
    contents = tuple(zip(places[::2], places[1::2], strict=True))
    for first, end in contents:
        if not any(start <= first and end <= stop for start, stop in spans):
            raise BadRequest(f"{CONTENTS} has [{first}, {end}], which lies within no document")
    return contents


def _table(value: Any, num_documents: int) -> tuple[float, ...]:
    table = numbers(BIAS_TABLE, value, float)
    if len(table) != num_documents or not all(0 <= one <= 1 for one in table):
        raise BadRequest(f"{BIAS_TABLE} must have a number from 0 to 1 for each of {num_documents} documents")
    return tuple(map(float, table))


def _temperature(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value <= 1:
        raise BadRequest(f"{TEMPERATURE} must be above 0 and at most 1")
    return float(value)
