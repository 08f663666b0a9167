"""Vision-language models behind an OpenAI-compatible address: which caption describes the image best?

They prefer the first option, so each record is asked in two orders of its captions, each of which counts one half. An
answer that names no option is wrong.

Shapes: C captions of a record.
"""

import asyncio
import base64
import hashlib
import io
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from PIL import Image

from services.jobs.endpoint import Endpoint, EndpointClient, EndpointError, Patience
from services.score.evaluation.answer_log import AnswerLog, LoggedAnswer
from services.score.evaluation.image_files import ImageFile
from services.score.evaluation.judges import CannotJudge, OnScores, open_image
from services.score.evaluation.records import Record, Scores, Task

ORDERS = ("positive-first", "negative-first")
# After this many rejected requests and no answer, the endpoint is assumed to reject all.
MAX_REFUSED_AT_FIRST = 4
MAX_TOKENS = 16
PATIENCE = Patience(attempts=8, timeout_s=120.0)

Ask = Callable[[Record, str, Sequence[str]], Awaitable[str]]

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
    """A model behind an endpoint. If there is a `log`, answers are stored in it and never requested again."""

    reads_images = True

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        *,
        name: str,
        log: Path | None = None,
        concurrency: int,
        patience: Patience = PATIENCE,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        self.name = name
        self._endpoint = endpoint
        self._model = model
        self._log = log
        self._concurrency = concurrency
        self._patience = patience
        self._max_tokens = max_tokens
        self._num_answers = 0
        self._num_unreadable = 0
        self._num_refused = 0

    def notes(self) -> Mapping[str, Any]:
        """Count the answers that name no option, and the questions that the endpoint rejected: all count as wrong."""
        counts = {"unreadable_answers": self._num_unreadable, "refused_questions": self._num_refused}
        return {"model": self._model, "orders": list(ORDERS), "max_tokens": self._max_tokens, **counts}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score both orders of each record's captions.

        Raises CannotJudge for a choice of images or of several true captions, and if the endpoint fails.
        """
        if task.num_true > 1:
            raise CannotJudge(f"{self.name} chooses one caption, but {task.name} has {task.num_true} true ones")
        if task.kind != "image-to-text":
            raise CannotJudge(f"{self.name} supports one image at a time, but {task.name} is a choice among images")
        asyncio.run(self._score(task, on_scores))

    async def _score(self, task: Task, on_scores: OnScores) -> None:
        records = iter(enumerate(task.records))
        with AnswerLog.opened(self._log) as log:
            async with EndpointClient(self._endpoint, self._patience) as client:
                ask = self._asking(client, log, task.name)

                async def work() -> None:
                    for place, record in records:
                        on_scores(place, await self._both_orders(ask, record))

                try:
                    async with asyncio.TaskGroup() as workers:
                        for _ in range(self._concurrency):
                            workers.create_task(work())
                except* CannotJudge as failed:
                    raise failed.exceptions[0] from None

    async def _both_orders(self, ask: Ask, record: Record) -> Scores:
        """Ask in both orders: 1 for the chosen caption and 0 for the others, (2, 1, C); all 0 without a choice."""
        places = range(len(record.captions))
        scores = np.zeros((len(ORDERS), 1, len(places)))
        for row, (order, shown) in enumerate(zip(ORDERS, (places, places[::-1]), strict=True)):
            try:
                answer = await ask(record, order, [record.captions[place] for place in shown])
            except EndpointError as error:
                if not error.is_refusal:
                    raise CannotJudge(str(error)) from error
                self._count_refused(record, error)
                continue
            self._num_answers += 1
            chosen = choice(answer, len(shown))
            if chosen is None:
                self._num_unreadable += 1
            else:
                scores[row, 0, shown[chosen]] = 1.0
        return scores

    def _asking(self, client: EndpointClient, log: AnswerLog, task: str) -> Ask:
        """Make a function that asks about one order of a record's captions, or finds the answer in the log."""

        async def ask(record: Record, order: str, captions: Sequence[str]) -> str:
            body = self._body(record, captions)
            question = hashlib.sha256(orjson.dumps(body)).hexdigest()
            known = log.find(question)
            if known is not None:
                return known
            answer = (await client.ask(body)).text
            about = {"task": task, "record": record.id, "order": order, "model": self._model}
            log.keep(LoggedAnswer(question=question, answer=answer, **about))
            return answer

        return ask

    def _count_refused(self, record: Record, refused: EndpointError) -> None:
        self._num_refused += 1
        if not self._num_answers and self._num_refused >= MAX_REFUSED_AT_FIRST:
            raise CannotJudge(
                f"{self.name} did not answer any question; last error, about record {record.id}: {refused}"
            )

    def _body(self, record: Record, captions: Sequence[str]) -> dict[str, Any]:
        (image,) = record.images
        parts = [
            {"type": "image_url", "image_url": {"url": data_url(image)}},
            {"type": "text", "text": prompt(captions)},
        ]
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": parts}],
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }


def data_url(image: ImageFile) -> str:
    """Encode an image as a data URL: a whole file unchanged, anything else as PNG. Raises CannotJudge for no image."""
    if not isinstance(image, Path) or image.suffix == ".npy":
        written = io.BytesIO()
        open_image(image).save(written, "PNG")
        return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    try:
        content = image.read_bytes()
        with Image.open(image) as opened:
            kind = Image.MIME[str(opened.format)]
    except (OSError, KeyError) as error:
        raise CannotJudge(f"{image} can't be read as an image: {error}") from error
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
