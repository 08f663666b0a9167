"""Candidate labels as a trie, which the decoder runs only as far as the places where labels diverge.

After a prefix that candidates share, only a few tokens can follow; if only one can, its probability is 1. Hence

    p(label | x) = Π_t p(y_t | y_<t, x) over the t at which labels diverge,

where each factor is a softmax over the tokens that may follow. This is the distribution of decoding constrained to the
candidates, and sums to 1 over them. For labels that differ in their first token, it is one softmax over these tokens.

Shapes: N nodes, E edges (a node and a token that may follow it), C candidates.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from services.nn.plain_texts import is_blank

Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Visible = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class DecoderRows(NamedTuple):
    """The decoder rows of one input in a pass: tokens (N,), depths (N,), and whether a row sees a column (N, N)."""

    tokens: Numbers
    depths: Numbers
    visible: Visible

    @classmethod
    def of(cls, token_ids: Sequence[int], start_id: int) -> "DecoderRows":
        """The rows of one answer; each gives the probability of the answer's next token."""
        tokens = np.array([start_id, *token_ids[:-1]])
        return cls(tokens, np.arange(len(tokens)), np.tri(len(tokens), dtype=bool))


class Candidates:
    """The trie of some labels' tokens, created on any thread and immutable.

    A node is a prefix after which candidates diverge, or an ancestor of one; the empty prefix comes first. `tokens`,
    `depths`, `parents` are (N,): the token to run at a node, the number of tokens in its prefix, and its parent.
    `edge_nodes`, `edge_tokens` are (E,), the edges of nodes with several, in the nodes' order. `texts` are (C,), as
    `of_texts` shows them.
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
        partings = [prefix for prefix, tokens in following.items() if len(tokens) > 1]
        leading = {prefix[:length] for prefix in partings for length in range(len(prefix) + 1)} | {()}
        node_of = {prefix: node for node, prefix in enumerate(one for one in following if one in leading)}
        self.tokens: Numbers = np.array([prefix[-1] if prefix else start_id for prefix in node_of])
        self.depths: Numbers = np.array([len(prefix) for prefix in node_of])
        self.parents = np.array([node_of[prefix[:-1]] for prefix in node_of])
        edges = [(prefix, token) for prefix in partings for token in following[prefix]]
        number_of = {edge: number for number, edge in enumerate(edges)}
        self.edge_nodes = np.array([node_of[prefix] for prefix, _ in edges], dtype=np.int64)
        self.edge_tokens = np.array([token for _, token in edges], dtype=np.int64)
        families = [[number_of[p, token] for token in following[p] if (p, token) in number_of] for p in node_of]
        self._families = _padded(families, len(edges))
        steps = [[(ids[:depth], token) for depth, token in enumerate(ids)] for ids in self.token_ids]
        self._paths = _padded([[number_of[one] for one in some if one in number_of] for some in steps], len(edges))

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
        return len(self.tokens)

    @property
    def rows(self) -> DecoderRows:
        """The rows of the nodes, each of which sees its ancestors and itself."""
        visible: Visible = np.eye(self.num_nodes, dtype=bool)
        for node in range(1, self.num_nodes):
            visible[node] |= visible[self.parents[node]]
        return DecoderRows(self.tokens, self.depths, visible)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Compute each candidate's log-probability, (C,), from each edge's logit (E,) float32."""
        device = logits.device
        if not len(logits):
            return logits.new_zeros(len(self.token_ids))
        families = torch.from_numpy(self._families).to(device)
        totals = torch.cat([logits, logits.new_full((1,), float("-inf"))])[families].logsumexp(dim=1)
        edges = logits - totals[torch.from_numpy(self.edge_nodes).to(device)]
        paths = torch.from_numpy(self._paths).to(device)
        return torch.cat([edges, edges.new_zeros(1)])[paths].sum(dim=1)


def _padded(rows: Sequence[Sequence[int]], filler: int) -> Numbers:
    longest = max(map(len, rows), default=0)
    padded = [[*row, *[filler] * (longest - len(row))] for row in rows]
    return np.array(padded, dtype=np.int64).reshape(len(rows), longest)
