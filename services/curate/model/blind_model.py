"""Models that score a caption without its image, and the gaps of their scores.

Shapes: N pairs, M models.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from services.curate.model.score_cache import ScoreCache, folder_digest
from services.curate.sugarcrepe import likelihood_gap
from services.nn.sentence_scores import SentenceScorer, load_scorer

# Texts between two additions to the cache; what is scored when a job is stopped is kept.
TEXTS_AT_ONCE = 4_096

OnScored = Callable[[int], None]


@dataclass(frozen=True)
class BlindModel:
    """A scorer of sentences under a name, with the scores that it has on disk."""

    name: str
    scorer: SentenceScorer
    cache: ScoreCache | None = None

    @classmethod
    def load(cls, name: str, directory: Path, *, device: torch.device, cache: Path | None = None) -> Self:
        """Load a Hugging Face folder. Raises Refused for one that scores no sentences."""
        scorer = load_scorer(directory, device)
        # the type of the device is part of the key, since another rounds differently
        kept = None if cache is None else ScoreCache(cache, f"{folder_digest(directory)}-{device.type}")
        return cls(name, scorer, kept)

    def scores(self, texts: Sequence[str], on_scored: OnScored = lambda number: None) -> NDArray[np.float64]:
        """Score texts, (N,), equal ones once; `on_scored` is told the number of texts finished each time."""
        distinct = list(dict.fromkeys(texts))
        known = {} if self.cache is None else self.cache.find(distinct)
        missing = sorted((text for text in distinct if text not in known), key=len)
        on_scored(len(texts) - len(missing))
        for start in range(0, len(missing), TEXTS_AT_ONCE):
            some = missing[start : start + TEXTS_AT_ONCE]
            scored = dict(zip(some, self.scorer.scores(some), strict=True))
            if self.cache is not None:
                self.cache.add(scored)
            known |= scored
            on_scored(len(some))
        return np.array([known[text] for text in texts], np.float64)

    def gaps(self, positive: NDArray[np.float64], negative: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute the gaps of scores, (N,) and (N,) → (N,) in −1..1."""
        if self.scorer.kind == "likelihood":
            return np.asarray(likelihood_gap(positive, negative), np.float64)
        return positive - negative
