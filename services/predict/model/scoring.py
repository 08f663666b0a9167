"""Candidate labels as a trie, which the decoder runs only as far as the places where labels diverge.

After a prefix that candidates share, only a few tokens can follow; if only one can, its probability is 1. Hence

    p(label | x) = Π_t p(y_t | y_<t, x) over the t at which labels diverge,

where each factor is a softmax over the tokens that may follow. This is the distribution of decoding constrained to the
candidates, and sums to 1 over them. For labels that differ in their first token, it is one softmax over these tokens.

Nodes are in preorder: behind a node come all that begin with it, up to its stop.

Shapes: N nodes, E edges (a node and a token that may follow it), C candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.nn.plain_texts import is_blank

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class DecoderRows(NamedTuple):
    """Decoder rows of one input in a pass, (N,) each: a row is seen by itself and those behind it, up to its stop."""

    tokens: Numbers
    depths: Numbers
    stops: Numbers

    @classmethod
    def of(cls, token_ids: Sequence[int], start_id: int) -> "DecoderRows":
        """The rows of one answer; each gives the probability of the answer's next token."""
        tokens = np.array([start_id, *token_ids[:-1]])
        return cls(tokens, np.arange(len(tokens)), np.full(len(tokens), len(tokens)))


class Candidates:
    """The trie of some labels' tokens, created on any thread and immutable.

    A node is a prefix after which candidates diverge, or an ancestor of one; `rows` has the token to run at each, the
    number of tokens in its prefix, and its stop. `edge_nodes`, `edge_tokens` are (E,), the edges of nodes with several,
    in the nodes' order. `texts` are (C,), as `of_texts` shows them.
    """

    def __init__(self, token_ids: Sequence[Sequence[int]], start_id: int) -> None:
        """`token_ids` are those of at least one label, each with its end of sequence; `start_id` begins every answer.

        Raises ValueError for no label, a label without tokens, and labels of which one begins with the other.
        """
        if not token_ids or not all(token_ids):
            raise ValueError("there must be candidates, and each must have tokens")
        self.token_ids = [tuple(ids) for ids in token_ids]
        self.texts: tuple[str, ...] = ()
        following: dict[tuple[int, ...], dict[int, None]] = {}
        for ids in self.token_ids:
            for depth, token in enumerate(ids):
                following.setdefault(ids[:depth], {})[token] = None
        if any(ids in following for ids in self.token_ids) or len(set(self.token_ids)) < len(self.token_ids):
            raise ValueError("a label must not begin with another one and its end")
        partings = sorted(prefix for prefix, tokens in following.items() if len(tokens) > 1)
        leading = {prefix[:length] for prefix in partings for length in range(len(prefix) + 1)} | {()}
        node_of = {prefix: node for node, prefix in enumerate(sorted(leading))}
        stops = {prefix[:length]: node + 1 for prefix, node in node_of.items() for length in range(len(prefix) + 1)}
        self.rows = DecoderRows(
            np.array([prefix[-1] if prefix else start_id for prefix in node_of]),
            np.array([len(prefix) for prefix in node_of]),
            np.array([stops[prefix] for prefix in node_of]),
        )
        edges = [(prefix, token) for prefix in partings for token in following[prefix]]
        number_of = {edge: number for number, edge in enumerate(edges)}
        self.edge_nodes = np.array([node_of[prefix] for prefix, _ in edges], dtype=np.int64)
        self.edge_tokens = np.array([token for _, token in edges], dtype=np.int64)
        self._family_sizes = np.array([len(following[prefix]) for prefix in partings], dtype=np.int64)
        self._family_starts = np.cumsum(self._family_sizes) - self._family_sizes
        steps = [[(ids[:depth], token) for depth, token in enumerate(ids)] for ids in self.token_ids]
        paths = [[number_of[one] for one in some if one in number_of] for some in steps]
        self._steps = np.array([number for path in paths for number in path], dtype=np.int64)
        self._path_starts = np.cumsum([0, *map(len, paths[:-1])])

    @classmethod
    def of_texts(
        cls, tokenizer: Any, name: str, texts: Sequence[str], start_id: int = 0, shown: Sequence[str] = ()
    ) -> "Candidates":
        """Make the trie of texts, which errors call `name`, and each of them as it is `shown`. Raises ValueError."""
        token_ids = [tuple(ids) for ids in tokenizer(list(texts)).input_ids]
        first: dict[tuple[int, ...], str] = {}
        for ids, given, text in zip(token_ids, texts, shown or texts, strict=True):
            if is_blank(given):
                raise ValueError(f"{name}: {text!r} has no character that can be seen")
            if ids in first:
                both = f"{text!r} twice" if text == first[ids] else f"{first[ids]!r} and {text!r}"
                raise ValueError(f"{name}: the model reads {both} as the same tokens; give texts that it tells apart")
            first[ids] = text
        trie = cls(token_ids, start_id)
        trie.texts = tuple(shown or texts)
        return trie

    @property
    def num_nodes(self) -> int:
        """Number of rows that the decoder runs."""
        return len(self.rows.tokens)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Compute each candidate's log-probability, (…, C), from each edge's logit (…, E) float32 in host memory."""
        if len(self.token_ids) == 1:
            return logits.new_zeros((*logits.shape[:-1], 1))
        given = logits.double().numpy()
        with np.errstate(invalid="ignore"):  # a broken model's logits may be infinite
            totals = np.logaddexp.reduceat(given, self._family_starts, axis=-1)
            edges = given - np.repeat(totals, self._family_sizes, axis=-1)
            scores = np.add.reduceat(edges[..., self._steps], self._path_starts, axis=-1)
        return torch.from_numpy(scores).float()
