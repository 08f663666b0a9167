"""The model store: immutable versions and moving aliases on any object store.

    models/<name>/versions/<id>/…            files of a version, never changed
    models/<name>/versions/<id>/manifest.json   written last: a folder without one is not a version
    models/<name>/aliases/<alias>            the version that an alias names, and the ones before

Guarantees, also if a writer is killed or loses power between any two writes:

- An alias that exists names a complete version. It is moved after the version's manifest was written, and the garbage
  collector, which takes turns with all writers, keeps what aliases name and what a rollback would.
- Of two writers that move one alias, the second sees what the first wrote (`services.core.store.writers`).
- Loaded files are those that were published: every file, and the manifest itself, is checked against its digest.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Literal, Self

import stamina
import structlog

from services.core.refusals import did_you_mean
from services.core.settings import DEFAULT_CHECKPOINT_CACHE_BYTES
from services.core.store.aliases import Alias, Aliases
from services.core.store.checkpoint_files import (
    CheckpointDescription,
    CheckpointFile,
    packaged_starters,
    read_checkpoint_directory,
    read_description,
)
from services.core.store.errors import (
    AliasMoved,
    CorruptCheckpoint,
    InvalidCheckpoint,
    NotFoundInStore,
    StoreUnavailable,
)
from services.core.store.manifest import (
    CheckpointInfo,
    Manifest,
    check_alias,
    check_model_name,
    is_version_id,
)
from services.core.store.objects import Objects
from services.core.store.versions import Version, Versions, copy_verified, fetch_verified
from services.core.store.writers import CLAIM_LIFE_S, Turn, Writers

log = structlog.get_logger(__name__)

UPLOAD_ATTEMPTS = 3
DEFAULT_KEEP = 5
DEFAULT_GRACE_S = 24 * 3600.0


@dataclass(frozen=True)
class Removal:
    """A version's folder that is removed, or would be in a dry run."""

    name: str
    version: str
    reason: Literal["unused", "incomplete"]
    size_bytes: int


class Anywhere:
    """The type of ANYWHERE, for callers that do not care where an alias points."""


ANYWHERE: Final = Anywhere()


class _UploadLost(StoreUnavailable):
    """Files vanished between their upload and the manifest: a collector took them for an aborted upload."""


class Store:
    """A model store. Methods block; an async caller runs them in a thread. Any may raise StoreUnavailable."""

    def __init__(self, objects: Objects, *, claim_life_s: float = CLAIM_LIFE_S) -> None:
        self._objects = objects
        self._versions = Versions(objects)
        self._aliases = Aliases(objects)
        self._writers = Writers(objects, claim_life_s)

    @classmethod
    def open(cls, url: str, *, options: Mapping[str, str] | None = None, claim_life_s: float = CLAIM_LIFE_S) -> Self:
        """Open the store at `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or `memory://`.

        `options` are obstore's (`endpoint`, `region`, `access_key_id`, …) and win over the same ones in the
        URL's query (`s3://bucket?endpoint=http://…`), which must hold no secrets. Nothing is read or written.
        """
        return cls(Objects(url, options or {}), claim_life_s=claim_life_s)

    @property
    def label(self) -> str:
        """The URL without its query."""
        return self._objects.label

    def publish(self, name: str, directory: Path, info: CheckpointInfo, *, alias: str | None = "latest") -> Version:
        """Publish a folder as a version, then point `alias` at it (None: no alias).

        Equal content has an equal id: publishing it again leaves the version as it is, mends it where stored
        bytes were damaged, and moves the alias. Raises InvalidCheckpoint for what the store does not accept.
        """
        check_model_name(name)
        if alias is not None:
            check_alias(alias)
        files = read_checkpoint_directory(directory)
        manifest = Manifest.describe(name, info, {file.path: file.stored for file in files})
        for attempt in stamina.retry_context(on=_UploadLost, attempts=UPLOAD_ATTEMPTS):
            with attempt:
                self._upload(manifest, files)
                with self._writers.turn(name) as turn:
                    self._complete(manifest, turn)
                    if alias is not None:
                        self._point(name, manifest.version, alias, ANYWHERE, turn)
        return Version(name, manifest.version, manifest.created, manifest.size_bytes, len(files))

    def names(self) -> list[str]:
        return self._versions.names()

    def versions(self, name: str) -> list[Version]:
        """Return the complete versions, newest first; none for a model that does not exist."""
        return self._versions.list(check_model_name(name))[0]

    def aliases(self, name: str) -> dict[str, Alias]:
        return self._aliases.read_all(check_model_name(name))

    def resolve(self, name: str, alias_or_version: str = "latest") -> str:
        """Return the version id that an alias names, or the id itself if it exists. Raises NotFoundInStore."""
        check_model_name(name)
        if is_version_id(alias_or_version):
            if not self._versions.exists(name, alias_or_version):
                told = f"{name} has no version {alias_or_version}"
                raise NotFoundInStore(self._lacks(name, told, alias_or_version))
            return alias_or_version
        try:
            return self._aliases.read(name, check_alias(alias_or_version)).version
        except NotFoundInStore:
            told = f"{name} has no alias {alias_or_version!r} in {self.label}"
            raise NotFoundInStore(self._lacks(name, told, alias_or_version)) from None

    def _lacks(self, name: str, told: str, wanted: str) -> str:
        """Say that there is no such model, or `told` of one that there is, and ask for the nearest name."""
        with suppress(StoreUnavailable):
            names = {*self.names(), *(starter.name for starter in packaged_starters())}
            if name not in names:
                return f"there is no model {name!r} in {self.label}{did_you_mean(name, names)}"
            return told + did_you_mean(wanted, self._aliases.names(name))
        return told

    def manifest(self, name: str, version: str) -> Manifest:
        """Read a version's manifest. Raises NotFoundInStore, CorruptCheckpoint."""
        return self._versions.manifest(check_model_name(name), version)

    def read_file(self, manifest: Manifest, path: str) -> bytes:
        """Read one small file of a version, such as its `config.json`. Raises CorruptCheckpoint."""
        return b"".join(self._versions.read_file(manifest, path))

    def fetch(self, name: str, version: str, cache_dir: Path, max_bytes: int = DEFAULT_CHECKPOINT_CACHE_BYTES) -> Path:
        """Return a verified local copy, see `fetch_verified`. Raises NotFoundInStore, CorruptCheckpoint."""
        return fetch_verified(self._versions, name, version, cache_dir, max_bytes)

    def copy(self, name: str, version: str, folder: Path) -> None:
        """Copy a version to a folder, see `copy_verified`. Raises NotFoundInStore, CorruptCheckpoint."""
        copy_verified(self._versions, name, version, folder)

    def verify(self, name: str, version: str) -> Manifest:
        """Read every stored byte of a version. Raises CorruptCheckpoint, NotFoundInStore."""
        return self._versions.verify(check_model_name(name), version)

    def promote(self, name: str, version: str, alias: str, *, expected: str | Anywhere | None = ANYWHERE) -> None:
        """Point `alias` at a complete version.

        With `expected` (a version id, or None for "must not exist yet") only if it is there now, else AliasMoved.
        Raises NotFoundInStore, and CorruptCheckpoint for a version whose manifest is damaged.
        """
        check_alias(alias)
        self.manifest(name, version)
        with self._writers.turn(name) as turn:
            self._point(name, version, alias, expected, turn)

    def rollback(self, name: str, alias: str, *, expected: str | Anywhere | None = ANYWHERE) -> str:
        """Point `alias` at the version before; returns its id. Raises NotFoundInStore where there is none."""
        check_alias(alias)
        self.resolve(name, alias)

        def back(before: Alias | None) -> Alias:
            _check_expected(f"{name}@{alias}", before, expected)
            if before is None or not before.previous:
                raise NotFoundInStore(f"{name}@{alias} has no previous version")
            self.manifest(name, before.previous[0])
            return Alias.pointing_back(before)

        with self._writers.turn(name) as turn:
            return self._aliases.move(name, alias, back, turn).version

    def gc(self, *, keep: int = DEFAULT_KEEP, grace_s: float = DEFAULT_GRACE_S, dry_run: bool = True) -> list[Removal]:
        """Remove unused versions and aborted uploads; returns those, or in a dry run would.

        Of each model are kept: versions that an alias names or would roll back to, the newest `keep` (at least one),
        and everything younger than `grace_s`, which must exceed the longest pause between two files of an upload.
        """
        found = [removal for name in self.names() for removal in self._unused(name, keep, grace_s)]
        if dry_run:
            return found
        removed = [removal for removal in found if self._remove(removal, keep, grace_s)]
        # claims and probes of writers that died, and half-written local files
        oldest = datetime.now(UTC) - timedelta(seconds=grace_s)
        for prefix in ("claims", "probes"):
            entries = self._objects.entries(prefix)
            self._objects.delete(entry.key for entry in entries if entry.modified < oldest)
        self._objects.delete_half_written(oldest)
        return removed

    def publish_starters(self, directories: Iterable[Path]) -> None:
        """Publish each of these folders (see `CheckpointDescription`) whose aliases are missing.

        Any number of processes may do so at once, and the next one completes what a killed one left. A store that can't
        be written, or reached, is left as it is, with a warning. Raises InvalidCheckpoint for a starter that can't be
        published.
        """
        try:
            for directory in directories:
                self._publish_starter(directory, read_description(directory))
        except StoreUnavailable as error:
            log.warning("starter checkpoints not published", store=self.label, error=str(error))

    def lacks(self, directory: Path) -> bool:
        """Whether the store does not hold a starter's folder as it is now, such as after an upgrade."""
        description = read_description(directory)
        files = {file.path: file.stored for file in read_checkpoint_directory(directory)}
        version = Manifest.describe(description.name, description.info(), files).version
        return not self._versions.exists(description.name, version)

    def _publish_starter(self, directory: Path, description: CheckpointDescription) -> None:
        missing = [alias for alias in description.aliases if alias not in self.aliases(description.name)]
        if not missing:
            if self.lacks(directory):
                cure = f"fovea store publish {directory}"
                log.warning("another starter is packaged", model=description.name, cure=cure)
            return
        version = self.publish(description.name, directory, description.info(), alias=None)
        for alias in missing:
            # An alias that another process has set meanwhile is left as it is.
            with suppress(AliasMoved):
                self.promote(description.name, version.id, alias, expected=None)

    def _unused(self, name: str, keep: int, grace_s: float) -> list[Removal]:
        """Return what could be removed now. Raises CorruptCheckpoint for an unreadable alias."""
        aliases = self._aliases.read_all(name).values()
        needed = {version for alias in aliases for version in (alias.version, *alias.previous[:1])}
        complete, uploads = self._versions.list(name)
        unused = [version for version in complete[max(keep, 1) :] if version.id not in needed]
        youngest = datetime.now(UTC) - timedelta(seconds=grace_s)
        return [
            *(Removal(name, v.id, "unused", v.size_bytes) for v in unused if v.published < youngest),
            *(Removal(name, u.id, "incomplete", u.size_bytes) for u in uploads if u.last_written < youngest),
        ]

    def _remove(self, removal: Removal, keep: int, grace_s: float) -> bool:
        """Remove a version's folder if it is still unused, in a turn of its own, so that publishers wait little."""
        with self._writers.turn(removal.name) as turn:
            if removal not in self._unused(removal.name, keep, grace_s):
                return False
            turn.check()
            self._versions.remove(removal.name, removal.version)
        log.info("version removed", model=removal.name, version=removal.version, reason=removal.reason)
        return True

    def _upload(self, manifest: Manifest, files: Sequence[CheckpointFile]) -> None:
        try:
            self._versions.verify(manifest.name, manifest.version)
        except (NotFoundInStore, CorruptCheckpoint):
            try:
                for file in files:
                    self._versions.upload(manifest, file)
            except NotFoundInStore as error:
                raise _UploadLost(str(error)) from error

    def _complete(self, manifest: Manifest, turn: Turn) -> None:
        """Write the manifest unless it is there; this model's files can't be removed meanwhile."""
        if not self._versions.is_uploaded(manifest):
            raise _UploadLost(f"files of {manifest.name}@{manifest.version} disappeared during publication")
        try:
            existing = self._versions.manifest(manifest.name, manifest.version)
        except (NotFoundInStore, CorruptCheckpoint):
            turn.check()
            self._versions.write_manifest(manifest)
            log.info("version published", model=manifest.name, version=manifest.version)
            return
        if existing.digest != manifest.digest:
            raise InvalidCheckpoint(
                f"another content already has the id {manifest.version}: change something, e.g. the seed"
            )

    def _point(self, name: str, version: str, alias: str, expected: str | Anywhere | None, turn: Turn) -> None:
        def forward(before: Alias | None) -> Alias:
            _check_expected(f"{name}@{alias}", before, expected)
            if before is not None and before.version == version:
                return before
            # Checked again, now that it can't be removed any more.
            self.manifest(name, version)
            return Alias.pointing_to(version, before)

        self._aliases.move(name, alias, forward, turn)


def _check_expected(alias: str, before: Alias | None, expected: str | Anywhere | None) -> None:
    found = before.version if before is not None else None
    if not isinstance(expected, Anywhere) and found != expected:
        raise AliasMoved(alias, expected=expected, found=found)
