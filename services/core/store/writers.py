"""One writer at a time for each model: publishers, promoters and the garbage collector exclude each other.

A local store uses a file lock, which the system drops with the process that holds it.

A remote store uses claims, which need only that the next listing shows a finished put (S3, Google Cloud Storage, Azure
and in-memory stores guarantee it):

    put my claim → list all claims → alone: I am the writer; not alone: remove mine, wait at random, again.

Of two writers at least one lists after both claims were put, so it sees the other and withdraws: two can't both be
alone. Exclusion does not depend on time, which only frees the model from a writer that died: a claim older than its
life, by the store's clock, counts as gone. So a writer must stop before its claim can expire, and `Turn.check`, called
before every write, stops it at half of that. The remaining risk is a write that reaches the store more than the other
half after that check, because the writer was suspended or the network delayed the request; where the store honours
conditional puts, they refuse it for an alias, and only aliases are ever overwritten with other content.
"""

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import stamina

from services.core.durable_files import make_folder_durably
from services.core.store.errors import StoreUnavailable
from services.core.store.objects import Entry, Objects

CLAIM_LIFE_S = 60.0
# Seconds that a writer waits for its turn; longer than the life of a claim, so that a dead writer's can't block it.
PATIENCE_S = 90.0


@dataclass(frozen=True)
class Turn:
    """A writer's turn on one model, good until `deadline` on the clock of `_now_s`."""

    name: str
    deadline: float

    def check(self) -> None:
        """Raises StoreUnavailable where the turn has lasted so long that another writer's might begin."""
        if _now_s() > self.deadline:
            raise StoreUnavailable(f"writing to {self.name} took longer than a writer's turn; try again")


class _Busy(Exception):
    """Another writer has the model."""


@dataclass(frozen=True)
class Writers:
    """The kind of exclusion that suits the store. A claim is valid for `claim_life_s` seconds."""

    objects: Objects
    claim_life_s: float = CLAIM_LIFE_S
    patience_s: float = PATIENCE_S

    def turn(self, name: str) -> AbstractContextManager[Turn]:
        """Wait for and hold the turn on a model. Entering raises StoreUnavailable when `patience_s` is over."""
        if self.objects.root is not None:
            return _file_lock(self.objects.root / "locks" / name, name, self.patience_s)
        return _claim(self, name)


@contextmanager
def _file_lock(path: Path, name: str, patience_s: float) -> Iterator[Turn]:
    try:
        make_folder_durably(path.parent)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    try:
        _lock(descriptor, path, name, patience_s)
        yield Turn(name, deadline=float("inf"))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, name: str, patience_s: float) -> None:
    try:
        for attempt in _attempts(patience_s, on=BlockingIOError):
            with attempt:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreUnavailable(f"another writer has held {name} for {patience_s:g} s ({path})") from error
    except OSError as error:
        raise StoreUnavailable(f"{path} can't be locked: {error.strerror}") from error


@contextmanager
def _claim(writers: Writers, name: str) -> Iterator[Turn]:
    objects, life_s = writers.objects, writers.claim_life_s
    key = f"claims/{name}/{uuid.uuid4().hex}"
    body = json.dumps({"pid": os.getpid()}).encode()
    try:
        for attempt in _attempts(writers.patience_s, on=_Busy):
            with attempt:
                turn = Turn(name, deadline=_now_s() + life_s / 2)
                objects.write(key, [body], len(body))
                if not _is_alone(objects, key, life_s):
                    objects.delete([key])
                    raise _Busy
        yield turn
    except _Busy as error:
        raise StoreUnavailable(f"other writers have held {name} for {writers.patience_s:g} s") from error
    finally:
        # A claim that stays behind only delays the next writer until it expires.
        with suppress(StoreUnavailable):
            objects.delete([key])


def _is_alone(objects: Objects, key: str, life_s: float) -> bool:
    """Whether the claim `key` is the only live one; expired ones are removed on the way."""
    claims = {entry.key: entry for entry in objects.entries(key.rsplit("/", 1)[0])}
    mine = claims.pop(key, None)
    if mine is None:
        return False
    expired = [claim for claim in claims.values() if _has_expired(claim, mine, life_s)]
    objects.delete(claim.key for claim in expired)
    return len(expired) == len(claims)


def _has_expired(claim: Entry, mine: Entry, life_s: float) -> bool:
    """Whether a claim has expired by the store's clock, whose present is the time of our own claim, just written."""
    return mine.modified - claim.modified > timedelta(seconds=life_s)


def _attempts(timeout_s: float, on: type[Exception]) -> Iterable[stamina.Attempt]:
    return stamina.retry_context(
        on=on, attempts=None, timeout=timeout_s, wait_initial=0.02, wait_max=1.0, wait_jitter=0.2
    )


def _now_s() -> float:
    """Return a time in seconds that also passes while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
