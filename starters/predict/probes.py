"""Trainings with probes: linear maps that read the labels of an input's words from the encoder, and are discarded.

Shapes: B examples, T tokens of an input, U of a target, P probes, D width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pydantic
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.predict.data.rows import Row
from services.predict.distillation import IGNORED
from services.predict.training.lessons import Batch, Lesson, Lessons, Pair, padded
from services.predict.training.loop import Teaching, TeachingLoss
from services.predict.training.recipe import Positive, Recipe
from starters.predict.spans import Probe
from starters.predict.word_labels import WORD_LABELS, WordLabels


@pydantic.dataclasses.dataclass(frozen=True, config=pydantic.ConfigDict(strict=True))
class ProbedRecipe(Recipe):
    """A recipe in which probes may read the labels of an input's words; their loss counts as much as `probe_weight`."""

    probe_weight: Positive | None = None


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

    def of(self, examples: Sequence[Row]) -> list[list[list[int]]]:
        """Label the tokens of each example's input for each probe: a class, or IGNORED."""
        texts = [self._recipe.input_text(example) for example in examples]
        every = self._tokenizer(texts, return_offsets_mapping=True).offset_mapping
        return [
            self._labelled(example, offsets, len(text) - len(example.input))
            for example, text, offsets in zip(examples, texts, every, strict=True)
        ]

    def _labelled(self, example: Row, offsets: Sequence[tuple[int, int]], shift: int) -> list[list[int]]:
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


@dataclass(frozen=True)
class ProbedLesson(Lesson):
    """A lesson whose `word_labels` (P, B, T) int64 are IGNORED at tokens without a label; None for rationales."""

    word_labels: Tensor | None = None


@dataclass(frozen=True)
class ProbedBatch(Batch):
    """A batch with the number of labels of each probe, over all parts and processes."""

    num_word_labels: tuple[int, ...] = ()


class ProbedLessons(Lessons):
    """Batches whose inputs for labels have labels of words."""

    def __init__(self, token_labels: TokenLabels, *lessons: Any) -> None:
        super().__init__(*lessons)
        self._token_labels = token_labels
        self._labelled: dict[Pair, list[list[int]]] = {}

    def batch(self, step: int, process: int = 0, num_processes: int = 1) -> ProbedBatch:
        """Make a process's part of the batch at a step."""
        some = self.examples_of(step)
        pairs = [(self._recipe.input_text(example), self._recipe.label_text(example)) for example in some]
        self._labelled = dict(zip(pairs, self._token_labels.of(some), strict=True))
        every = [self._labelled[pair] for pair in pairs]
        numbers = (sum(label != IGNORED for row in rows for label in row) for rows in zip(*every, strict=True))
        return ProbedBatch(**vars(super().batch(step, process, num_processes)), num_word_labels=tuple(numbers))

    def lesson(self, pairs: Sequence[Pair]) -> ProbedLesson:
        """Make the tensors of a part, with the labels of its words unless it asks for rationales."""
        every = [self._labelled[pair] for pair in pairs if pair in self._labelled]
        rows = [padded(rows, IGNORED) for rows in zip(*every, strict=True)]
        return ProbedLesson(**vars(super().lesson(pairs)), word_labels=torch.stack(rows) if rows else None)


class ProbedLoss(TeachingLoss):
    """The losses of a part of a batch, with that of the probes."""

    def __init__(self, model: Any, alpha: float | None, probes: Probes, probe_weight: float) -> None:
        super().__init__(model, alpha)
        self.probes = probes
        self.probe_weight = probe_weight

    def forward(self, part: tuple[Lesson, Lesson | None], batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """The loss to be minimised, and its components for labels and rationales: scalars, float32."""
        labels, rationales = part
        assert isinstance(labels, ProbedLesson) and labels.word_labels is not None and isinstance(batch, ProbedBatch)
        found = self.encode(labels, output_hidden_states=True)
        label_loss = self.loss_of(labels, found.last_hidden_state, batch.num_label_tokens)
        total, rationale_loss = self.total(label_loss, rationales, batch)
        probed = self.probes(found.hidden_states, labels.word_labels, batch.num_word_labels)
        return total + self.probe_weight * probed, label_loss.detach(), rationale_loss.detach()


class ProbedTeaching(Teaching):
    """A training with probes if its recipe gives them a weight.

    Raises ValueError for a task whose words have no labels.
    """

    def make_lessons(self, model: Any) -> Lessons:
        """Make the batches to learn from."""
        words, lessons = self._word_labels(), super().make_lessons(model)
        if words is None:
            return lessons
        token_labels = TokenLabels(words, self.tokenizer, self.recipe)
        return ProbedLessons(token_labels, self.tokenizer, model.config, self.data.train, self.recipe)

    def make_loss(self, model: Any, alpha: float | None) -> TeachingLoss:
        """Make the loss to be minimised."""
        words = self._word_labels()
        if words is None:
            return super().make_loss(model, alpha)
        return ProbedLoss(model, alpha, Probes(words.probes, model.config, self.recipe.seed), self._weight or 0)

    @property
    def _weight(self) -> float | None:
        return self.recipe.probe_weight if isinstance(self.recipe, ProbedRecipe) else None

    def _word_labels(self) -> WordLabels | None:
        if self._weight is None:
            return None
        if self.data.task.name not in WORD_LABELS:
            raise ValueError(f"probe_weight is for the tasks {', '.join(WORD_LABELS)}, not {self.data.task.name}")
        return WORD_LABELS[self.data.task.name]()
