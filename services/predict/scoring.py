"""Candidate labels as a trie, so that one pass of the decoder gives the log-probability of each.

A node is a prefix that candidates share, the empty one first. It is run once, at its depth, seeing nothing but its own
ancestors, and says how probable each token that follows it is. A candidate's log-probability is the sum of its tokens',
its end of sequence included:

    log p(label | x) = Σ_t log p(y_t | y_<t, x)

Shapes: N nodes, E edges (a node and a token that may follow it), C candidates, P tokens of the longest candidate.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Candidates:
    """The trie of some labels' tokens. Made on any thread, and never changed.

    `tokens`, `depths`, `parents` are (N,) int64: the token that a node runs, what stands ahead of it, and the node of
    that. `edge_nodes`, `edge_tokens` are (E,) int64 in the nodes' order. `paths` (C, P) int64 holds each candidate's
    edges, filled up with E.
    """

    def __init__(self, token_ids: Sequence[Sequence[int]], start_id: int) -> None:
        """`token_ids` of at least one label, each with its end of sequence; `start_id` begins every answer.

        Labels of equal tokens are scored equally. Raises ValueError for no label, or one without tokens.
        """
        if not token_ids or not all(token_ids):
            raise ValueError("there must be candidates, and each must have tokens")
        self.token_ids = [tuple(ids) for ids in token_ids]
        self.start_id = start_id
        tokens, depths, parents = [start_id], [0], [0]
        following: list[dict[int, int | None]] = [{}]  # of each node: its child by the token, None while it is a leaf
        for ids in self.token_ids:
            node = 0
            for token in ids[:-1]:
                child = following[node].get(token)
                if child is None:
                    child = following[node][token] = len(tokens)
                    tokens.append(token)
                    depths.append(depths[node] + 1)
                    parents.append(node)
                    following.append({})
                node = child
            following[node].setdefault(ids[-1], None)
        edges = {(node, token): 0 for node, children in enumerate(following) for token in children}
        edges = {edge: number for number, edge in enumerate(edges)}
        self.tokens, self.depths, self.parents = map(np.array, (tokens, depths, parents))
        self.edge_nodes, self.edge_tokens = (np.array(ends) for ends in zip(*edges, strict=True))
        self.paths = np.full((len(self.token_ids), max(map(len, self.token_ids))), len(edges))
        for candidate, ids in enumerate(self.token_ids):
            node = 0
            for place, token in enumerate(ids):
                self.paths[candidate, place] = edges[node, token]
                node = following[node][token] or 0

    @property
    def num_nodes(self) -> int:
        """Rows that the decoder runs."""
        return len(self.tokens)

    def visible(self) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """(N, N): whether the column is the row's ancestor or the row itself."""
        visible = np.eye(self.num_nodes, dtype=bool)
        for node in range(1, self.num_nodes):
            visible[node] |= visible[self.parents[node]]
        return visible

    def beginnings(self) -> dict[int, list[int]]:
        """The candidates that begin with each token."""
        by_token: dict[int, list[int]] = {}
        for candidate, ids in enumerate(self.token_ids):
            by_token.setdefault(ids[0], []).append(candidate)
        return by_token

    def of(self, candidates: Sequence[int]) -> "Candidates":
        """Some of them, in this order."""
        return Candidates([self.token_ids[candidate] for candidate in candidates], self.start_id)

    def log_probabilities(self, edges: Tensor) -> Tensor:
        """Each token's log-probability (E,) float32 → each candidate's, (C,)."""
        paths = torch.from_numpy(self.paths).to(edges.device)
        return torch.cat([edges, edges.new_zeros(1)])[paths].sum(dim=1)


def choose_beginnings(masses: dict[int, float], seen: float, share: float) -> list[int]:
    """The tokens whose candidates are worth a look, likeliest first: the fewest that leave at most `share` of `seen`.

    `masses` holds the probability of each first token that was not followed yet, which bounds the sum of those of its
    candidates; `seen` is the candidates' probability that is known, or hoped for.
    """
    tokens = sorted(masses, key=lambda token: masses[token], reverse=True)
    left_out = 0.0
    while tokens and left_out + masses[tokens[-1]] <= share * seen:
        left_out += masses[tokens.pop()]
    return tokens
