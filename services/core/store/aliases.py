"""Aliases: small objects that name a version, moved so that no move is lost."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Self

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from services.core.store.errors import AliasMoved, CorruptCheckpoint, NotFoundInStore, StoreUnavailable
from services.core.store.manifest import NAME_PATTERN, VERSION_ID_PATTERN
from services.core.store.objects import ConditionFailed, ConditionUnsupported, Objects, StoredObject
from services.core.store.writers import Turn

MAX_PREVIOUS = 20

log = structlog.get_logger(__name__)

VersionId = Annotated[str, Field(pattern=f"^{VERSION_ID_PATTERN.pattern}$")]


class Alias(BaseModel):
    """An alias and its version; `previous` holds the versions before it, newest first, at most MAX_PREVIOUS.

    `move` identifies a move, so that a writer whose connection broke can see whether its own arrived.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: VersionId
    previous: tuple[VersionId, ...] = ()
    updated: datetime = Field(default_factory=lambda: datetime.now(UTC))
    move: str = Field(default_factory=lambda: uuid.uuid4().hex)

    @classmethod
    def pointing_to(cls, version: str, before: Self | None) -> Self:
        if before is None:
            return cls(version=version)
        return cls(version=version, previous=(before.version, *before.previous)[:MAX_PREVIOUS])

    @classmethod
    def pointing_back(cls, before: Self) -> Self:
        """Return the alias rolled back to the version before; rolling back again goes back further."""
        return cls(version=before.previous[0], previous=before.previous[1:])


# Maps an alias (None: there is none) to what it should become; raises to leave it unchanged.
Move = Callable[[Alias | None], Alias]


class Aliases:
    """The aliases of all models. `move` must be called inside the writer's turn on the model."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._has_conditional_puts: bool | None = None

    def read(self, name: str, alias: str) -> Alias:
        """Read an alias. Raises NotFoundInStore, CorruptCheckpoint."""
        return _parse(name, alias, self._objects.read(_key(name, alias)))

    def read_all(self, name: str) -> dict[str, Alias]:
        return {alias: self.read(name, alias) for alias in self.names(name)}

    def names(self, name: str) -> list[str]:
        # anything else was put there by other means
        return [one for one in self._objects.children(f"models/{name}/aliases") if NAME_PATTERN.fullmatch(one)]

    def move(self, name: str, alias: str, move: Move, turn: Turn) -> Alias:
        """Apply `move` to what the alias is now; returns what it became.

        Raises what `move` raises, and AliasMoved where another writer changed it in between.
        """
        before, e_tag = self._read_with_tag(name, alias)
        after = move(before)
        if after is before:
            return after
        body = after.model_dump_json().encode()
        turn.check()
        try:
            self._put(_key(name, alias), body, e_tag)
        except (ConditionFailed, StoreUnavailable):
            # Either another writer was faster, or our own put arrived and its answer was lost.
            found, _ = self._read_with_tag(name, alias)
            if found is None or found.move != after.move:
                if found == before:
                    raise
                raise AliasMoved(
                    f"{name}@{alias}",
                    expected=before.version if before else None,
                    found=found.version if found else None,
                ) from None
        log.info("alias moved", model=name, alias=alias, version=after.version, previous=after.previous[:1])
        return after

    def has_conditional_puts(self) -> bool:
        """Whether the store honours conditional puts, tried once on objects of our own and logged.

        Some servers silently overwrite (rclone), some answer "not implemented" (Swift), and a local folder has no
        etags to compare: there only the writers' turns keep moves apart.
        """
        if self._has_conditional_puts is None:
            if self._objects.root is not None:
                return False
            verdict = _probe(self._objects)
            self._has_conditional_puts = verdict == "honoured"
            log.info(
                "conditional puts tried",
                store=self._objects.label,
                verdict=verdict,
                guarded_by="etags and claims" if self._has_conditional_puts else "claims alone",
            )
        return self._has_conditional_puts

    def _put(self, key: str, body: bytes, e_tag: str | None) -> None:
        if not self.has_conditional_puts():
            self._objects.write(key, [body], len(body))
        elif e_tag is None:
            self._objects.create(key, body)
        else:
            self._objects.replace(key, body, e_tag)

    def _read_with_tag(self, name: str, alias: str) -> tuple[Alias | None, str | None]:
        try:
            stored = self._objects.read(_key(name, alias))
        except NotFoundInStore:
            return None, None
        return _parse(name, alias, stored), stored.e_tag


def _probe(objects: Objects) -> str:
    """Return `honoured`, `ignored` or `refused`. Raises StoreUnavailable where the store can't be reached."""
    key = f"probes/{uuid.uuid4().hex}"
    try:
        objects.write(key, [b"first"], 5)
        first = objects.read(key)
        if not _is_refused(lambda: objects.create(key, b"created over")):
            return "ignored"
        objects.write(key, [b"second"], 6)
        second = objects.read(key)
        if not _is_refused(lambda: objects.replace(key, b"replaced", first.e_tag or "")):
            return "ignored"
        objects.replace(key, b"third", second.e_tag or "")
        return "honoured" if objects.read(key).body == b"third" else "ignored"
    except (ConditionUnsupported, ConditionFailed):
        return "refused"
    finally:
        objects.delete([key])


def _is_refused(write: Callable[[], None]) -> bool:
    try:
        write()
    except ConditionFailed:
        return True
    return False


def _parse(name: str, alias: str, stored: StoredObject) -> Alias:
    try:
        return Alias.model_validate_json(stored.body)
    except ValidationError as error:
        raise CorruptCheckpoint(
            f"{name}@{alias}", "alias", expected="a JSON object with a version", found=repr(stored.body[:40])
        ) from error


def _key(name: str, alias: str) -> str:
    return f"models/{name}/aliases/{alias}"
