"""VQAScore of vision-language models behind an OpenAI-compatible address: does the image show the caption?

Shapes: I images and C captions of a record.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from services.core.openai_client import Answer
from services.score.evaluation.endpoint.questions import Ask, ChatModel, Questions, data_url
from services.score.evaluation.judges import CannotJudge, OnScores
from services.score.evaluation.records import Record, Scores, Task
from services.score.second_opinion.vqa_score import question, request_body, yes_probability


class VqaJudge:
    """Asks about each image with each caption of a record, so that it can choose captions, images and both."""

    reads_images = True

    def __init__(self, model: ChatModel) -> None:
        self.name = model.name
        self._model = model.model
        self._questions = Questions(model, self._read)
        self._num_unreadable = 0

    def notes(self) -> Mapping[str, Any]:
        """Count the answers without yes or no, and the questions that the endpoint rejected: all count as wrong."""
        counts = {"unreadable_answers": self._num_unreadable, "refused_questions": self._questions.num_refused}
        return {"model": self._model, "question": question("…"), **counts}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score each pair of an image and a caption.

        Raises CannotJudge if the endpoint fails, or answers without log-probabilities.
        """
        self._questions.score(task, self._all_pairs, on_scores)

    async def _all_pairs(self, ask: Ask, record: Record) -> Scores:
        """Compute the probability of yes, (1, I, C); NaN, which is wrong, where there is none."""
        scores = np.full((1, len(record.images), len(record.captions)), np.nan)
        for row, path in enumerate(record.images):
            url = data_url(path)
            for column, caption in enumerate(record.captions):
                what = f"image {row}, caption {column}"
                answer = await ask(record, what, request_body(self._model, url, caption))
                if answer is None:
                    continue
                probability = yes_probability(orjson.loads(answer))
                if probability is None:
                    self._num_unreadable += 1
                else:
                    scores[0, row, column] = probability
        return scores

    def _read(self, answer: Answer) -> str:
        if not answer.first_token:
            raise CannotJudge(f"{self.name} answers without log-probabilities, which its score needs")
        return orjson.dumps(answer.first_token).decode()
