"""Scores of pairs by blind models, refinement within each type, and what is left to the models afterwards.

Shapes: N pairs, M models.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from services.core.settings import DeviceName
from services.curate.model.blind_model import BlindModel
from services.curate.refinement.loading import DEFAULT_CACHE, load_models
from services.curate.sugarcrepe import MAX_MODELS, refine
from services.jobs.options import MAX_SEED
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
class Attack:
    """Outcome of one attack on a task: choices that are right, wrong, and without a single best caption."""

    attacker: str
    task: str
    num_right: int
    num_wrong: int
    num_ties: int
    chance: float = 0.5

    @property
    def total(self) -> int:
        return self.num_right + self.num_wrong + self.num_ties

    @property
    def accuracy(self) -> float:
        """Share of right choices; a tie is wrong, and no choice is no number."""
        return self.num_right / self.total if self.total else float("nan")

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's interval of 95 %."""
        return wilson(self.num_right, self.total)

    @property
    def with_guesses(self) -> float:
        """Share of right choices of an attacker who guesses where captions tie."""
        return (self.num_right + self.chance * self.num_ties) / self.total

    @property
    def verdict(self) -> str:
        """`hackable` above chance, `reversed` where the other caption of two is right more often than chance, or none.

        Items on which captions tie do not count: there an attacker guesses. A reversed attack is as good as one that is
        right, since an attacker who knows of it takes the other caption.
        """
        num_decided = self.num_right + self.num_wrong
        if wilson(self.num_right, num_decided)[0] > self.chance:
            return "hackable"
        is_reversed = self.chance == 0.5 and wilson(self.num_wrong, num_decided)[0] > 0.5
        return "reversed" if is_reversed else ""


def wilson(num_right: int, total: int) -> tuple[float, float]:
    """Compute Wilson's score interval of 95 % of a share; (0, 1) without items."""
    if not total:
        return 0.0, 1.0
    from scipy.stats import binomtest  # takes a second to import

    interval = binomtest(num_right, total).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


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


def blind_results(kinds: Sequence[str], scored: Sequence[Scored], places: NDArray[np.int64]) -> list[Attack]:
    """Count each model's right choices among some pairs, by type; a tie is wrong, and counted apart."""
    names = np.asarray(kinds)[places]
    results = []
    for one in scored:
        signs = np.sign(one.gaps[places])
        for kind in dict.fromkeys(kinds):
            own = signs[names == kind]
            counts = [int((own == sign).sum()) for sign in (1, -1, 0)]
            results.append(Attack(one.model, kind, *counts))
    return results


class RefineOptions(BaseModel):
    """The options of `fovea curate refine`, by the same names; without models, the starters."""

    model_config = ConfigDict(extra="forbid")

    model: list[str] = Field(default_factory=list, max_length=MAX_MODELS)
    seed: int = Field(0, ge=0, le=MAX_SEED)
    cache: Path = DEFAULT_CACHE
    device: DeviceName = "auto"
    store_url: str | None = None

    def models(self) -> Iterator[BlindModel]:
        """Load the models one after the other. Raises Refused, at once for one that is not there."""
        return load_models(self.model, device=self.device, cache=self.cache, store_url=self.store_url)


def refined(pairs: Sequence[Pair], options: RefineOptions) -> list[Pair]:
    """Choose the pairs of which no blind model can tell the true captions, in the given order. Raises Refused."""
    if not pairs:
        return []
    scored = score_pairs(pairs, options.models())
    kept = refine_pairs([pair.kind for pair in pairs], np.stack([one.gaps for one in scored], axis=1), options.seed)
    return [pairs[place] for place in kept]
