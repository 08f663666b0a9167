"""Garbage collection: old versions, aborted uploads, and leftovers of writers that died."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import structlog

from services.core.store.aliases import Alias, Aliases
from services.core.store.objects import Objects
from services.core.store.versions import Versions
from services.core.store.writers import Writers

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Removal:
    """A version's folder that is removed, or would be in a dry run."""

    name: str
    version: str
    reason: Literal["unused", "incomplete"]
    size_bytes: int


@dataclass(frozen=True)
class GarbageCollector:
    """Keeps, of each model: versions that an alias names or would roll back to, the newest `keep` versions, and
    everything younger than `grace_s`, which must exceed the longest pause between two files of an upload.
    """

    objects: Objects
    versions: Versions
    aliases: Aliases
    writers: Writers
    keep: int
    grace_s: float

    def find(self, name: str) -> list[Removal]:
        """Return what could be removed now. Raises StoreUnavailable, and CorruptCheckpoint for an unreadable alias."""
        needed = _needed(self.aliases.read_all(name).values())
        complete, uploads = self.versions.list(name)
        unused = [version for version in complete[self.keep :] if version.id not in needed]
        youngest = datetime.now(UTC) - timedelta(seconds=self.grace_s)
        return [
            *(Removal(name, v.id, "unused", v.size_bytes) for v in unused if v.published < youngest),
            *(Removal(name, u.id, "incomplete", u.size_bytes) for u in uploads if u.last_written < youngest),
        ]

    def remove(self, removal: Removal) -> bool:
        """Remove a version's folder if it is still unused, in a turn of its own, so that publishers wait little."""
        with self.writers.turn(removal.name) as turn:
            if removal not in self.find(removal.name):
                return False
            turn.check()
            self.versions.remove(removal.name, removal.version)
        log.info("version removed", model=removal.name, version=removal.version, reason=removal.reason)
        return True

    def sweep(self) -> None:
        """Drop claims and probes of writers that died, and half-written local files."""
        oldest = datetime.now(UTC) - timedelta(seconds=self.grace_s)
        for prefix in ("claims", "probes"):
            entries = self.objects.entries(prefix)
            self.objects.delete(entry.key for entry in entries if entry.modified < oldest)
        self.objects.delete_half_written(oldest)


def _needed(aliases: Iterable[Alias]) -> set[str]:
    return {version for alias in aliases for version in (alias.version, *alias.previous[:1])}
