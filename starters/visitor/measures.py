"""Measures of replies, in percent, and what a guess would reach."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from starters.visitor.questions import Asked, Question

NUM_BINS = 10

Measure = Callable[[Sequence[Asked]], float | None]
Chance = Callable[[Sequence[Question]], float | None]


def accuracy(asked: Sequence[Asked]) -> float:
    return 100 * float(np.mean([one.is_right for one in asked]))


def refusals(asked: Sequence[Asked]) -> float:
    """Return the share of answers that say that they do not know."""
    return 100 * float(np.mean([one.is_refusal for one in asked]))


def right_documents(asked: Sequence[Asked]) -> float:
    """Return how often the document that an answer relies on most is the one that answers."""
    return 100 * float(np.mean([one.reply.document == one.question.document for one in asked]))


def without_a_match(asked: Sequence[Asked]) -> float:
    """Return how often no document of a ranking has at least the threshold as its score."""
    return 100 * float(np.mean([bool(one.reply.scores) and max(one.reply.scores) < one.threshold for one in asked]))


def mean_average_precision(condition: int) -> Measure:
    """Measure leave-one-out retrieval under one condition of the galleries: each image is a query once."""

    def measure(asked: Sequence[Asked]) -> float:
        return 100 * float(np.mean([_gallery_precision(one, condition) for one in asked]))

    return measure


def _gallery_precision(asked: Asked, condition: int) -> float:
    if asked.reply.given is None:
        return 0.0
    embeddings = np.asarray(asked.reply.given[condition])
    embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
    return leave_one_out_map(embeddings @ embeddings.T, np.asarray(asked.question.right[condition]))


def leave_one_out_map(similarities: NDArray[np.float64], classes: NDArray[np.str_]) -> float:
    """Average the precision of every image's ranking of the others; similarities (n, n), classes (n,).

    An image of another class ranks before one of the same class that is equally similar.
    """
    precisions = []
    for query in range(len(classes)):
        others = np.delete(np.arange(len(classes)), query)
        is_same = classes[others] == classes[query]
        order = np.lexsort((is_same, -np.round(similarities[query, others], 9)))
        hits = is_same[order]
        ranks = np.flatnonzero(hits) + 1
        precisions.append(float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else math.nan)
    return float(np.nanmean(precisions))


@dataclass(frozen=True)
class Bin:
    """The `number` of probabilities in a bin, their mean and the share that was about something right, in percent."""

    number: int
    probability: float
    right: float


def reliability(asked: Sequence[Asked]) -> list[Bin | None]:
    """Sort the probabilities of replies into NUM_BINS bins of equal width; None for an empty one.

    A ranking contributes the score of each document.
    """
    pairs = list(chain.from_iterable(_judged(one) for one in asked))
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(NUM_BINS)]
    for probability, is_right in pairs:
        bins[min(int(probability * NUM_BINS), NUM_BINS - 1)].append((probability, is_right))
    return [_bin(one) if one else None for one in bins]


def _bin(pairs: Sequence[tuple[float, bool]]) -> Bin:
    probability, right = np.mean(np.asarray(pairs, dtype=np.float64), axis=0)
    return Bin(len(pairs), 100 * float(probability), 100 * float(right))


def calibration_error(asked: Sequence[Asked]) -> float | None:
    """Compute the expected calibration error of the probabilities: Σ_b n_b / n · |right_b − probability_b|.

    The bins are those of `reliability`. None if there are no probabilities.
    """
    bins = [one for one in reliability(asked) if one is not None]
    total = sum(one.number for one in bins)
    return sum(one.number * abs(one.right - one.probability) for one in bins) / total if total else None


def _judged(asked: Asked) -> list[tuple[float, bool]]:
    """Pair each probability of a reply with whether it was about something right."""
    reply, question = asked.reply, asked.question
    match question.form:
        case "rank":
            return [(score, index == question.right) for index, score in enumerate(reply.scores)]
        case "answer":
            return [] if reply.relevance is None else [(reply.relevance, question.is_answerable)]
        case _:
            return [] if reply.probability is None else [(reply.probability, asked.is_right)]


def guess(questions: Sequence[Question]) -> float:
    """Return the accuracy of a guess among each question's choices; 0 for questions without choices."""
    return 100 * float(np.mean([1 / len(one.choices) if one.choices else 0.0 for one in questions]))


def no_chance(_questions: Sequence[Question]) -> None:
    """Stand for measures that a guess says nothing about."""
    return None


def random_map(condition: int) -> Chance:
    """Compute the expected mAP of random rankings.

    Of n images with m of the query's class, a ranking has (H_n + (m − 1) / (n − 1) · (n − H_n)) / n in expectation.
    """

    def chance(questions: Sequence[Question]) -> float:
        return 100 * float(np.mean([_expected_map(one.right[condition]) for one in questions]))

    return chance


def _expected_map(classes: Sequence[str]) -> float:
    num_others = len(classes) - 1
    harmonic = float(np.sum(1 / np.arange(1, num_others + 1)))
    counts = [classes.count(one) - 1 for one in classes]
    expected = [
        (harmonic + (same - 1) / max(1, num_others - 1) * (num_others - harmonic)) / num_others
        for same in counts
        if same
    ]
    return float(np.mean(expected))
