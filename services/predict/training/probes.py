"""Probes of an encoder: linear maps that read the labels of an input's words, and are discarded after the training.

Shapes: B examples, T tokens of an input, P probes, D width.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.predict.data.rows import Example
from services.predict.data.spans import Probe
from services.predict.data.word_labels import WORD_LABELS, WordLabels
from services.predict.distillation import IGNORED
from services.predict.tasks import Task
from services.predict.training.recipe import Recipe


def word_labels_of(task: Task, recipe: Recipe) -> WordLabels | None:
    """Return how a run labels words; None if it does not. Raises ValueError for a task whose words have no labels."""
    if recipe.probe_weight is None:
        return None
    if task.name not in WORD_LABELS:
        raise ValueError(f"probe_weight is for the tasks {', '.join(WORD_LABELS)}, not {task.name}")
    return WORD_LABELS[task.name]()


class TokenLabels:
    """The labels of an input's tokens."""

    def __init__(self, words: WordLabels, tokenizer: Any, recipe: Recipe) -> None:
        self._words = words
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._probes = {
            probe.name: (number, {value: place for place, value in enumerate(probe.classes)})
            for number, probe in enumerate(words.probes)
        }

    def of(self, examples: Sequence[Example]) -> list[list[list[int]]]:
        """Label the tokens of each example's input for each probe: a class, or IGNORED."""
        texts = [self._recipe.input_text(example) for example in examples]
        every = self._tokenizer(texts, return_offsets_mapping=True).offset_mapping
        return [
            self._labelled(example, offsets, len(text) - len(example.input))
            for example, text, offsets in zip(examples, texts, every, strict=True)
        ]

    def _labelled(self, example: Example, offsets: Sequence[tuple[int, int]], shift: int) -> list[list[int]]:
        num_tokens = min(len(offsets), self._recipe.max_input_tokens)
        labels = [[IGNORED] * num_tokens for _ in self._probes]
        # every token that holds a part of a character, and the end of sequence, which has no place in the text
        tokens: dict[int, list[int]] = {}
        for token, (start, end) in enumerate(offsets[: num_tokens - 1]):
            for place in range(start, end):
                tokens.setdefault(place - shift, []).append(token)
        tokens[len(example.input)] = [num_tokens - 1]
        for label in self._words.label(example):
            probe, classes = self._probes[label.probe]
            for place in range(label.start, max(label.end, label.start + 1)):
                for token in tokens.get(place, ()):
                    labels[probe][token] = classes[label.value]
        return labels


class Probes(nn.Module):
    """The probes of a task on an encoder of this width and number of layers."""

    def __init__(self, probes: Sequence[Probe], model_config: Any, seed: int) -> None:
        super().__init__()
        self._layers = [min(probe.layer, model_config.num_layers) for probe in probes]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.maps = nn.ModuleList(nn.Linear(model_config.d_model, len(probe.classes)) for probe in probes)

    def forward(self, states: Sequence[Tensor], labels: Tensor, num_labels: Sequence[int]) -> Tensor:
        """The sum of the probes' mean losses, float32.

        `states` are the embeddings and each layer's output (B, T, D), `labels` (P, B, T) int64, and `num_labels` the
        numbers of labels of the whole batch, so that the losses of its parts add up.
        """
        losses = []
        for layer, linear, wanted, number in zip(self._layers, self.maps, labels, num_labels, strict=True):
            counts = wanted != IGNORED
            some = states[layer][counts]
            logits = linear(F.rms_norm(some, some.shape[-1:]))
            losses.append(F.cross_entropy(logits.float(), wanted[counts], reduction="sum") / max(number, 1))
        return torch.stack(losses).sum()
