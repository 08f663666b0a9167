"""Verdicts of reviewers, each on disk before it counts, in one SQLite file."""

import hashlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from services.core.durable_files import make_folder_durably, sync_folder
from services.curate.review.tasks import TASKS, Comparison, Task, TaskName, VerdictName
from services.jobs.sugarcrepe import Pair

Round = Literal[1, 2]

APPLICATION_ID = 0x464F5652
# The version of each task's table, by which one task's verdicts are not taken for another's.
SCHEMA_VERSIONS: Mapping[TaskName, int] = {"validity": 1, "choice": 2, "commonsense": 3, "grammar": 4}
SCHEMA = """
CREATE TABLE verdicts (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    reviewer TEXT NOT NULL,
    round INTEGER NOT NULL CHECK (round IN (1, 2)),
    verdict TEXT NOT NULL CHECK (verdict IN ({verdicts})),
    note TEXT NOT NULL,
    judged_at TEXT NOT NULL,
    {first}captions TEXT NOT NULL,
    UNIQUE (id, reviewer, round)
) STRICT
"""


class BadDatabase(OSError):
    """A file that is not a database of verdicts of these pairs; the message names it."""


class Verdict(BaseModel):
    """A verdict of one reviewer on one pair in one round.

    `valid`: the negative caption is false of the image. `false_negative`: it is true of it as well. `first` names the
    text that was shown first, where the order of two was drawn. `judged_at` is in ISO 8601, UTC.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    reviewer: str
    verdict: VerdictName
    round: Round = 1
    note: str = Field("", max_length=2000)
    judged_at: str
    first: str | None = None


class VerdictFile:
    """The verdicts of one database, the last given last. One process at a time holds it open.

    A write returns once it is on disk: `synchronous=FULL`. The journal is a rollback journal rather than a log of
    writes (WAL), so that this one file holds every verdict between two writes, and a copy of it is a backup; with a few
    writes a minute, the second sync that this costs is not felt.
    """

    def __init__(self, path: Path, pairs: Sequence[Pair], task: Task = TASKS["validity"]) -> None:
        """Open the database, or make it. Raises BadDatabase, also for verdicts of pairs that are not among `pairs`."""
        self.task = task
        self._columns = [*(name for name in Verdict.model_fields if name != "first" or task.is_blind), "captions"]
        self._digests = {pair.id: _digest(pair) for pair in pairs}
        make_folder_durably(path.absolute().parent)
        try:
            self._connection = _connect(path, task)
        except sqlite3.Error as error:
            raise BadDatabase(_explanation(path, error)) from None
        sync_folder(path.absolute().parent)
        try:
            self._verdicts: dict[tuple[Round, str, str], Verdict] = {}
            self._by_round: dict[Round, dict[str, dict[str, Verdict]]] = {1: {}, 2: {}}
            for verdict in self._read(path):
                self._keep(verdict)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    @property
    def verdicts(self) -> dict[tuple[Round, str, str], Verdict]:
        """The verdicts by round, pair and reviewer, in the order in which they were given."""
        return self._verdicts

    def of_round(self, round: Round) -> Mapping[str, Mapping[str, Verdict]]:
        """Return a round's verdicts by pair and reviewer."""
        return self._by_round[round]

    def put(self, verdict: Verdict) -> None:
        """Add a verdict in place of the one that its reviewer gave on its pair in its round before."""
        fields = {**verdict.model_dump(), "captions": self._digests[verdict.id]}
        names = ", ".join(self._columns)
        with self._connection:
            self._connection.execute(
                f"INSERT OR REPLACE INTO verdicts ({names}) VALUES (:{names.replace(', ', ', :')})", fields
            )
        self._forget(verdict)
        self._keep(verdict)

    def remove(self, verdict: Verdict) -> None:
        """Withdraw a verdict."""
        with self._connection:
            self._connection.execute(
                "DELETE FROM verdicts WHERE round = ? AND id = ? AND reviewer = ?",
                (verdict.round, verdict.id, verdict.reviewer),
            )
        self._forget(verdict)

    def _keep(self, verdict: Verdict) -> None:
        self._verdicts[verdict.round, verdict.id, verdict.reviewer] = verdict
        self._by_round[verdict.round].setdefault(verdict.id, {})[verdict.reviewer] = verdict

    def _forget(self, verdict: Verdict) -> None:
        if self._verdicts.pop((verdict.round, verdict.id, verdict.reviewer), None) is not None:
            of_pair = self._by_round[verdict.round][verdict.id]
            del of_pair[verdict.reviewer]
            if not of_pair:
                del self._by_round[verdict.round][verdict.id]

    def _read(self, path: Path) -> Iterator[Verdict]:
        columns = ", ".join(self._columns)
        for *fields, digest in self._connection.execute(f"SELECT {columns} FROM verdicts ORDER BY number"):
            verdict = Verdict(**dict(zip(self._columns, fields, strict=False)))
            if self._digests.get(verdict.id) != digest:
                what = "other captions for it" if verdict.id in self._digests else "no pair of that id"
                raise BadDatabase(f"{path} holds a verdict on {verdict.id!r}, but the file of pairs has {what}.")
            yield verdict


def _connect(path: Path, task: Task) -> sqlite3.Connection:
    # One lock of the caller's orders the threads of the server.
    connection = sqlite3.connect(path, timeout=1.0, check_same_thread=False)
    try:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = FULL")
        # Takes the lock, which is held until the connection is closed.
        connection.execute("BEGIN EXCLUSIVE")
        if connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,):
            first = "first TEXT NOT NULL,\n    " * task.is_blind
            connection.execute(SCHEMA.format(verdicts=", ".join(map(repr, task.verdicts)), first=first))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSIONS[task.name]}")
        made_for = tuple(
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if made_for != (APPLICATION_ID, SCHEMA_VERSIONS[task.name]):
            names = {(APPLICATION_ID, version): name for name, version in SCHEMA_VERSIONS.items()}
            of_what = f"one of --task {names[made_for]}" if made_for in names else "not one of verdicts of this version"
            raise BadDatabase(f"{path} is a database, but {of_what}.")
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def _explanation(path: Path, error: sqlite3.Error) -> str:
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return f"{path} is in use by another process."
    return f"{path} can't be opened as a database: {error}."


def _digest(pair: Pair) -> str:
    """Return what tells whether a pair still has the image and the captions that were judged."""
    theirs = [pair.theirs] if isinstance(pair, Comparison) else []
    shown = "\0".join((pair.filename, pair.caption, pair.negative_caption, *theirs))
    return hashlib.sha256(shown.encode()).hexdigest()
