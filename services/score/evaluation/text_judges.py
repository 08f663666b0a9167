"""Judges that read no images: their accuracy above chance shows what a benchmark's texts alone reveal.

Shapes: V distinct texts, I images and C captions of a record.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.nn.sentence_scores import SentenceScorer, load_classifier
from services.nn.sentence_scores import load_vera as load_vera_scorer
from services.score.evaluation.judges import OnScores
from services.score.evaluation.records import Task

RECORDS_AT_ONCE = 256


class TextJudge:
    """A judge by texts alone."""

    reads_images = False

    def __init__(self, name: str, scorer: SentenceScorer) -> None:
        self.name = name
        self._scorer = scorer

    def notes(self) -> dict[str, Any]:
        """Return that images are not read."""
        return {"reads": "captions"}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score one order; a caption's score does not depend on the image, so that images tie."""
        for start in range(0, len(task.records), RECORDS_AT_ONCE):
            records = task.records[start : start + RECORDS_AT_ONCE]
            texts = list(dict.fromkeys(text for record in records for text in record.captions))
            scores = dict(zip(texts, self._scorer.scores(texts), strict=True))
            for place, record in enumerate(records, start):
                row = np.array([scores[text] for text in record.captions])
                on_scores(place, np.broadcast_to(row, (1, len(record.images), len(row))))


def load_vera(directory: Path, *, name: str, device: torch.device | str = "cpu") -> TextJudge:
    """Load Vera, which scores the plausibility of a statement. Raises Refused for a folder of another form."""
    return TextJudge(name, load_vera_scorer(directory, device))


def load_grammar(directory: Path, *, name: str, device: torch.device | str = "cpu") -> TextJudge:
    """Load a classifier of acceptable sentences (CoLA). Raises Refused for a folder of another form."""
    return TextJudge(name, load_classifier(directory, device))
