"""Answers of Fovea's own engine, which vLLM with the plug-in must give as well."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from services.generate.calibration import Calibration
from services.generate.model.language_model import LanguageModel, Prefill, Row
from services.nn.devices import DeviceOptions
from tests.generate.tiny_models import VOCAB_SIZE, save_tiny

# vLLM's kernels need a head of at least 32 numbers.
SHAPE = {"hidden_size": 128, "head_dim": 32}
NUM_LAYERS = 4
NUM_HEADS = 4
MAX_TOKENS = 12
TOLERANCE = 1e-4  # of log-probabilities in float32


@dataclass(frozen=True)
class Question:
    """A prompt of random tokens with documents of unequal lengths, and a calibration of its answer."""

    input_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    log_alpha: tuple[float, ...]
    layers: tuple[int, ...]
    first_row: int

    @property
    def documents(self) -> dict[str, Any]:
        return {"fovea_documents": [place for span in self.spans for place in span]}

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a request to the plug-in."""
        calibration = {"fovea_log_alpha": list(self.log_alpha), "fovea_layers": list(self.layers)}
        return self.documents | calibration | {"fovea_first_row": self.first_row}

    @property
    def request(self) -> dict[str, Any]:
        return {"input_ids": list(self.input_ids), "max_tokens": MAX_TOKENS, "fields": self.fields}

    @property
    def plain_request(self) -> dict[str, Any]:
        return {"input_ids": list(self.input_ids), "max_tokens": MAX_TOKENS}


@dataclass(frozen=True, eq=False)
class OwnAnswer:
    """`attention` (L, H, K) of the prompt's last row, without calibration."""

    tokens: list[int]
    logprobs: list[float]
    attention: Tensor


def tokens_of(draw: random.Random, number: int) -> list[int]:
    return [draw.randrange(2, VOCAB_SIZE) for _ in range(number)]


def question(seed: int, *, is_per_head: bool = False) -> Question:
    draw = random.Random(seed)
    input_ids = tokens_of(draw, draw.randint(1, 9))
    spans = []
    for _ in range(draw.randint(2, 6)):
        start = len(input_ids)
        input_ids += tokens_of(draw, draw.choice((0, 1, 2, 3, 5, 8, 20, 40)))
        spans.append((start, len(input_ids)))
        input_ids += tokens_of(draw, draw.randint(0, 2))
    tail_start = spans[-1][1]
    input_ids += tokens_of(draw, draw.randint(1, 12))
    layers = draw.choice(((2, 3), (1, 2), (0, 1, 2, 3)))
    number = len(layers) * NUM_HEADS * len(spans) if is_per_head else len(spans)
    first_row = draw.choice((len(input_ids) - 1, len(input_ids) - 1, tail_start))
    return Question(
        tuple(input_ids), tuple(spans), tuple(draw.uniform(-9, 0) for _ in range(number)), layers, first_row
    )


def save(folder: Path, name: str) -> Path:
    return save_tiny(folder / name, name, **SHAPE)


def load(checkpoint: Path) -> LanguageModel:
    return LanguageModel.load(checkpoint, DeviceOptions(device="cpu", num_threads=1))


def own_answers(model: LanguageModel, questions: Sequence[Question], max_tokens: int = MAX_TOKENS) -> list[OwnAnswer]:
    cache = model.new_cache(1024)
    answers = []
    for asked in questions:
        slot = cache.open(len(asked.input_ids) + max_tokens)
        [prefilled] = model.prefill([Prefill(slot, asked.input_ids, asked.spans)])
        assert prefilled.attention is not None
        calibration = Calibration(asked.spans, _log_alpha(asked), frozenset(asked.layers))
        logits = model.rerun([Row(slot, asked.input_ids[asked.first_row :], calibration)])
        answer = OwnAnswer([], [], prefilled.attention)
        for _ in range(max_tokens):
            scores = logits[0].log_softmax(dim=-1)
            token = int(scores.argmax())
            answer.tokens.append(token)
            answer.logprobs.append(float(scores[token]))
            if len(answer.tokens) < max_tokens:
                logits = model.decode([Row(slot, (token,), calibration)])
        cache.close(slot)
        answers.append(answer)
    return answers


def assert_equal(answers: Sequence[dict[str, Any]], own: Sequence[OwnAnswer]) -> None:
    assert [answer["tokens"] for answer in answers] == [one.tokens for one in own]
    for answer, one in zip(answers, own, strict=True):
        assert answer["logprobs"] == pytest.approx(one.logprobs, abs=TOLERANCE, rel=0)


def _log_alpha(asked: Question) -> Tensor:
    """(K,), or (L, H, K)."""
    given = torch.tensor(asked.log_alpha)
    if len(given) == len(asked.spans):
        return given
    every = torch.zeros(NUM_LAYERS, NUM_HEADS, len(asked.spans))
    every[list(asked.layers)] = given.view(len(asked.layers), NUM_HEADS, len(asked.spans))
    return every
