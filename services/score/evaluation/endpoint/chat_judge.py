"""Vision-language models behind an OpenAI-compatible address: which caption describes the image best?

They prefer the first option, so each record is asked in two orders of its captions, each of which counts one half. An
answer that names no option is wrong.

Shapes: C captions of a record.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from services.score.evaluation.endpoint.questions import Ask, ChatModel, Questions, data_url
from services.score.evaluation.judges import CannotJudge, OnScores
from services.score.evaluation.records import Record, Scores, Task

ORDERS = ("positive-first", "negative-first")
MAX_TOKENS = 16

_CHOICE = re.compile(r"\(?([0-9]{1,4})\)?\.?")


def prompt(captions: Sequence[str]) -> str:
    """The question that SugarCrepe's authors asked GPT-4V, for two or more captions."""
    options = "\n".join(f"({number}) {caption}" for number, caption in enumerate(captions, start=1))
    *others, last = (f"({number})" for number in range(1, len(captions) + 1))
    return f"Which caption best describes the image?\n{options}\nOutput {', '.join(others)} or {last}."


def choice(answer: str, num_captions: int) -> int | None:
    """Parse an answer that is only the number of a caption, `(1)`, `1` or `(1).`, to its place; None for any other."""
    match = _CHOICE.fullmatch(answer.strip())
    if match is None or not 1 <= int(match[1]) <= num_captions:
        return None
    return int(match[1]) - 1


class ChatJudge:
    """A model that chooses one of an image's captions by its number."""

    reads_images = True

    def __init__(self, model: ChatModel, *, max_tokens: int = MAX_TOKENS) -> None:
        self.name = model.name
        self._model = model.model
        self._max_tokens = max_tokens
        self._questions = Questions(model, lambda answer: answer.text)
        self._num_unreadable = 0

    def notes(self) -> Mapping[str, Any]:
        """Count the answers that name no option, and the questions that the endpoint rejected: all count as wrong."""
        counts = {"unreadable_answers": self._num_unreadable, "refused_questions": self._questions.num_refused}
        return {"model": self._model, "orders": list(ORDERS), "max_tokens": self._max_tokens, **counts}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score both orders of each record's captions.

        Raises CannotJudge for a choice of images or of several true captions, and if the endpoint fails.
        """
        if task.num_true > 1:
            raise CannotJudge(f"{self.name} chooses one caption, but {task.name} has {task.num_true} true ones")
        if task.kind != "image-to-text":
            raise CannotJudge(f"{self.name} supports one image at a time, but {task.name} is a choice among images")
        self._questions.score(task, self._both_orders, on_scores)

    async def _both_orders(self, ask: Ask, record: Record) -> Scores:
        """Ask in both orders: 1 for the chosen caption and 0 for the others, (2, 1, C); all 0 without a choice."""
        places = range(len(record.captions))
        scores = np.zeros((len(ORDERS), 1, len(places)))
        for row, (order, shown) in enumerate(zip(ORDERS, (places, places[::-1]), strict=True)):
            answer = await ask(record, order, self._body(record, [record.captions[place] for place in shown]))
            if answer is None:
                continue
            chosen = choice(answer, len(shown))
            if chosen is None:
                self._num_unreadable += 1
            else:
                scores[row, 0, shown[chosen]] = 1.0
        return scores

    def _body(self, record: Record, captions: Sequence[str]) -> dict[str, Any]:
        (path,) = record.images
        parts = [
            {"type": "image_url", "image_url": {"url": data_url(path)}},
            {"type": "text", "text": prompt(captions)},
        ]
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": parts}],
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }
