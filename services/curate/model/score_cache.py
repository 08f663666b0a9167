"""Scores of texts on disk, so that no model scores a text twice: one SQLite file for the content of each model."""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

# Most parameters of one statement in every edition of SQLite.
MAX_PARAMETERS = 500
TIMEOUT_S = 60.0


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
