"""Scores of pairs by blind models, refinement within each type, and what is left to the models afterwards.

Shapes: N pairs, M models.
"""

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.curate.model.blind_model import BlindModel
from services.curate.sugarcrepe import refine
from services.jobs.progress import standard_bars
from services.jobs.sugarcrepe import Pair

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Scores (N,) of the positive and negative captions by one model, and the gaps between them."""

    model: str
    positive: Floats
    negative: Floats
    gaps: Floats


@dataclass(frozen=True)
class BlindResult:
    """A model's choices among the pairs of one type: how many are right, wrong, and ties."""

    model: str
    kind: str
    num_right: int
    num_wrong: int
    num_ties: int

    @property
    def total(self) -> int:
        return self.num_right + self.num_wrong + self.num_ties


def score_pairs(pairs: Sequence[Pair], models: Iterable[BlindModel]) -> list[Scored]:
    """Score all captions with each model, with a progress bar."""
    texts = [pair.caption for pair in pairs] + [pair.negative_caption for pair in pairs]
    scored = []
    for model in models:
        with standard_bars().bar(f"{model.name}, captions", total=len(texts)) as bar:
            positive, negative = np.split(model.scores(texts, bar.advance), 2)
        scored.append(Scored(model.name, positive, negative, model.gaps(positive, negative)))
    return scored


def refine_pairs(kinds: Sequence[str], gaps: Floats, seed: int) -> NDArray[np.int64]:
    """Refine the pairs of each type separately: types (N,) and gaps (N, M) → the places of pairs to keep, ascending.

    The choice within a type depends on its own pairs and the seed alone.
    """
    names = np.asarray(kinds)
    kept = [np.zeros(0, np.int64)]
    for kind in dict.fromkeys(kinds):
        places = np.flatnonzero(names == kind)
        kept.append(places[refine(gaps[places], np.random.default_rng([seed, zlib.crc32(kind.encode())]))])
    return np.sort(np.concatenate(kept))


def blind_results(kinds: Sequence[str], scored: Sequence[Scored], places: NDArray[np.int64]) -> list[BlindResult]:
    """Count each model's right choices among some pairs, by type; a tie is wrong, and counted apart."""
    names = np.asarray(kinds)[places]
    results = []
    for one in scored:
        signs = np.sign(one.gaps[places])
        for kind in dict.fromkeys(kinds):
            own = signs[names == kind]
            counts = [int((own == sign).sum()) for sign in (1, -1, 0)]
            results.append(BlindResult(one.model, kind, *counts))
    return results
