"""Judges behind one interface, and the results of their scores, stored as JSON so that runs share one table.

Shapes: R records of a task, O orders, I images and C captions of a record, N images or texts, E embedding width.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from services.core.refusals import Refused, first_complaint
from services.core.text_files import read_json
from services.jobs.progress import standard_bars
from services.jobs.result_files import ResultFiles
from services.score.evaluation.aggregates import IMAGE, TEXT
from services.score.evaluation.records import (
    ImageFile,
    Outcomes,
    Scores,
    Task,
    category_index,
    outcomes,
    percent,
    read_image_file,
)

# What settings also tell of the records: parts of a benchmark differ in it and belong together nevertheless.
NOTES = ("captions_cut", "left_out")


@dataclass(frozen=True)
class Result:
    """One judge on one benchmark: percent and number of records by task, and the settings.

    `data` tells, by part of the suite, which data the scores are of.
    """

    judge: str
    benchmark: str
    scores: dict[str, float]
    sizes: dict[str, int]
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)


def _combine(earlier: Result, later: Result) -> Result:
    return replace(
        later,
        scores={**earlier.scores, **later.scores},
        sizes={**earlier.sizes, **later.sizes},
        data={**earlier.data, **later.data},
    )


def _settings(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.settings.items() if name not in NOTES}


RESULT_FILES = ResultFiles(Result, attrgetter("judge", "benchmark"), _combine, _settings)


Similarity = Literal["mix", "global", "local"]

OnScores = Callable[[int, Scores], None]


class Judge(Protocol):
    """Scores how well captions fit images.

    `name` is the heading of its row in a table. Images may be missing for a judge that does not read them.
    """

    name: str
    reads_images: bool

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Report the scores (O, I, C) of each record, with its place, in any order.

        O is 1, unless answers depend on the order of the captions and several orders were asked. Equal captions of one
        image have equal scores. Raises Refused.
        """
        ...

    def notes(self) -> Mapping[str, Any]:
        """Return notes for a reader of the scores, on all tasks so far."""
        ...


def open_image(image: ImageFile) -> Image.Image:
    """Open a record's image, RGB. Raises Refused, with its name, for a file that is not an image."""
    try:
        return read_image_file(image)
    except (OSError, ValueError) as error:
        raise Refused(f"{image} can't be read as an image: {error}") from error


def evaluate(judge: Judge, tasks: Sequence[Task], settings: Mapping[str, Any] | None = None) -> list[Result]:
    """Judge the tasks, with one result for each benchmark and the judge's notes among its settings.

    Raises BadFile before the first image is read if any is missing, and Refused.
    """
    if judge.reads_images:
        for task in tasks:
            task.check_images()
    right = [(task, outcomes(score(judge, task), task.num_true)) for task in tasks]
    left_out = {task.name: task.left_out for task in tasks if task.left_out}
    notes = {**(settings or {}), **judge.notes(), **({"left_out": left_out} if left_out else {})}
    results = []
    for benchmark in dict.fromkeys(task.benchmark for task in tasks):
        own = [(task, found) for task, found in right if task.benchmark == benchmark]
        scores = {name: value for pair in own for name, value in _percents(*pair)}
        sizes = {task.name: len(task.records) for task, _ in own}
        results.append(Result(judge.name, benchmark, scores, sizes, notes))
    return results


def score(judge: Judge, task: Task) -> list[Scores]:
    """Score each record, in the task's order, with a progress bar. Raises Refused."""
    found: list[Scores | None] = [None] * len(task.records)
    with standard_bars().bar(f"{judge.name}, {task.name}", total=len(found)) as bar:

        def keep(place: int, scores: Scores) -> None:
            found[place] = scores
            bar.advance()

        judge.score(task, keep)
    scored = [scores for scores in found if scores is not None]
    assert len(scored) == len(found), f"{judge.name} skipped records of {task.name}"
    return scored


def _percents(task: Task, found: Outcomes) -> Iterator[tuple[str, float]]:
    """Yield a task's scores by name: one, or for groups also those of the choices of captions and of images."""
    category = category_index(task)
    yield task.name, percent(found.both, category)
    if task.kind == "group":
        yield task.name + TEXT, percent(found.text, category)
        yield task.name + IMAGE, percent(found.image, category)


Features = NDArray[np.float32]
NameT = TypeVar("NameT", bound=Hashable)


@runtime_checkable
class Embedder(Judge, Protocol):
    """A judge whose scores are, or contain, the cosine of an image's and a text's embedding.

    `only_pooled` tells that they are nothing else.
    """

    @property
    def only_pooled(self) -> bool: ...

    def embed_images(self, images: Sequence[ImageFile], title: str) -> Features:
        """Embed images, (N, E) of length 1, with a progress bar. Raises Refused for a file that is no image."""
        ...

    def embed_texts(self, texts: Sequence[str], title: str) -> Features:
        """Embed texts, (N, E) of length 1. Equal texts have equal rows."""
        ...


class EmbeddedBenchmark:
    """A judge of a benchmark's tasks by embeddings, made once for all of its tasks when the first one is asked."""

    reads_images = True

    def __init__(self, embedder: Embedder, tasks: Sequence[Task]) -> None:
        self.name = embedder.name
        self._embedder = embedder
        self._tasks = tasks
        self._images: Mapping[ImageFile, int] = {}
        self._texts: Mapping[str, int] = {}
        self._image_features: Features = np.empty((0, 0), np.float32)
        self._text_features: Features = np.empty((0, 0), np.float32)

    def notes(self) -> Mapping[str, Any]:
        """Return the embedder's notes."""
        return self._embedder.notes()

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score one order of each record."""
        if not self._images:
            self._embed(task.benchmark)
        for place, record in enumerate(task.records):
            images = self._image_features[[self._images[image] for image in record.images]]
            texts = self._text_features[[self._texts[text] for text in record.captions]]
            # in doubles and rounded, so that equal captions tie whatever their places
            scores = images.astype(np.float64) @ texts.astype(np.float64).T
            on_scores(place, scores.astype(np.float32)[None])

    def _embed(self, benchmark: str) -> None:
        records = [record for task in self._tasks for record in task.records]
        self._images = numbered(image for record in records for image in record.images)
        self._texts = numbered(text for record in records for text in record.captions)
        self._image_features = self._embedder.embed_images(list(self._images), f"{benchmark}, images")
        self._text_features = self._embedder.embed_texts(list(self._texts), f"{benchmark}, texts")


def numbered(names: Iterable[NameT]) -> dict[NameT, int]:
    """Number the distinct names in the order of their first appearance."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


Answers = dict[str, dict[str, dict[str, bool]]]


class ReleasedAnswers:
    """A judge that is right where its file says so, for each order of the captions, as SugarCrepe's GPT-4V.

        {"positive-first": {"replace_obj": {"0": 1, "1": 0, …}, …}, "negative-first": {…}}

    Raises Refused for a bad or unreadable file.
    """

    reads_images = False

    def __init__(self, path: Path, *, name: str) -> None:
        self.name = name
        self._path = path
        given = read_json(path)
        try:
            self._by_order = TypeAdapter(Answers).validate_python(given)
        except ValidationError as error:
            raise Refused(f"{path}: {first_complaint(error, 'the file')}") from error
        if not self._by_order:
            raise Refused(f"{path} holds no answers")

    def notes(self) -> Mapping[str, Any]:
        """Return the orders in which it was asked."""
        return {"orders": list(self._by_order)}

    def score(self, task: Task, on_scores: OnScores) -> None:
        """Score 1 for matching pairs and 0 for others if the answer was right, else a tie.

        Raises Refused for a record without an answer.
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
            raise Refused(f"{self._path} has no answer for {order}.{task}.{record}: there is no {error}") from error
