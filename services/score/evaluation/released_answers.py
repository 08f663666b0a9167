"""A judge with released answers: a file of which records it got right, for each order of the captions.

    {"positive-first": {"replace_obj": {"0": 1, "1": 0, …}, …}, "negative-first": {…}}

The authors of SugarCrepe released GPT-4V's choices in this form.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from services.core.refusals import first_complaint
from services.score.evaluation.judges import CannotJudge, OnScores
from services.score.evaluation.records import Task

Answers = dict[str, dict[str, dict[str, bool]]]


class ReleasedAnswers:
    """A judge that is right where its file says so. Raises CannotJudge for a bad or unreadable file."""

    reads_images = False

    def __init__(self, path: Path, *, name: str) -> None:
        self.name = name
        self._path = path
        try:
            self._by_order = TypeAdapter(Answers).validate_python(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise CannotJudge(f"{path}: {error.strerror}") from error
        except ValidationError as error:
            raise CannotJudge(f"{path}: {first_complaint(error, 'the file')}") from error
        except ValueError as error:
            raise CannotJudge(f"{path}: not JSON ({error})") from error
        if not self._by_order:
            raise CannotJudge(f"{path} holds no answers")

    def notes(self) -> Mapping[str, Any]:
        """Return the orders in which it was asked."""
        return {"orders": list(self._by_order)}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score 1 for matching pairs and 0 for others if the answer was right, else a tie.

        Raises CannotJudge for a record without an answer.
        """
        for place, record in enumerate(task.records):
            right = [self._is_right(order, task.name, record.id) for order in self._by_order]
            pairs = np.eye(len(record.images), len(record.captions))
            pairs[0, : task.num_true] = 1
            on_scores(place, np.stack([pairs * is_right for is_right in right]))

    def _is_right(self, order: str, task: str, record: str) -> bool:
        try:
            return self._by_order[order][task][record]
        except KeyError as error:
            raise CannotJudge(f"{self._path} has no answer for {order}.{task}.{record}: there is no {error}") from error
