"""A store in a folder: one file, which is refused if this version can't read all of it."""

import sqlite3
from pathlib import Path

import pytest

from services.embed.collections.storage.database import IncompatibleDatabase
from services.embed.collections.storage.sqlite_store import DATABASE_NAME, SqliteImageStore
from tests.embed.collections.stored import INFO, LIMITS, everything, new_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "collection"


def test_there_is_one_store_in_a_folder(folder: Path, tmp_path: Path) -> None:
    SqliteImageStore.create(folder, INFO).close()
    with pytest.raises(FileExistsError):
        SqliteImageStore.create(folder, INFO)
    with pytest.raises(FileNotFoundError):
        SqliteImageStore.open(tmp_path)


def test_a_store_of_a_newer_version_is_refused_and_left_as_it_is(folder: Path) -> None:
    SqliteImageStore.create(folder, INFO).close()
    connection = sqlite3.connect(folder / DATABASE_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(IncompatibleDatabase, match=r"schema version 99.*newer"):
        SqliteImageStore.open(folder)


def test_a_store_of_an_older_version_is_brought_up_to_date_with_all_that_it_holds(folder: Path) -> None:
    store = SqliteImageStore.create(folder, INFO)
    store.add([new_image("a", b"1", {"x": 1})], LIMITS)
    before = everything(store)
    store.close()
    connection = sqlite3.connect(folder / DATABASE_NAME, isolation_level=None)
    connection.execute("ALTER TABLE collection DROP COLUMN access")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    for _ in range(2):
        store = SqliteImageStore.open(folder)
        assert everything(store) == before
        assert (store.info, store.access()) == (INFO, "open")
        store.close()


def test_a_store_whose_making_was_broken_off_is_refused(folder: Path) -> None:
    folder.mkdir()
    (folder / DATABASE_NAME).touch()
    with pytest.raises(IncompatibleDatabase, match="never finished"):
        SqliteImageStore.open(folder)


def test_a_closed_store_fails_and_closes_again(folder: Path) -> None:
    store = SqliteImageStore.create(folder, INFO)
    store.close()
    store.close()
    for use in (store.size, store.rows, lambda: store.add([new_image("a", b"1")], LIMITS)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
