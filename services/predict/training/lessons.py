"""Training texts as tensors: batch t depends only on t, on any number of processes.

Shapes: B examples, T tokens of the longest input, U those of the longest target.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from services.predict.data.rows import Row
from services.predict.distillation import IGNORED
from services.predict.training.recipe import Recipe

TokenIds = tuple[int, ...]
Pair = tuple[str, str]  # an input and its target

# Inputs with targets whose tokens are kept for the next epoch; a limit keeps large data sets from filling the memory.
MAX_REMEMBERED = 100_000


@dataclass(frozen=True)
class Lesson:
    """Inputs with their targets.

    `input_ids` (B, T) int64 and `mask` (B, T) int64, 1 where there is a token; `decoder_input_ids` and `labels` (B, U)
    int64; decoder inputs at u predict labels at u, which are IGNORED after a target's end.
    """

    input_ids: Tensor
    mask: Tensor
    decoder_input_ids: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Self:
        """Move the tensors to a device."""
        return replace(self, **{name: part.to(device) for name, part in vars(self).items() if part is not None})


@dataclass(frozen=True)
class Batch:
    """One process's examples of a step, in parts that run one after the other.

    Each part asks for labels, and for rationales if any part of the step has some. The numbers of target tokens are
    those of the whole step, over all parts and processes.
    """

    parts: tuple[tuple[Lesson, Lesson | None], ...]
    num_label_tokens: int
    num_rationale_tokens: int


class Lessons:
    """The training examples of a run, tokenised when they are first needed."""

    def __init__(self, tokenizer: Any, model_config: Any, examples: Sequence[Row], recipe: Recipe) -> None:
        """Raises ValueError for an example that lacks what the method needs, or a tokenizer that does not end texts."""
        if tokenizer("word").input_ids[-1:] != [tokenizer.eos_token_id]:
            raise ValueError("the tokenizer does not append the end-of-sequence token to a text")
        self._tokenizer = tokenizer
        self._config = model_config
        self._recipe = recipe
        for example in examples:
            recipe.input_text(example)
        self._examples = examples
        self._tokens: dict[Pair, tuple[TokenIds, TokenIds]] = {}
        self._order: tuple[int, list[int]] = (-1, [])  # of the epoch that was read last

    def batch(self, step: int, process: int = 0, num_processes: int = 1) -> Batch:
        """Make a process's part of the batch at a step, counted from 0: every `num_processes`-th example."""
        some = self.examples_of(step)
        labels = [(self._recipe.input_text(example), self._recipe.label_text(example)) for example in some]
        rationales = [self._recipe.rationale_texts(example) for example in some]
        self._tokenise([*labels, *(pair for pair in rationales if pair is not None)])
        own = slice(process, None, num_processes)
        size = self._recipe.micro_batch_size or len(labels[own])
        asked = self._in_parts(labels[own], size)
        explained = self._in_parts([pair for pair in rationales[own] if pair is not None], size)
        explained += [[]] * (len(asked) - len(explained))
        has_rationales = any(pair is not None for pair in rationales)
        parts = [
            (self.lesson(some), self._explained(reasons, some) if has_rationales else None)
            for some, reasons in zip(asked, explained, strict=True)
        ]
        return Batch(
            tuple(parts),
            sum(len(self._tokens[pair][1]) for pair in labels),
            sum(len(self._tokens[pair][1]) for pair in rationales if pair is not None),
        )

    def examples_of(self, step: int) -> list[Row]:
        """The examples of the batch at a step, of all processes."""
        return [self._examples[row] for row in self._rows(step)]

    def lesson(self, pairs: Sequence[Pair]) -> Lesson:
        """Make the tensors of a part's inputs and targets, which are tokenised."""
        inputs, targets = zip(*(self._tokens[pair] for pair in pairs), strict=True)
        pad = self._config.pad_token_id
        starts = [(self._config.decoder_start_token_id, *target[:-1]) for target in targets]
        return Lesson(
            padded(inputs, pad),
            padded([[1] * len(ids) for ids in inputs], 0),
            padded(starts, pad),
            padded(targets, IGNORED),
        )

    def _in_parts(self, pairs: list[Pair], size: int) -> list[list[Pair]]:
        """Divide pairs into parts of similar length, to minimise padding; no pair is in two parts."""

        def length(pair: Pair) -> int:
            return sum(map(len, self._tokens[pair]))

        by_length = sorted(pairs, key=length, reverse=True) if len(pairs) > size else pairs
        return [by_length[start : start + size] for start in range(0, len(pairs), size)]

    def _rows(self, step: int) -> list[int]:
        """The batch's rows in a stream of shuffled epochs."""
        size, num_examples = self._recipe.batch_size, len(self._examples)
        rows: list[int] = []
        place = step * size
        while len(rows) < size:
            epoch, start = divmod(place + len(rows), num_examples)
            if self._order[0] != epoch:
                generator = np.random.default_rng([self._recipe.seed, epoch])
                self._order = epoch, generator.permutation(num_examples).tolist()
            rows += self._order[1][start : start + size - len(rows)]
        return rows

    def _tokenise(self, pairs: Sequence[Pair]) -> None:
        new = [pair for pair in dict.fromkeys(pairs) if pair not in self._tokens]
        if not new:
            return
        if len(self._tokens) + len(new) > MAX_REMEMBERED:
            self._tokens.clear()
            new = list(dict.fromkeys(pairs))
        inputs = tokenised(self._tokenizer, [text for text, _ in new], self._recipe.max_input_tokens)
        targets = tokenised(self._tokenizer, [target for _, target in new], self._recipe.max_target_tokens)
        self._tokens.update(zip(new, zip(inputs, targets, strict=True), strict=True))

    def _explained(self, explained: Sequence[Pair], asked: Sequence[Pair]) -> Lesson:
        """The rationales of a part; if only this part has none, a lesson without targets that count.

        Processes that shard a model must run it equally often.
        """
        if explained:
            return self.lesson(explained)
        lesson = self.lesson(asked[:1])
        return replace(lesson, labels=torch.full_like(lesson.labels, IGNORED))


def tokenised(tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[TokenIds]:
    """Tokenise texts with their end of sequence, before which texts that are too long are cut."""
    every = tokenizer(list(texts)).input_ids
    return [tuple(ids) if len(ids) <= max_tokens else (*ids[: max_tokens - 1], ids[-1]) for ids in every]


def padded(rows: Sequence[Sequence[int]], padding: int) -> Tensor:
    """Make a tensor of rows, filled up to the longest."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[padding] * (longest - len(row))] for row in rows])
