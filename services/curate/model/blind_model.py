"""Models that score a caption without its image, and the gaps of their scores.

Shapes: N pairs, M models.
"""

import hashlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from services.curate.sugarcrepe import likelihood_gap

if TYPE_CHECKING:
    import torch

    from services.nn.sentence_scores import SentenceScorer

# Texts between two additions to the cache; what is scored when a job is stopped is kept.
TEXTS_AT_ONCE = 4_096

# Most parameters of one statement in every edition of SQLite.
MAX_PARAMETERS = 500
TIMEOUT_S = 60.0

OnScored = Callable[[int], None]


class ScoreCache:
    """Scores of one model, by the digest of a text. Several processes may use a file at once."""

    def __init__(self, directory: Path, model_digest: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{model_digest}.sqlite"
        with self._open() as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS scores (text BLOB PRIMARY KEY, score REAL) WITHOUT ROWID")

    def find(self, texts: Sequence[str]) -> dict[str, float]:
        """Return the known scores of texts."""
        by_key = {_key(text): text for text in texts}
        keys, found = list(by_key), dict[str, float]()
        with self._open() as connection:
            for start in range(0, len(keys), MAX_PARAMETERS):
                some = keys[start : start + MAX_PARAMETERS]
                marks = ",".join("?" * len(some))
                rows = connection.execute(f"SELECT text, score FROM scores WHERE text IN ({marks})", some)
                found.update((by_key[key], score) for key, score in rows)
        return found

    def add(self, scores: Mapping[str, float]) -> None:
        """Keep the scores of texts; they are on disk when this returns."""
        with self._open() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO scores VALUES (?, ?)", ((_key(text), score) for text, score in scores.items())
            )

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=TIMEOUT_S)) as connection, connection:
            yield connection


def _key(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def folder_digest(directory: Path) -> str:
    """Identify the content of a model's folder: its files' names and bytes, below no folder of it."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if path.is_file():
            with path.open("rb") as file:
                digest.update(path.name.encode() + b"\0" + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


@dataclass(frozen=True)
class BlindModel:
    """A scorer of sentences under a name, with the scores that it has on disk."""

    name: str
    scorer: "SentenceScorer"
    cache: ScoreCache | None = None

    @classmethod
    def load(cls, name: str, directory: Path, *, device: "torch.device", cache: Path | None = None) -> Self:
        """Load a Hugging Face folder. Raises Refused for one that scores no sentences."""
        from services.nn.sentence_scores import load_scorer  # imports torch

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
