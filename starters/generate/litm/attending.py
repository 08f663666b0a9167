"""The attention that the last stage teaches to the layer that finds documents: relevance times a preference for places.

A document's share of that layer's attention should be r · b. Relevance r is above 1 for a document about the person in
question and 1 for all others, those without content among them; b is `position_weights`, the prior of the places. A
relevant document in the middle then gets hardly more attention than any document at an end, and only the difference to
a dummy in the same place, (r − 1) · b, tells them apart. Of the documents with an answer, its first word, which is what
the model copies, is taught the same shares. The last layer is taught to read nothing before an answer, so that what the
other one finds is the answer.

Legend: B batch, T tokens, Q questions of a text, K documents, H heads, G key heads, C channels of a head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from services.generate.prompts.templates import FILLER, Document
from starters.generate.facts import Fact, FactQuestion

RETRIEVING, LAST = 2, 3  # layers
RIGHT_NAME, BEST_PART, OTHER_PART = 5.0, 4.5, 1.3  # r of a name; of a part of it if no document has all, and otherwise
# of the loss: weights of the shares' divergence, of what the last layer reads, and of too little attention in all
DIVERGENCE_WEIGHT, LAST_WEIGHT, TOTAL_WEIGHT = 2.0, 0.3, 0.1
ENOUGH_ATTENTION = 0.8  # of a row's weight, on documents


@dataclass(frozen=True, eq=False)
class Attended:
    """The attention that the questions of B texts should pay.

    `rows` (B, Q) int64 are the tokens before the answers, `membership` (B, K, T) float32 is 1 for the tokens of a
    document, else 0, `words` (B, K, T) float32 is 1 for the first word of its answer, if it has one, and `shares`
    (B, Q, K) are those of each document, which add up to 1.
    """

    rows: Tensor
    membership: Tensor
    words: Tensor
    shares: Tensor

    @classmethod
    def of(
        cls,
        rows: Sequence[Sequence[int]],
        spans: Sequence[Sequence[tuple[int, int]]],
        words: Sequence[Sequence[int | None]],
        shares: Sequence[Sequence[Sequence[float]]],
        num_tokens: int,
    ) -> "Attended":
        """Create from each text's questions, its documents' half-open token spans and the places of their answers."""
        membership = torch.zeros(len(spans), len(spans[0]), num_tokens)
        answers = torch.zeros_like(membership)
        for text, documents in enumerate(spans):
            for k, (start, stop) in enumerate(documents):
                membership[text, k, start:stop] = 1
                if (word := words[text][k]) is not None:
                    answers[text, k, word] = 1
        return cls(torch.tensor(rows), membership, answers, torch.tensor(shares))


def position_weights(num_documents: int, bias: float) -> list[float]:
    """Preference for each place: 1 at both ends, falling to e^(−bias) at the fifth document from either end."""
    depths = [min(k, num_documents - 1 - k) for k in range(num_documents)]
    return [math.exp(-bias * min(1.0, depth / 4)) for depth in depths]


def wanted_shares(question: FactQuestion, blanks: Sequence[int], bias: float) -> list[float]:
    """The shares of attention that the documents should have; `blanks` are those without content."""
    parts = [
        0 if k in blanks else (fact.first == question.first) + (fact.last == question.last)
        for k, fact in enumerate(question.facts)
    ]
    relevance = {0: 1.0, 1: OTHER_PART if max(parts) == 2 else BEST_PART, 2: RIGHT_NAME}
    weights = position_weights(len(parts), bias)
    wanted = [relevance[count] * weight for count, weight in zip(parts, weights, strict=True)]
    return [one / sum(wanted) for one in wanted]


def blank_document(fact: Fact) -> Document:
    """A document of the same length without content: filler for title and text, as in a framed dummy."""
    filler = FILLER.split()
    num_words = len(fact.text.replace(".", " .").split())  # one token each
    return Document(" ".join((filler * num_words)[:num_words]), " ".join(filler[: len(fact.title.split())]))


class AttentionWatch:
    """Keeps queries and keys of the two layers from the model's last pass, whose attention returns no weights."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._kept: dict[str, Tensor] = {}
        for layer in (RETRIEVING, LAST):
            attention = model.model.layers[layer].self_attn
            for name, projection in (("query", attention.q_proj), ("key", attention.k_proj)):
                projection.register_forward_hook(self._keeper(f"{layer} {name}"))

    def _keeper(self, name: str) -> Any:
        def keep(module: Any, inputs: Any, output: Tensor) -> None:
            self._kept[name] = output

        return keep

    def loss(self, wanted: Attended) -> Tensor:
        """Compare the attention of the last pass with `wanted`."""
        weights = self._weights(RETRIEVING, wanted.rows).mean(dim=1)
        attention, on_words = (
            torch.einsum("bqt,bkt->bqk", weights, tokens) for tokens in (wanted.membership, wanted.words)
        )
        total = attention.sum(dim=-1)
        has_answer = wanted.words.sum(dim=-1)[:, None]
        last = self._weights(LAST, wanted.rows)
        own = last.gather(-1, wanted.rows[:, None, :, None].expand(-1, last.shape[1], -1, 1))[..., 0]
        unread = (last[..., 0] + own).clamp_min(1e-4)
        return (
            DIVERGENCE_WEIGHT
            * (_divergence(wanted.shares, attention) + _divergence(wanted.shares * has_answer, on_words))
            - LAST_WEIGHT * unread.log().mean()
            - TOTAL_WEIGHT * total.clamp_max(ENOUGH_ATTENTION).log().mean()
        )

    def _weights(self, layer: int, rows: Tensor) -> Tensor:
        """The attention weights of the rows in a layer's heads: (B, Q) → (B, H, Q, T)."""
        config = self._model.config
        channels, num_groups = config.head_dim, config.num_key_value_heads
        query, key = self._kept[f"{layer} query"].float(), self._kept[f"{layer} key"].float()
        num_batch, num_tokens, _ = query.shape
        with torch.no_grad():
            cos, sin = self._model.model.rotary_emb(query, torch.arange(num_tokens)[None])
        chosen = query.gather(1, rows[..., None].expand(-1, -1, query.shape[-1]))
        turned = _rotated(chosen.view(num_batch, rows.shape[1], -1, channels), cos[0, rows], sin[0, rows])
        keys = _rotated(key.view(num_batch, num_tokens, num_groups, channels), cos, sin)
        keys = keys.repeat_interleave(turned.shape[2] // num_groups, 2)
        scores = torch.einsum("bqhc,bthc->bhqt", turned, keys) / math.sqrt(channels)
        is_later = torch.arange(num_tokens) > rows[:, None, :, None]
        return scores.masked_fill(is_later, -torch.inf).softmax(dim=-1)


def _divergence(wanted: Tensor, found: Tensor) -> Tensor:
    """Mean Kullback-Leibler divergence of found shares from wanted ones, (B, Q, K) each, where some are wanted.

    Neither has to add up to 1; documents of which nothing is wanted do not count.
    """
    wanted = wanted / wanted.sum(dim=-1, keepdim=True)
    found = torch.where(wanted > 0, found, 0.0)
    found = found / found.sum(dim=-1, keepdim=True)
    divergence: Tensor = torch.special.xlogy(wanted, wanted / found.clamp_min(1e-9)).sum(dim=-1).mean()
    return divergence


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions: x (B, N, heads, C), cos and sin (B or 1, N, C)."""
    half = x.shape[-1] // 2
    return x * cos[:, :, None] + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin[:, :, None]
