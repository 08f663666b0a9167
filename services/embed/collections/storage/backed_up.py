"""All collections of all tenants as a backup reads them, alike for both kinds of storage."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.embed.collections.storage.database import IncompatibleDatabase, open_beside
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.image_store import (
    IMAGE_COLUMNS,
    Access,
    CollectionInfo,
    StoredCondition,
    StoredImage,
    stored_image,
)
from services.embed.collections.storage.sqlite_store import DATABASE_NAME, SCHEMA_VERSION

# Contents looked up at a time, and read at a time.
PAGE = 1000


@dataclass(frozen=True)
class Content:
    """The bytes of images: `place` is known to who has listed them."""

    digest: str
    place: Any


@dataclass(frozen=True)
class CollectionAsOf:
    """A collection at one moment; `images` are in order of their ids."""

    tenant: str
    info: CollectionInfo
    access: Access
    conditions: Sequence[StoredCondition]
    images: Iterator[tuple[StoredImage, Content]]


class BackedUp(Protocol):
    """All collections while others change them. Methods raise Overloaded while they can't be read."""

    kind: str

    def contents(self) -> Iterator[list[Content]]:
        """List the bytes that are there now; what is added or removed meanwhile may be in it or not."""
        ...

    def snapshot(self) -> AbstractContextManager[Iterator[CollectionAsOf]]:
        """Open the collections as of a moment, each to be read before the next one."""
        ...

    def read(self, contents: Sequence[Content]) -> list[bytes | None]:
        """Read bytes that were just listed, None for those that are gone."""
        ...

    def close(self) -> None: ...


class FolderBackedUp(BackedUp):
    """The collections in a folder, also while a process has them open. Each is read as of a moment of its own."""

    kind = "local"

    def __init__(self, root: Path) -> None:
        self._catalog = FolderCatalog.beside(root)

    def close(self) -> None:
        self._catalog.close()

    def contents(self) -> Iterator[list[Content]]:
        for tenant, name in self._names():
            with closing(self._connect(tenant, name)) as connection:
                last = 0
                while found := connection.execute(
                    "SELECT content, digest FROM contents WHERE content > ? ORDER BY content LIMIT ?", (last, PAGE)
                ).fetchall():
                    last = found[-1][0]
                    yield [Content(digest, (connection, number)) for number, digest in found]

    @contextmanager
    def snapshot(self) -> Iterator[Iterator[CollectionAsOf]]:
        yield self._as_of()

    def read(self, contents: Sequence[Content]) -> list[bytes | None]:
        found = []
        for content in contents:
            connection, number = content.place
            record = connection.execute(
                "SELECT data FROM contents WHERE content = ? AND digest = ?", (number, content.digest)
            ).fetchone()
            found.append(bytes(record[0]) if record else None)
        return found

    def _as_of(self) -> Iterator[CollectionAsOf]:
        for tenant, name in self._names():
            with closing(self._connect(tenant, name)) as connection:
                connection.execute("BEGIN")
                *info, access = connection.execute("SELECT name, model, created, access FROM collection").fetchone()
                conditions = connection.execute("SELECT text, is_pinned, used FROM conditions ORDER BY rowid")
                yield CollectionAsOf(
                    tenant,
                    CollectionInfo(*info),
                    access,
                    [StoredCondition(text, bool(is_pinned), used) for text, is_pinned, used in conditions],
                    _images(connection),
                )

    def _names(self) -> Iterator[tuple[str, str]]:
        for tenant in self._catalog.tenants():
            for name in self._catalog.names(tenant):
                yield tenant, name

    def _connect(self, tenant: str, name: str) -> sqlite3.Connection:
        path = self._catalog.folder(name, tenant) / DATABASE_NAME
        connection = open_beside(path)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != SCHEMA_VERSION:
            connection.close()
            raise IncompatibleDatabase(
                f"{path} has schema version {version}, not {SCHEMA_VERSION}: start the service of this version once."
            )
        return connection


def _images(connection: sqlite3.Connection) -> Iterator[tuple[StoredImage, Content]]:
    found = connection.execute(f"SELECT content, {IMAGE_COLUMNS} FROM images JOIN contents USING (content) ORDER BY id")
    for number, *record in found:
        image = stored_image(tuple(record))
        yield image, Content(image.digest, (connection, number))
