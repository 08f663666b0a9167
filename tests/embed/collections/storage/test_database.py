"""One writer and some readers share a file: no reader sees a transaction before it ends, or waits for one."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.embed.collections.storage.database import MAX_READERS, Database, DatabaseFailed, StorageFull
from tests.embed.collections.small_disk import mounted_disk


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database.create(tmp_path / "numbers", 1, [("CREATE TABLE numbers (number INTEGER UNIQUE)", ())])
    yield database
    database.close()


def numbers(database: Database) -> list[int]:
    with database.reading() as connection:
        return [number for (number,) in connection.execute("SELECT number FROM numbers ORDER BY number")]


def put(database: Database, *values: int) -> None:
    with database.transaction() as connection:
        connection.executemany("INSERT INTO numbers VALUES (?)", [(value,) for value in values])


def test_readers_see_a_transaction_when_it_has_ended_and_do_not_wait_for_that(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute("INSERT INTO numbers VALUES (1)")
        assert numbers(database) == []
    assert numbers(database) == [1]


def test_a_transaction_that_raises_changes_nothing_and_the_next_one_works(database: Database) -> None:
    with pytest.raises(KeyError), database.transaction() as connection:
        connection.execute("INSERT INTO numbers VALUES (1)")
        raise KeyError
    with pytest.raises(sqlite3.IntegrityError):
        put(database, 2, 3, 3)
    put(database, 4)
    assert numbers(database) == [4]


def test_one_transaction_runs_at_a_time(database: Database) -> None:
    def count_up(_: int) -> None:
        with database.transaction() as connection:
            (highest,) = connection.execute("SELECT coalesce(max(number), 0) FROM numbers").fetchone()
            connection.execute("INSERT INTO numbers VALUES (?)", (highest + 1,))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count_up, range(40)))
    assert numbers(database) == list(range(1, 41))


def test_more_readers_than_connections_take_turns(database: Database) -> None:
    put(database, 1)
    with ThreadPoolExecutor(3 * MAX_READERS) as pool:
        assert list(pool.map(lambda _: numbers(database), range(100))) == [[1]] * 100


def test_closing_lets_reads_and_writes_end_that_have_begun(database: Database, tmp_path: Path) -> None:
    put(database, 1)
    with database.reading() as reader, database.transaction() as writer:
        closing = threading.Thread(target=database.close)
        closing.start()
        writer.execute("INSERT INTO numbers VALUES (2)")
        assert reader.execute("SELECT count(*) FROM numbers").fetchone() == (1,)
    closing.join()
    # SQLite removes the log with the last connection
    assert [path.name for path in tmp_path.iterdir()] == ["numbers"]
    with pytest.raises(RuntimeError, match="closed"):
        numbers(database)
    with pytest.raises(RuntimeError, match="closed"):
        put(database, 3)


def test_a_file_is_made_as_a_whole_or_refused_later(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        Database.create(tmp_path / "broken", 1, [("CREATE TABLE fine (x)", ()), ("CREATE NONSENSE", ())])
    with pytest.raises(RuntimeError, match="never finished"):
        Database.open(tmp_path / "broken", 1)


def test_a_transaction_that_fills_the_disk_changes_nothing_and_later_ones_work(tmp_path: Path) -> None:
    with mounted_disk(tmp_path / "disk") as disk:
        database = Database.create(disk / "file", 1, [("CREATE TABLE numbers (number)", ())])
        put(database, 1)
        database.check_room(100_000)
        with pytest.raises(StorageFull):
            database.check_room(1_000_000)
        with pytest.raises(StorageFull), database.transaction() as connection:
            connection.execute("UPDATE numbers SET number = 2")
            connection.execute("INSERT INTO numbers VALUES (zeroblob(2000000))")
        assert numbers(database) == [1]
        put(database, 3)
        assert numbers(database) == [1, 3]
        database.close()


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("damage", [Path.unlink, replaced])
@pytest.mark.parametrize("name", ["numbers", "numbers-wal"])
def test_nothing_is_written_to_or_read_from_a_file_that_is_gone(
    database: Database, tmp_path: Path, damage: Callable[[Path], None], name: str
) -> None:
    """A write would be acknowledged, and could never be read again."""
    put(database, 1)
    damage(tmp_path / name)
    for use in (lambda: put(database, 2), lambda: numbers(database), database.give_back):
        with pytest.raises(DatabaseFailed) as raised:
            use()
        assert str(tmp_path) in raised.value.reason
        assert not raised.value.is_partial


def test_a_damaged_page_is_told_from_a_file_that_is_none(tmp_path: Path) -> None:
    database = Database.create(tmp_path / "numbers", 1, [("CREATE TABLE numbers (number INTEGER UNIQUE)", ())])
    put(database, *range(5000))
    database.close()
    data = (tmp_path / "numbers").read_bytes()
    (tmp_path / "numbers").write_bytes(data[:8192] + b"\xff" * (len(data) - 8192))
    database = Database.open(tmp_path / "numbers", 1)
    with pytest.raises(DatabaseFailed) as raised:
        numbers(database)
    assert raised.value.is_partial
    database.close()
    (tmp_path / "numbers").write_bytes(b"something else" * 1000)
    with pytest.raises(DatabaseFailed) as raised:
        Database.open(tmp_path / "numbers", 1)
    assert not raised.value.is_partial


def test_free_pages_are_given_back_in_steps_and_what_is_left_stays(database: Database, tmp_path: Path) -> None:
    with database.transaction() as connection:
        connection.execute("CREATE TABLE blobs (number INTEGER PRIMARY KEY, content BLOB)")
        connection.executemany("INSERT INTO blobs VALUES (?, randomblob(20000))", [(n,) for n in range(500)])
    with database.transaction() as connection:
        connection.execute("DELETE FROM blobs WHERE number % 5")
        connection.execute("INSERT INTO numbers SELECT sum(length(content)) FROM blobs")
    assert database.give_back() > 0
    assert (tmp_path / "numbers").stat().st_size < 2_500_000
    assert (tmp_path / "numbers-wal").stat().st_size == 0
    assert numbers(database) == [100 * 20000]
    assert database.give_back() == 0
