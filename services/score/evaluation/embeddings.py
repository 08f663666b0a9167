"""Models that embed images and texts separately, so that a whole benchmark needs each of them once.

Shapes: N images or texts, E embedding width, I images and C captions of a record.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.score.evaluation.judges import Judge, OnScores
from services.score.evaluation.records import ImageFile, Task

Features = NDArray[np.float32]
NameT = TypeVar("NameT", bound=Hashable)


class Embedder(Judge, Protocol):
    """A judge whose scores are, or contain, the cosine of an image's and a text's embedding.

    `only_pooled` tells that they are nothing else.
    """

    @property
    def only_pooled(self) -> bool: ...

    def embed_images(self, images: Sequence[ImageFile], title: str) -> Features:
        """Embed images, (N, E) of length 1, with a progress bar. Raises CannotJudge for a file that is no image."""
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
