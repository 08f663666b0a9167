"""Several processes share collections in PostgreSQL: none loses what another has stored, or does what it has done."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.resources import files
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from services.core.errors import NotFound, TooLarge
from services.core.store.errors import StoreUnavailable
from services.core.store.objects import Objects
from services.embed.collections.storage.database import DatabaseFailed, IncompatibleDatabase
from services.embed.collections.storage.image_store import CollectionInfo, NewImage
from tests.embed.collections.adding_and_deleting import Known, add_and_delete, checked
from tests.embed.collections.killed_process import NUM_KILLS, until_killed
from tests.embed.collections.stored import INFO, LIMITS, content, everything, new_image

pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")

import psycopg

from services.embed.collections import cluster
from services.embed.collections.cluster.catalog import PostgresCatalog
from services.embed.collections.cluster.connections import CatalogUnreachable, Connections
from services.embed.collections.cluster.contents import Contents, ObjectsUnreachable, Upload
from services.embed.collections.cluster.image_store import PostgresImageStore
from services.embed.collections.cluster.leases import IndexWork

pytestmark = pytest.mark.process

LEASE_S = 600.0
WIDTH = 4
# A lease that has ended when it begins, as if its holder had died.
NO_LEASE_S = -1.0
# Name of the connections of a process that is to be killed.
KILLED = "killed"


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return Objects((tmp_path / "objects").as_uri(), {})


@pytest.fixture
def connections(database_url: str) -> Iterator[Connections]:
    connections = Connections.open(database_url)
    yield connections
    connections.close()


@pytest.fixture
def catalog(connections: Connections, objects: Objects) -> PostgresCatalog:
    return PostgresCatalog(connections, objects)


@pytest.fixture
def store(catalog: PostgresCatalog) -> PostgresImageStore:
    return catalog.create(INFO)


@pytest.fixture
def contents(connections: Connections, objects: Objects, store: PostgresImageStore) -> Contents:
    return Contents(connections, objects, store.collection)


@pytest.fixture
def work(connections: Connections, store: PostgresImageStore) -> Callable[[str], IndexWork]:
    """The indexing work of one checkpoint, as a process of this name sees it."""
    return lambda holder: IndexWork(connections, store.collection, "checkpoint", holder)


def at_once(*calls: Callable[[], object]) -> None:
    """Make calls in threads that begin together. Raises the first failure."""
    failures: list[BaseException] = []
    together = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        try:
            together.wait()
            call()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def keys(objects: Objects) -> set[str]:
    return {entry.key for entry in objects.entries("images")}


def images(*numbers: int) -> list[NewImage]:
    return [new_image(str(number), content(number, 100)) for number in numbers]


def test_replicas_that_start_together_prepare_an_empty_database_once(empty_database_url: str) -> None:
    at_once(*[lambda: Connections.open(empty_database_url).close()] * 4)
    connections = Connections.open(empty_database_url)
    with connections.reading() as connection:
        versions = connection.execute("SELECT version FROM migrations ORDER BY version").fetchall()
        connection.execute("INSERT INTO migrations VALUES (99, now())")
    connections.close()
    assert versions == [(1,), (2,), (3,), (4,), (5,)]
    with pytest.raises(IncompatibleDatabase, match=r"schema version 99.*newer"):
        Connections.open(empty_database_url)


def test_a_database_of_an_older_version_is_brought_up_to_date_with_all_that_it_holds(
    empty_database_url: str, objects: Objects
) -> None:
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE migrations (version integer PRIMARY KEY, applied timestamptz)")
        for version, path in enumerate(sorted((files(cluster) / "migrations").iterdir(), key=str)[:2], 1):
            connection.execute(path.read_text())
            connection.execute("INSERT INTO migrations VALUES (%s, now())", (version,))
        connection.execute("INSERT INTO collections (tenant, name, model, created) VALUES ('default', 'old', 'm', 1.5)")
    catalog = PostgresCatalog.open(empty_database_url, objects)
    store = catalog.open_store("old")
    assert (store.info, store.access()) == (CollectionInfo("old", "m", 1.5), "open")
    store.add(images(1), LIMITS)
    catalog.close()


def test_a_process_with_another_object_store_is_refused_once_there_are_images(
    empty_database_url: str, objects: Objects, tmp_path: Path
) -> None:
    other = Objects((tmp_path / "other").as_uri(), {})
    mistaken = PostgresCatalog.open(empty_database_url, other)  # and corrected before it had an effect
    right = PostgresCatalog.open(empty_database_url, objects)
    assert right.create(INFO).add(images(1), LIMITS).added == 1
    with pytest.raises(ObjectsUnreachable):
        mistaken.open_store(INFO.name).add(images(2), LIMITS)
    for catalog in (mistaken, right):
        catalog.close()
    for is_changing in (True, False):
        with pytest.raises(IncompatibleDatabase, match="FOVEA_EMBED_COLLECTIONS_STORE_URL as in the other processes"):
            PostgresCatalog.open(empty_database_url, other, is_changing=is_changing)
        PostgresCatalog.open(empty_database_url, objects, is_changing=is_changing).close()


def test_an_object_store_that_is_not_there_at_first_is_checked_before_anything_is_added(
    empty_database_url: str, objects: Objects, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = PostgresCatalog.open(empty_database_url, objects)
    first.create(INFO).add(images(1), LIMITS)
    first.close()

    def refuse(objects: Objects, key: str) -> int:
        raise StoreUnavailable("no route to it")

    with monkeypatch.context() as outage:
        outage.setattr(Objects, "size_bytes", refuse)
        late = PostgresCatalog.open(empty_database_url, Objects((tmp_path / "other").as_uri(), {}))
    with pytest.raises(ObjectsUnreachable):
        late.open_store(INFO.name).add(images(2), LIMITS)
    late.close()


def test_a_database_that_ends_its_connections_is_found_again(
    store: PostgresImageStore, connections: Connections
) -> None:
    store.add(images(1), LIMITS)
    with pytest.raises(CatalogUnreachable), connections.reading() as connection:
        connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    assert list(everything(store)) == ["1"]


def test_what_one_replica_changes_the_others_see(catalog: PostgresCatalog, store: PostgresImageStore) -> None:
    other = catalog.open_store(INFO.name)
    other.add(images(1, 2), LIMITS)
    store.delete("1")
    assert everything(other) == everything(store)
    catalog.delete(INFO.name)
    for use in (lambda: other.add(images(3), LIMITS), lambda: other.delete("2")):
        with pytest.raises(NotFound, match="birds"):
            use()


def test_rows_become_visible_in_ascending_order_however_many_add(store: PostgresImageStore) -> None:
    done = threading.Event()
    seen: list[list[int]] = []

    def watch() -> None:
        while not done.is_set():
            seen.append(store.rows().tolist())

    watcher = threading.Thread(target=watch)
    watcher.start()
    adders = [lambda first=first: [store.add(images(first + n), LIMITS) for n in range(10)] for first in (0, 100, 200)]
    at_once(*adders)
    done.set()
    watcher.join()
    assert store.rows().tolist() == list(range(1, 31))
    assert all(rows == list(range(1, len(rows) + 1)) for rows in seen)


def test_the_same_images_added_by_several_at_once_are_stored_once(
    store: PostgresImageStore, objects: Objects, contents: Contents
) -> None:
    at_once(*[lambda: store.add(images(*range(5)), LIMITS)] * 4)
    found = everything(store)
    assert sorted(found) == ["0", "1", "2", "3", "4"]
    contents.sweep(unused_after_s=0.0, grace_s=0.0)
    assert len(keys(objects)) == 5
    assert everything(store) == found


def test_bytes_that_no_image_has_are_swept_and_no_others(
    store: PostgresImageStore, objects: Objects, contents: Contents
) -> None:
    store.add([*images(1, 2), new_image("also 1", content(1, 100))], LIMITS)
    abandoned = contents.upload({"0" * 64: b"abandoned"})
    with pytest.raises(TooLarge):
        store.add(images(3), replace(LIMITS, max_images=3))
    store.delete("1")
    store.delete("2")
    assert contents.sweep(grace_s=0.0) == 100
    assert len(keys(objects)) == 2
    assert contents.sweep(unused_after_s=0.0, grace_s=0.0) == len(b"abandoned")
    assert abandoned["0" * 64].object_key not in keys(objects)
    assert list(everything(store)) == ["also 1"]
    assert not store.has_much_to_give_back()


class SlowOnce(Contents):
    """Contents whose first upload takes so long that it is swept."""

    is_slow = True

    def upload(self, data: Mapping[str, bytes]) -> dict[str, Upload]:
        uploads = super().upload(data)
        if self.is_slow:
            self.is_slow = False
            self.sweep(unused_after_s=0.0, grace_s=0.0)
        return uploads


def test_an_upload_that_was_swept_before_its_images_were_stored_is_repeated(
    store: PostgresImageStore, connections: Connections, objects: Objects
) -> None:
    slow = PostgresImageStore(connections, SlowOnce(connections, objects, store.collection), store.collection, INFO)
    assert slow.add(images(1, 2), LIMITS).rows == [1, 2]
    assert list(everything(store)) == ["1", "2"]
    assert len(keys(objects)) == 2


def test_deletions_and_sweeps_never_take_bytes_from_an_addition(store: PostgresImageStore, contents: Contents) -> None:
    def add_and_delete(name: str) -> None:
        for _ in range(15):
            store.add([new_image(name, content(1, 100))], LIMITS)
            assert store.data(name) == content(1, 100)
            store.delete(name)

    def sweep() -> None:
        for _ in range(40):
            contents.sweep(grace_s=0.0)

    at_once(lambda: add_and_delete("a"), lambda: add_and_delete("b"), sweep)
    store.add([new_image("c", content(1, 100))], LIMITS)
    contents.sweep(grace_s=0.0)
    assert list(everything(store)) == ["c"]


def wait_until_disconnected(connections: Connections) -> None:
    """Wait until the server has noticed that a process was killed: its last commit may come after its end."""
    give_up = time.monotonic() + 60.0
    with connections.reading() as connection:
        while connection.execute("SELECT 1 FROM pg_stat_activity WHERE application_name = %s", (KILLED,)).fetchone():
            assert time.monotonic() < give_up
            time.sleep(0.01)  # a server tells nobody whom it has lost


def work_of_a_replica(folder: Path, seed: int, reports: Connection) -> None:
    objects = Objects((folder / "objects").as_uri(), {})
    catalog = PostgresCatalog.open((folder / "url").read_text(), objects)
    add_and_delete(catalog.open_store(INFO.name), seed, reports)


@pytest.mark.timeout(600 + 5 * NUM_KILLS)
def test_a_replica_killed_at_any_moment_loses_nothing_that_it_acknowledged_and_leaves_nothing_behind(
    connections: Connections,
    store: PostgresImageStore,
    contents: Contents,
    objects: Objects,
    database_url: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "url").write_text(f"{database_url}&application_name={KILLED}")
    there: Known = {}
    for kill in range(NUM_KILLS):
        reports = until_killed(work_of_a_replica, tmp_path, kill)
        wait_until_disconnected(connections)
        there = checked(store, there, reports)
    contents.sweep(unused_after_s=0.0, grace_s=0.0)
    contents.sweep(grace_s=0.0)
    assert len(keys(objects)) == len({image.digest for image, _ in everything(store).values()})


def test_an_image_whose_bytes_are_lost_does_not_hide_the_others(store: PostgresImageStore, objects: Objects) -> None:
    store.add(images(1), LIMITS)
    (lost,) = keys(objects)
    store.add(images(2), LIMITS)
    objects.delete([lost])
    assert store.data_by_rows([1, 2]) == {2: content(2, 100)}
    assert store.image("1").row == 1
    with pytest.raises(DatabaseFailed) as raised:
        store.data("1")
    assert raised.value.is_partial


def test_nothing_is_left_of_a_deleted_collection(
    catalog: PostgresCatalog, store: PostgresImageStore, objects: Objects, connections: Connections
) -> None:
    store.add(images(*range(5)), LIMITS)
    store.put_condition("the color", is_pinned=True)
    IndexWork(connections, store.collection, "checkpoint", "a").start_index("color", WIDTH)
    kept = catalog.create(replace(INFO, name="kept"))
    kept.add(images(1), LIMITS)
    catalog.delete(INFO.name)
    catalog.sweep()
    assert len(keys(objects)) == 1
    assert list(everything(kept)) == ["1"]
    with connections.reading() as connection:
        assert connection.execute("SELECT name FROM collections").fetchall() == [("kept",)]


def through(work: IndexWork) -> dict[str, int]:
    """The row up to which the index of each condition has all images."""
    return {condition: index.through for condition, index in work.progress().indexes.items()}


def test_every_image_is_claimed_once_and_indexes_that_are_equally_far_share_the_claim(
    store: PostgresImageStore, work: Callable[[str], IndexWork]
) -> None:
    store.add(images(*range(10)), LIMITS)
    store.delete("3")
    a, b = work("a"), work("b")
    color, shape = a.start_index("color", WIDTH), a.start_index("shape", WIDTH)
    first, second, third = a.take(LEASE_S, 4), b.take(LEASE_S, 4), a.take(LEASE_S, 4)
    assert first and second and third
    assert [(one.first_row, one.last_row) for one in (first, second, third)] == [(1, 5), (6, 9), (10, 10)]
    assert first.indexes == [color, shape]
    assert b.take(LEASE_S) is None
    assert through(a) == {"color": 0, "shape": 0}
    assert b.finish(second)
    assert a.finish(first)
    assert through(a) == {"color": 9, "shape": 9}
    assert a.finish(third)
    size = b.start_index("size", WIDTH)
    late = b.take(LEASE_S)
    assert late and (late.first_row, late.last_row, late.indexes) == (1, 10, [size])
    assert through(b) == {"color": 10, "shape": 10, "size": 0}


def test_a_dead_process_s_claim_is_taken_by_one_other_and_a_slow_one_s_end_does_not_count(
    store: PostgresImageStore, work: Callable[[str], IndexWork]
) -> None:
    store.add(images(*range(3)), LIMITS)
    slow = work("slow")
    slow.start_index("color", WIDTH)
    lost = slow.take(NO_LEASE_S)
    assert lost is not None
    taken: list[object] = []
    at_once(*[lambda name=name: taken.append(work(name).take(LEASE_S)) for name in "abcd"])
    (again,) = [lease for lease in taken if lease is not None]
    assert again == replace(lost, attempt=2)
    assert not slow.renew(lost, LEASE_S)
    assert not slow.finish(lost)
    assert through(slow) == {"color": 0}
    assert work("a").renew(replace(lost, attempt=2), LEASE_S)
    assert work("a").finish(replace(lost, attempt=2))
    assert through(slow) == {"color": 3}


def test_many_processes_that_die_at_times_index_every_image(
    store: PostgresImageStore, work: Callable[[str], IndexWork]
) -> None:
    store.add(images(*range(60)), LIMITS)
    indexed: list[int] = []

    def index(name: str) -> None:
        own, number = work(name), 0
        while (claim := own.take(NO_LEASE_S if number % 2 else LEASE_S, 4)) is not None:
            if number % 2 == 0:  # otherwise it dies before it has written anything
                indexed.extend(row for row in store.rows(claim.first_row - 1).tolist() if row <= claim.last_row)
                assert own.finish(claim)
            number += 1

    work("a").start_index("color", WIDTH)
    at_once(*[lambda name=name: index(name) for name in "abcd"])
    assert sorted(indexed) == list(range(1, 61))
    assert through(work("a")) == {"color": 60}


def test_a_dropped_index_is_left_out_of_leases_and_a_new_one_begins_again(
    store: PostgresImageStore, work: Callable[[str], IndexWork]
) -> None:
    store.add(images(1, 2), LIMITS)
    a = work("a")
    color, shape = a.start_index("color", WIDTH), a.start_index("shape", WIDTH)
    assert a.take(NO_LEASE_S) is not None
    for _ in range(2):  # again: no error
        a.drop_index("shape")
    a.drop_index("color")
    again = a.start_index("color", WIDTH)
    assert a.start_index("color", WIDTH) == again
    assert again not in (color, shape)
    orphan, fresh = a.take(LEASE_S), a.take(LEASE_S)
    assert orphan and fresh
    assert (orphan.indexes, fresh.indexes) == ([], [again])
    assert a.finish(fresh)
    assert through(a) == {"color": 2}


def test_a_database_without_pgvector_tells_who_can_mend_it(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE plain LOGIN")
        connection.execute("CREATE DATABASE bare OWNER plain TEMPLATE template0 ENCODING 'UTF8'")
    url = postgres_url.replace("fovea@", "plain@").replace("/postgres?", "/bare?")
    with pytest.raises(IncompatibleDatabase, match=r"lacks pgvector.*administrator run CREATE EXTENSION vector"):
        Connections.open(url)
    Connections.open(postgres_url.replace("/postgres?", "/bare?")).close()  # an administrator creates it
