"""Judges that read no images: their accuracy above chance shows what a benchmark's texts alone reveal.

Shapes: V distinct texts, T tokens, D width, I images and C captions of a record.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.loading import quiet_loading, transformers
from services.score.evaluation.judges import CannotJudge, OnScores
from services.score.evaluation.records import Task

# Vera keeps the weights of its score in rows of the embedding table that no token uses.
VERA_WEIGHT, VERA_BIAS, VERA_TEMPERATURE = 32099, 32098, 32097
VERA_MAX_TOKENS = 128
ACCEPTABLE = "LABEL_1"

RECORDS_AT_ONCE = 256
BATCH_SIZE = 64


class TextJudge:
    """A judge by texts alone: `tokenize` gives a text's ids, `score_ids` scores texts of one length, (V, T) → (V,)."""

    reads_images = False

    def __init__(
        self, name: str, tokenize: Callable[[str], Sequence[int]], score_ids: Callable[[Tensor], Tensor]
    ) -> None:
        self.name = name
        self._tokenize = tokenize
        self._score_ids = score_ids

    def notes(self) -> dict[str, Any]:
        """Return no notes."""
        return {}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score one order; a caption's score does not depend on the image, so that images tie."""
        for start in range(0, len(task.records), RECORDS_AT_ONCE):
            records = task.records[start : start + RECORDS_AT_ONCE]
            texts = list(dict.fromkeys(text for record in records for text in record.captions))
            scores = dict(zip(texts, self._scores(texts), strict=True))
            for place, record in enumerate(records, start):
                row = np.array([scores[text] for text in record.captions])
                on_scores(place, np.broadcast_to(row, (1, len(record.images), len(row))))

    @torch.inference_mode()
    def _scores(self, texts: Sequence[str]) -> list[float]:
        """Score texts of equal length together, so that nothing is padded and no text affects another's score."""
        input_ids = [self._tokenize(text) for text in texts]
        scores = [0.0] * len(texts)
        for length in sorted({len(row) for row in input_ids}):
            places = [place for place, row in enumerate(input_ids) if len(row) == length]
            for start in range(0, len(places), BATCH_SIZE):
                own = places[start : start + BATCH_SIZE]
                found = self._score_ids(torch.tensor([list(input_ids[place]) for place in own])).tolist()
                for place, value in zip(own, found, strict=True):
                    scores[place] = value
        return scores


def load_vera(directory: Path, *, name: str, device: torch.device | str = "cpu") -> TextJudge:
    """Load Vera, which scores the plausibility of a statement, from a Hugging Face folder of its T5 encoder.

    σ((h · E₃₂₀₉₉ + E₃₂₀₉₈,₀) / E₃₂₀₉₇,₀) with h, (D,), the hidden state of the last token, the end of sequence, and E
    the embedding table; in the dtype of the weights. Raises CannotJudge for a folder of another form.
    """
    model, tokenizer = _loaded("T5EncoderModel", directory, device=device, dtype="auto")
    table = model.shared.weight
    if len(table) <= VERA_WEIGHT:
        raise CannotJudge(f"{directory} is not a Vera model: its vocabulary ends at {len(table)}, before {VERA_WEIGHT}")
    temperature = table[VERA_TEMPERATURE, 0].item()

    def score_ids(input_ids: Tensor) -> Tensor:
        last = model(input_ids.to(device)).last_hidden_state[:, -1]
        logits = F.linear(last, table[VERA_WEIGHT, None], table[VERA_BIAS, :1])[:, 0]
        return torch.sigmoid(logits / temperature)

    def tokenize(text: str) -> Sequence[int]:
        input_ids: Sequence[int] = tokenizer(text, truncation=True, max_length=VERA_MAX_TOKENS)["input_ids"]
        return input_ids

    return TextJudge(name, tokenize, score_ids)


def load_grammar(directory: Path, *, name: str, device: torch.device | str = "cpu") -> TextJudge:
    """Load a classifier of acceptable sentences (CoLA) from a Hugging Face folder; the score is P(LABEL_1), in float32.

    Raises CannotJudge for a folder of another form.
    """
    model, tokenizer = _loaded("AutoModelForSequenceClassification", directory, device=device, dtype=torch.float32)
    if ACCEPTABLE not in model.config.label2id:
        labels = ", ".join(model.config.id2label.values())
        raise CannotJudge(f"{directory / 'config.json'} has no label {ACCEPTABLE}, only {labels}")
    acceptable = model.config.label2id[ACCEPTABLE]
    max_tokens = min(model.config.max_position_embeddings, tokenizer.model_max_length)

    def score_ids(input_ids: Tensor) -> Tensor:
        return torch.softmax(model(input_ids.to(device)).logits, dim=-1)[:, acceptable]

    def tokenize(text: str) -> Sequence[int]:
        input_ids: Sequence[int] = tokenizer(text, truncation=True, max_length=max_tokens)["input_ids"]
        return input_ids

    return TextJudge(name, tokenize, score_ids)


def _loaded(kind: str, directory: Path, **options: Any) -> tuple[Any, Any]:
    """Load a model by the name of its class in transformers, and its tokenizer.

    Raises CannotJudge if the folder does not contain both.
    """
    device = options.pop("device")
    with quiet_loading():
        try:
            model, loaded = getattr(transformers(), kind).from_pretrained(
                directory, local_files_only=True, output_loading_info=True, **options
            )
            tokenizer = transformers().AutoTokenizer.from_pretrained(directory, local_files_only=True)
        except (OSError, ValueError) as error:
            raise CannotJudge(f"{directory} can't be loaded as {kind}: {error}") from error
    if loaded["missing_keys"]:
        missing = ", ".join(sorted(loaded["missing_keys"])[:3])
        raise CannotJudge(f"{directory} can't be loaded as {kind}: it has no {missing}")
    return model.eval().to(device), tokenizer
