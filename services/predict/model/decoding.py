"""Greedy decoding, a token of all inputs at a time.

Shapes: B inputs, T tokens of an input, S tokens of the longest answer, L decoder layers, H heads, K numbers of a head.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from services.nn.captured import MAX_ROWS, Graph, Graphs
from services.nn.device_copies import integers
from services.predict.model.t5 import T5, Cache, Memory

# Maximum B · T and B · S of graphs, whose keys and values have their place for as long as the model.
MAX_TOKENS = 1024
# Answers of graphs have as many places as a multiple of this.
ANSWER_STEP = 64


class Steps:
    """Starts a step's operations one by one."""

    def __init__(self, t5: T5, memory: Memory, start_id: int, forbidden: Sequence[Sequence[int]]) -> None:
        """`forbidden` are tokens that each input's answer must not contain, or nothing if there are none."""
        self._t5, self._memory, self._cache = t5, memory, Cache(t5.num_layers)
        self._newest = torch.full((memory.num_inputs, 1), start_id, device=t5.device)
        self._forbidden = list(forbidden)
        self._barred = integers(*_pairs(forbidden), device=t5.device) if any(forbidden) else None

    def next(self) -> Tensor:
        """Decode each input's next token, and its log-probability: (B, 2) float32."""
        bias = self._t5.last_row_bias(self._cache.length + 1)
        decoded = self._t5.decode(self._newest, bias, self._memory, self._cache)
        self._newest, found = _choose(self._t5, decoded, self._barred)
        return found

    def keep(self, rows: Sequence[int]) -> bool:
        """Drop all other inputs; returns whether it did."""
        self._forbidden = [self._forbidden[row] for row in rows] if self._forbidden else []
        kept, *pairs = integers(rows, *_pairs(self._forbidden), device=self._t5.device)
        self._barred = self._barred and (pairs[0], pairs[1])
        self._memory, self._newest = self._memory.at(kept), self._newest[kept]
        self._cache.keep(kept)
        return True


class GraphSteps:
    """Starts a step as one captured graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def next(self) -> Tensor:
        """Decode each input's next token, and its log-probability: (B, 2) float32, overwritten by the next ones."""
        self._graph.replay()
        return self._graph.outputs[0]

    def keep(self, rows: Sequence[int]) -> bool:
        """Keep all inputs: fewer would not be faster."""
        return False


class StepGraphs:
    """A model's graphs of steps, for inputs that keep a GPU busy for less time than the host takes to start a step.

    A graph reads and writes the same places in each step: an input's newest token, its position, the keys and values of
    inputs and of answers.
    """

    def __init__(self, t5: T5, start_id: int) -> None:
        self._t5 = t5
        self._start_id = start_id
        self._graphs = Graphs()
        self._places: list[Tensor] = []  # of the keys and values
        self._biases: dict[int, Tensor] = {}

    def begin(self, memory: Memory, max_tokens: int) -> GraphSteps | None:
        """Begin answers of at most `max_tokens`, which end those begun before; None where there is no graph."""
        _, num_inputs, _, num_tokens, _ = memory.keys_and_values.shape
        length = -(-max_tokens // ANSWER_STEP) * ANSWER_STEP
        is_small = num_inputs <= MAX_ROWS and num_inputs * max(num_tokens, length) <= MAX_TOKENS
        if not (memory.keys_and_values.is_cuda and is_small):
            return None
        graph = self._graphs.get(
            (num_inputs, num_tokens, length), self._step, lambda: self._inputs(memory.keys_and_values, length)
        )
        if graph is None:
            return None
        newest, position, keys_and_values, mask, kept, _ = (x for x in graph.inputs if x is not None)
        newest.fill_(self._start_id)
        position.zero_()
        keys_and_values.copy_(memory.keys_and_values)
        mask.zero_() if memory.mask is None else mask.copy_(memory.mask)
        kept.zero_()
        return GraphSteps(graph)

    def _inputs(self, keys_and_values: Tensor, length: int) -> tuple[Tensor, ...]:
        parts, num_inputs, num_heads, num_tokens, width = keys_and_values.shape
        size = parts * num_heads * width
        self._places = self._places or [keys_and_values.new_zeros(MAX_TOKENS * size) for _ in range(2)]
        given, answered = (
            place[: num_inputs * some * size].view(parts, num_inputs, num_heads, some, width)
            for place, some in zip(self._places, (num_tokens, length), strict=True)
        )
        if length not in self._biases:
            rows = torch.arange(length, device=self._t5.device)
            self._biases[length] = self._t5.tree_bias(rows, torch.full_like(rows, length))
        return (
            torch.full((num_inputs, 1), self._start_id, device=self._t5.device),
            torch.zeros(1, dtype=torch.int64, device=self._t5.device),
            given,
            keys_and_values.new_zeros(num_inputs, 1, 1, num_tokens),
            answered.view(-1, 2, *answered.shape[1:]),
            self._biases[length],
        )

    def _step(
        self, newest: Tensor, position: Tensor, keys_and_values: Tensor, mask: Tensor, kept: Tensor, bias: Tensor
    ) -> tuple[Tensor]:
        cache = _FixedCache(kept, position)
        row = bias.index_select(1, position)[None]
        decoded = self._t5.decode(newest, row, Memory(keys_and_values, mask), cache)
        token, found = _choose(self._t5, decoded, None)
        newest.copy_(token)
        position += 1
        return (found,)


class _FixedCache(Cache):
    """Keys and values (L, 2, B, H, S, K) with a place for each row; those that no row has are hidden by the bias."""

    def __init__(self, kept: Tensor, position: Tensor) -> None:
        super().__init__(len(kept))
        self._kept, self._position = kept, position

    def extend(self, layer: int, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Write the newest key and value of a layer, (2, B, H, 1, K), at the position; return all places."""
        keys, values = self._kept[layer].index_copy_(3, self._position, newest).unbind()
        return keys, values


def _choose(t5: T5, decoded: Tensor, barred: tuple[Tensor, ...] | None) -> tuple[Tensor, Tensor]:
    """Choose the most probable token after rows (B, 1, D): (B, 1) int64, and as `Steps.next` returns it."""
    logits = t5.logits(decoded[:, 0])
    total = logits.logsumexp(dim=1, keepdim=True)
    if barred is not None:
        logits[barred] = -math.inf
    best, token = logits.max(dim=1, keepdim=True)
    return token, torch.cat([token.float(), best - total], dim=1)  # exact for less than 2²⁴ tokens


def _pairs(forbidden: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Rows of logits, and a forbidden token for each."""
    rows = [row for row, some in enumerate(forbidden) for _ in some]
    return rows, [token for some in forbidden for token in some]
