"""Vision-language models behind an OpenAI-compatible address as judges; none of their questions is asked twice.

`ChatJudge` asks which caption describes the image best. Models prefer the first option, so each record is asked in two
orders of its captions, each of which counts one half; an answer that names no option is wrong. `VqaJudge` asks whether
the image shows each caption (VQAScore).

Shapes: I images and C captions of a record.
"""

import asyncio
import base64
import hashlib
import io
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from PIL import Image
from pydantic import ConfigDict, Field

from services.core.openai_client import Answer, Endpoint, EndpointClient, EndpointError, Patience
from services.core.refusals import Refused
from services.jobs.inquiry import Identified, RecordFile
from services.score.evaluation.judges import OnScores, open_image
from services.score.evaluation.records import ImageFile, Record, Scores, Task
from services.score.second_opinion import question, request_body, yes_probability


class LoggedAnswer(Identified):
    """An answer and its question: the id is a digest of the request's body; the rest is for people."""

    model_config = ConfigDict(frozen=True, extra="forbid", serialize_by_alias=True)

    id: str = Field(alias="question")
    task: str
    record: str
    order: str
    model: str
    answer: str


# After this many rejected requests and no answer, the endpoint is assumed to reject all.
MAX_REFUSED_AT_FIRST = 4
PATIENCE = Patience(attempts=8, timeout_s=120.0)


# Asks about a record, with a word on what is asked and the request's body; None if the endpoint rejects the question.
Ask = Callable[[Record, str, Mapping[str, Any]], Awaitable[str | None]]
ScoreRecord = Callable[[Ask, Record], Awaitable[Scores]]


@dataclass(frozen=True)
class ChatModel:
    """A model behind an endpoint, its `name` in tables, and how to ask it.

    If there is a `log`, answers are stored in it and never requested again.
    """

    endpoint: Endpoint
    model: str
    name: str
    concurrency: int
    log: Path | None = None
    patience: Patience = PATIENCE


@contextmanager
def opened_log(path: Path | None) -> Iterator[RecordFile[LoggedAnswer] | None]:
    """Open a file of answers, or create it; None without one. Raises Refused if it is in use or holds others."""
    if path is None:
        yield None
        return
    with RecordFile.opened(path, LoggedAnswer, "evaluation", lambda found, num_torn_bytes: None) as log:
        yield log


class Questions:
    """The questions of one judge; `read` turns an answer into the text that is logged."""

    def __init__(self, model: ChatModel, read: Callable[[Answer], str]) -> None:
        self._model = model
        self._read = read
        self._num_answers = 0
        self.num_refused = 0

    def score(self, task: Task, score_record: ScoreRecord, on_scores: OnScores) -> None:
        """Score each record, several at a time.

        Raises Refused if the endpoint fails or rejects everything, and what `read` and `score_record` raise.
        """
        asyncio.run(self._score(task, score_record, on_scores))

    async def _score(self, task: Task, score_record: ScoreRecord, on_scores: OnScores) -> None:
        records = iter(enumerate(task.records))
        with opened_log(self._model.log) as log:
            async with EndpointClient(self._model.endpoint, self._model.patience) as client:
                ask = self._asking(client, log, task.name)

                async def work() -> None:
                    for place, record in records:
                        on_scores(place, await score_record(ask, record))

                try:
                    async with asyncio.TaskGroup() as workers:
                        for _ in range(self._model.concurrency):
                            workers.create_task(work())
                except* Refused as failed:
                    raise failed.exceptions[0] from None

    def _asking(self, client: EndpointClient, log: RecordFile[LoggedAnswer] | None, task: str) -> Ask:
        """Make a function that asks one question, or finds the answer in the log."""
        known = {one.id: one.answer for one in log.found} if log is not None else {}

        async def ask(record: Record, what: str, body: Mapping[str, Any]) -> str | None:
            question = hashlib.sha256(orjson.dumps(body)).hexdigest()
            answer = known.get(question)
            if answer is None:
                try:
                    answer = self._read(await client.ask(body))
                except EndpointError as error:
                    if not error.is_refusal:
                        raise Refused(str(error)) from error
                    self._count_refused(record, error)
                    return None
                about = {"task": task, "record": record.id, "order": what, "model": self._model.model}
                if log is not None and question not in known:
                    known[question] = answer
                    await log.append(LoggedAnswer(question=question, answer=answer, **about))
            self._num_answers += 1
            return answer

        return ask

    def _count_refused(self, record: Record, refused: EndpointError) -> None:
        self.num_refused += 1
        if not self._num_answers and self.num_refused >= MAX_REFUSED_AT_FIRST:
            raise Refused(
                f"{self._model.name} did not answer any question; last error, about record {record.id}: {refused}"
            )


def data_url(image: ImageFile) -> str:
    """Encode an image as a data URL: a whole file unchanged, anything else as PNG. Raises Refused for no image."""
    if not isinstance(image, Path) or image.suffix == ".npy":
        written = io.BytesIO()
        open_image(image).save(written, "PNG")
        return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"
    try:
        content = image.read_bytes()
        with Image.open(image) as opened:
            kind = Image.MIME[str(opened.format)]
    except (OSError, KeyError) as error:
        raise Refused(f"{image} can't be read as an image: {error}") from error
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


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

        Raises Refused for a choice of images or of several true captions, and if the endpoint fails.
        """
        if task.num_true > 1:
            raise Refused(f"{self.name} chooses one caption, but {task.name} has {task.num_true} true ones")
        if task.kind != "image-to-text":
            raise Refused(f"{self.name} supports one image at a time, but {task.name} is a choice among images")
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

        Raises Refused if the endpoint fails, or answers without log-probabilities.
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
            raise Refused(f"{self.name} answers without log-probabilities, which its score needs")
        return orjson.dumps(answer.first_token).decode()
