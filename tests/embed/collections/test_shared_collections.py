"""Several processes share collections: each answers for all, whatever becomes of the others and of the databases."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from services.core.settings import SettingsError, read_settings
from services.core.store.objects import Objects
from services.core.store.store import Store
from services.embed.collections.storage.database import DatabaseUnreachable
from services.embed.settings import EmbedSettings
from services.embed.transfer.command import app
from tests.conftest import empty_schema
from tests.core.postgres_server import PostgresServer, postgres_server
from tests.embed.collections.test_collections import (
    COLOR,
    INFO,
    MODEL,
    PICTURES,
    SHAPE,
    Service,
    as_base64,
    assert_alike,
    picture,
    running,
    settings_in,
)
from tests.embed.collections.vectors_in_memory import VectorsInMemory
from tests.embed.tiny import wait_until_ready, write_tiny_checkpoint

pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")

from services.embed.collections.cluster import connections
from services.embed.collections.cluster.catalog import PostgresCatalog, sweep
from services.embed.collections.cluster.connections import Connections
from services.embed.collections.cluster.leases import IndexWork

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = set(PICTURES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def vectors(monkeypatch: pytest.MonkeyPatch) -> VectorsInMemory:
    """The vector database of all processes of a test."""
    vectors = VectorsInMemory()
    monkeypatch.setattr(
        "services.embed.collections.composition.connect_vectors", lambda url, options, identity: vectors
    )
    return vectors


@pytest.fixture
def settings(tmp_path: Path, checkpoint: Path, postgres_url: str, vectors: VectorsInMemory) -> EmbedSettings:
    return shared_settings(tmp_path, checkpoint, empty_schema(postgres_url))


def shared_settings(folder: Path, checkpoint: Path, url: str) -> EmbedSettings:
    return settings_in(
        folder,
        checkpoint,
        collections_url=url,
        vectors_url="http://in.memory",
        collections_store_url=(folder / "objects").as_uri(),
    )


@contextmanager
def two(settings: EmbedSettings) -> Iterator[tuple[Service, Service]]:
    with running(settings) as a, running(settings) as b:
        yield a, b


def catalog_of(settings: EmbedSettings) -> PostgresCatalog:
    assert settings.collections_url and settings.collections_store_url
    return PostgresCatalog.open(settings.collections_url, Objects(settings.collections_store_url, {}))


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in answer["results"]]


def test_what_one_process_does_all_others_answer_with(settings: EmbedSettings) -> None:
    with two(settings) as (a, b):
        a.create(COLOR)
        b.add(PICTURES)
        query = picture(100)
        expected = a.expected(query, COLOR)
        for service in (a, b):
            assert_alike(service.scores(image=as_base64(query), condition=COLOR), expected)
            assert service.describe()["size"] == len(PICTURES)
            assert service.describe()["state"] == "ready"
        gone, *rest = PICTURES
        assert a.client.delete(f"/collections/things/images/{gone}").status_code == 204
        for condition in (None, COLOR, SHAPE):
            assert set(b.scores(text="a thing", condition=condition)) == set(rest)
        changed = b.client.patch(f"/collections/things/images/{rest[1]}", json={"metadata": {"kind": "patched"}})
        assert changed.json()["metadata"]["kind"] == "patched"
        for condition in (None, COLOR, SHAPE):
            assert set(a.scores(text="a thing", condition=condition, filter={"kind": "patched"})) == {rest[1]}
        body = {"images": [{"id": f"things/{rest[0]}"}, as_base64(PICTURES[rest[0]])], "condition": COLOR}
        first, second = (row["embedding"] for row in b.client.post("/embed", json=body).json()["data"])
        assert first == second


def test_a_condition_that_one_process_was_asked_is_indexed_for_all(settings: EmbedSettings) -> None:
    with two(settings) as (a, b):
        a.create()
        a.add(PICTURES)
        assert a.search(text="a thing", condition=SHAPE)["index"]["exact"]
        for service in (a, b):
            service.wait_until_ready(SHAPE)
        query = picture(101)
        assert_alike(b.scores(image=as_base64(query), condition=SHAPE), b.expected(query, SHAPE))
        b.create(COLOR)
        for service in (a, b):
            service.wait_until_ready(COLOR)
        assert [index["condition"] for index in a.describe()["conditions"]] == [None, SHAPE, COLOR]


def test_images_are_indexed_while_searches_are_measured(settings: EmbedSettings, vectors: VectorsInMemory) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def measure() -> str:
        has_begun.set()
        may_end.wait()
        vectors.tuning = None
        return "as before"

    first, *others = PICTURES
    try:
        with running(settings) as service:
            vectors.tuning = measure
            service.create()
            service.add({first: PICTURES[first]})
            assert has_begun.wait(60)
            service.add({name: PICTURES[name] for name in others})
            service.wait_until_ready(None)
            assert set(service.scores(text="a thing")) == NAMES
        # a process that stops does not wait either
        assert vectors.tuning is measure
    finally:
        may_end.set()


def test_a_collection_deleted_and_made_anew_by_another_process_is_the_new_one(settings: EmbedSettings) -> None:
    with two(settings) as (a, b):
        a.create()
        a.add(PICTURES)
        assert set(b.scores(text="a thing")) == NAMES
        assert a.client.delete("/collections/things").status_code == 204
        for path in ("", "/images", "/images/picture-00.png"):
            assert b.client.get(f"/collections/things{path}").status_code == 404
        assert b.client.post("/collections/things/search", json={"text": "a"}).status_code == 404
        assert b.client.get("/collections").json()["data"] == []
        b.create()
        b.add({"other": picture(300)})
        assert set(a.scores(text="a thing")) == {"other"}
        assert a.client.get("/collections/things/images/picture-00.png").status_code == 404


def test_images_that_a_dead_process_had_leased_are_indexed_by_another(settings: EmbedSettings) -> None:
    with running(settings) as a:
        a.create()
        a.add(PICTURES)
        catalog = catalog_of(settings)
        store = catalog.open_store("things")
        with catalog.connections.reading() as connection:
            (checkpoint,) = connection.execute("SELECT checkpoint FROM indexes").fetchone() or ("",)
        work = IndexWork(catalog.connections, store.collection, checkpoint, "dead")
        (number,) = (index.number for index in work.progress().indexes.values())
        work.restart_index("plain", number)
        lease = work.take(3600)
        if lease is not None:  # otherwise the process was faster
            assert a.describe()["state"] == "building"
            assert set(a.scores(text="a thing")) == NAMES
            work.renew(lease, 0)  # now it has expired
        a.wait_until_ready(None)
        assert set(a.scores(text="a thing")) == NAMES
        catalog.close()


def test_deleted_images_whose_vectors_remain_are_not_found_and_take_nobody_s_place(
    settings: EmbedSettings, vectors: VectorsInMemory
) -> None:
    with two(settings) as (a, b):
        a.create()
        a.add(PICTURES)
        vectors.keeps_deleted = True
        best = ids(a.search(text="a thing"))[:10]
        for image_id in best:
            assert b.client.delete(f"/collections/things/images/{image_id}").status_code == 204
        found = ids(a.search(text="a thing", k=8))
        assert len(found) == 8
        assert not set(found) & set(best)
        vectors.keeps_deleted = False
        (stored,) = vectors.indexes.values()
        assert len(stored) == len(PICTURES)
        catalog = catalog_of(settings)
        assert sweep(catalog, vectors, forget_after_s=0.0)
        assert len(stored) == len(PICTURES) - len(best)
        catalog.close()
        assert set(ids(b.search(text="a thing"))) == NAMES - set(best)


def test_lost_vectors_are_made_again_and_meanwhile_nothing_wrong_is_answered(
    settings: EmbedSettings, vectors: VectorsInMemory
) -> None:
    with running(settings) as service:
        service.create(COLOR)
        service.add(PICTURES)
        query = picture(102)
        expected = service.expected(query, COLOR)
        vectors.indexes.clear()
        answers = []

        def is_whole() -> bool:
            body = {"image": as_base64(query), "condition": COLOR, "k": 100}
            response = service.client.post("/collections/things/search", json=body)
            answers.append(response)
            return bool(response.status_code == 200 and response.json()["index"]["state"] == "ready")

        service.wait_until(is_whole)
        for response in answers:
            if response.status_code == 503:
                assert response.headers["retry-after"]
            else:
                assert_alike({hit["id"]: hit["score"] for hit in response.json()["results"]}, expected)


def test_vectors_missing_in_an_index_that_had_them_are_made_again(
    settings: EmbedSettings, vectors: VectorsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.embed.collections.cluster.indexes.VERIFY_EVERY_S", 0.0)
    monkeypatch.setattr("services.embed.collections.cluster.leases.LEASE_ROWS", 8)
    monkeypatch.setattr("services.embed.collections.cluster.indexes.LEASE_ROWS", 8)
    with two(settings) as (a, b):
        a.create(COLOR)
        a.add(PICTURES)
        query = picture(102)
        expected = a.expected(query, COLOR)
        rows = range(1, len(PICTURES) + 1)
        for lost in ({3}, {1, 9, 10, len(PICTURES)}, set(rows)):
            for service in (a, b):
                service.wait_until_ready(COLOR)
            with vectors.lock:
                for stored in vectors.indexes.values():
                    for row in lost:
                        del stored[row]
            a.wait_until(lambda: all(len(stored) == len(PICTURES) for stored in vectors.indexes.values()))
            for service in (a, b):
                service.wait_until_ready(COLOR)
                assert_alike(service.scores(image=as_base64(query), condition=COLOR), expected)


def test_vectors_of_deleted_images_do_not_hide_that_others_are_missing(
    settings: EmbedSettings, vectors: VectorsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(settings) as service:
        service.create()
        service.add(PICTURES)
        service.wait_until_ready(None)
        (stored,) = vectors.indexes.values()
        vectors.is_down = True
        for name in ("picture-00.png", "picture-01.png", "picture-02.png"):
            assert service.client.delete(f"/collections/things/images/{name}").status_code == 204
        vectors.is_down = False
        with vectors.lock:
            for row in (5, 6):
                del stored[row]
        monkeypatch.setattr("services.embed.collections.cluster.indexes.VERIFY_EVERY_S", 0.0)
        service.wait_until(lambda: sorted(stored) == list(range(4, len(PICTURES) + 1)))


def test_an_image_that_can_no_longer_be_read_is_read_again_once_and_others_still_are(
    settings: EmbedSettings, tmp_path: Path, vectors: VectorsInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.embed.collections.cluster.indexes.VERIFY_EVERY_S", 0.0)
    claimed: list[Any] = []
    lease_again = IndexWork.lease_again

    def counted(work: IndexWork, number: int, ranges: Any) -> None:
        lease_again(work, number, ranges)
        claimed.append(ranges)

    monkeypatch.setattr(IndexWork, "lease_again", counted)
    # with no states, images are read from their bytes
    settings = settings.model_copy(update={"collection_state_bytes": 0})
    with running(settings) as service:
        service.create()
        service.add(PICTURES)
        service.wait_until_ready(None)
    (content,) = [
        path
        for path in (tmp_path / "objects").rglob("*")
        if path.is_file() and path.read_bytes() == PICTURES["picture-02.png"]
    ]
    content.unlink()
    with running(settings) as service:
        (stored,) = vectors.indexes.values()

        def is_claimed(row: int) -> bool:
            return bool(claimed[-1:] == [[(row, row)]])

        for lost in (3, 5, 7):
            with vectors.lock:
                del stored[lost]
            service.wait_until(partial(is_claimed, lost))
            service.wait_until_ready(None)
            assert (lost in stored) == (lost != 3)
        assert claimed == [[(3, 3)], [(5, 5)], [(7, 7)]]


def test_versions_side_by_side_answer_each_with_its_own_vectors(
    settings: EmbedSettings, tmp_path: Path, vectors: VectorsInMemory
) -> None:
    (old,) = Store.open(settings.store_url).versions(MODEL)
    with running(settings.model_copy(update={"models": (f"{MODEL}@{old.id}",)})) as a:
        a.create(COLOR)
        a.add(PICTURES)
        Store.open(settings.store_url).publish(MODEL, write_tiny_checkpoint(tmp_path / "other", seed=1), INFO)
        with running(settings) as b:
            query = picture(107)
            for service in (a, b):
                service.wait_until_ready(COLOR)
                found = service.search(image=as_base64(query), condition=COLOR)
                assert_alike({hit["id"]: hit["score"] for hit in found["results"]}, service.expected(query, COLOR))
            b.add({"late": picture(301)})
            for service in (a, b):
                service.wait_until_ready(COLOR)
                found_now = service.scores(image=as_base64(query), condition=COLOR)
                assert_alike(found_now, service.expected(query, COLOR, PICTURES | {"late": picture(301)}))
        assert len({checkpoint for _, checkpoint, _ in vectors.indexes}) == 2
        catalog = catalog_of(settings)
        with catalog.connections.reading() as connection:
            connection.execute(
                "UPDATE indexes SET used = used - interval '2 days' WHERE index IN"
                " (SELECT max(index) FROM indexes UNION SELECT max(index) - 1 FROM indexes)"
            )
        sweep(catalog, vectors)
        assert len({checkpoint for _, checkpoint, _ in vectors.indexes}) == 1
        catalog.close()
        assert_alike(a.scores(image=as_base64(query)), a.expected(query, None, PICTURES | {"late": picture(301)}))


def test_without_its_vectors_a_collection_takes_images_and_says_that_it_can_not_search(
    settings: EmbedSettings, vectors: VectorsInMemory
) -> None:
    with running(settings) as service:
        service.create()
        service.add(PICTURES)
        vectors.is_down = True
        images = [{"id": "more", "image": as_base64(picture(200))}]
        assert service.client.post("/collections/things/images", json={"images": images}).status_code == 201
        assert service.client.delete("/collections/things/images/picture-00.png").status_code == 204
        assert service.describe()["size"] == len(PICTURES)
        refused = service.client.post("/collections/things/search", json={"text": "a thing"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "vectors_unavailable")
        assert refused.headers["retry-after"]
        vectors.is_down = False
        service.wait_until_ready(None)
        assert set(service.scores(text="a thing")) == NAMES - {"picture-00.png"} | {"more"}


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may end."""
    with postgres_server() as server:
        yield server


def refusal(send: Callable[[], Any]) -> tuple[int, str, str]:
    response = send()
    return response.status_code, response.json()["error"]["code"], response.headers["retry-after"]


def test_without_their_database_collections_answer_503_and_other_routes_answer(
    tmp_path: Path, checkpoint: Path, server: PostgresServer, vectors: VectorsInMemory
) -> None:
    settings = shared_settings(tmp_path, checkpoint, server.url)
    with running(settings) as service:
        service.create()
        service.add(PICTURES)
        server.kill()
        client = service.client
        images = {"images": [{"id": "more", "image": base64.b64encode(picture(1)).decode()}]}
        for send in (
            lambda: client.get("/collections"),
            lambda: client.get("/collections/things"),
            lambda: client.put("/collections/things"),
            lambda: client.post("/collections/things/search", json={"text": "a"}),
            lambda: client.post("/collections/things/images", json=images),
            lambda: client.get("/collections/things/images/picture-00.png"),
            lambda: client.delete("/collections/things/images/picture-00.png"),
        ):
            assert refusal(send)[:2] == (503, "collections_not_open")
        assert client.post("/embed", json={"texts": ["a"]}).status_code == 200
        wait_until_ready(lambda: "can't be reached" in client.get("/readyz").text)
        assert client.get("/readyz").status_code == 200
        server.start()
        wait_until_ready(lambda: client.get("/collections/things").status_code == 200)
        assert set(service.scores(text="a thing")) == NAMES
        service.add({"more": picture(1)})
        wait_until_ready(lambda: "can't be reached" not in client.get("/readyz").text)


def test_a_process_that_starts_before_its_database_waits_for_it_and_refuses_one_of_a_newer_version(
    tmp_path: Path, checkpoint: Path, server: PostgresServer, vectors: VectorsInMemory
) -> None:
    settings = shared_settings(tmp_path, checkpoint, server.url)
    server.kill()
    with running(settings, are_collections_open=False) as service:
        assert refusal(lambda: service.client.get("/collections"))[:2] == (503, "collections_not_open")
        server.start()
        wait_until_ready(lambda: service.client.get("/collections").status_code == 200)
    catalog = catalog_of(settings)
    with catalog.connections.reading() as connection:
        connection.execute("INSERT INTO migrations VALUES (99, now())")
    catalog.close()
    with running(settings, are_collections_open=False) as service:
        wait_until_ready(lambda: "newer version" in service.client.get("/readyz").text)
        refused = service.client.get("/collections").json()["error"]
        assert "newer version" in refused["message"]


def test_settings_of_shared_collections_that_do_not_fit_are_refused(settings: EmbedSettings) -> None:
    given = settings.model_dump()
    for change, reason in (
        ({"vectors_url": None}, "need both"),
        ({"collections_url": None}, "need both"),
        ({"collections_url": None, "vectors_url": None}, "FOVEA_EMBED_COLLECTIONS_STORE_URL is for shared"),
        ({"collections_url": "mysql://x"}, "postgresql://"),
        ({"vectors_url": "x"}, "http://"),
        ({"vectors_url": "tcp://milvus:19530"}, "http://"),
        ({"vectors_url": "http://milvus:19530/v1"}, "without path"),
        ({"vectors_url": "http://milvus:19530?a=b"}, "without path"),
        ({"vectors_url": "http://milvus:19530#a"}, "without path"),
        ({"vectors_url": "http://fovea:se/cret@milvus:19530"}, "without path"),
        ({"collections_store_url": "memory://x"}, "memory://"),
    ):
        with pytest.raises(ValueError, match=reason):
            EmbedSettings(**{**given, **change})


def test_the_settings_that_do_not_fit_are_named_as_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_EMBED_COLLECTIONS_URL", "postgresql://fovea:secret@postgres/fovea")
    with pytest.raises(SettingsError) as refused:
        read_settings(EmbedSettings)
    assert str(refused.value).startswith("FOVEA_EMBED_COLLECTIONS_URL and FOVEA_EMBED_VECTORS_URL: ")
    assert "secret" not in str(refused.value)


@pytest.fixture
def locked(server: PostgresServer) -> str:
    """A database that asks one role for its password, with a wrong one in the URL."""
    import psycopg

    folder = server.folder / "data"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        connection.execute("CREATE ROLE guest LOGIN")
        hba = folder / "pg_hba.conf"
        hba.write_text("local all locked scram-sha-256\n" + hba.read_text())
        connection.execute("SELECT pg_reload_conf()")
    return server.url.replace("fovea@", "locked:wr%2Fong@")


def test_why_the_database_refuses_is_told_to_the_operator_and_not_to_clients(
    tmp_path: Path,
    checkpoint: Path,
    locked: str,
    server: PostgresServer,
    vectors: VectorsInMemory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "CONNECT_TIMEOUT_S", 0.5)
    with pytest.raises(DatabaseUnreachable) as refused:  # may connect, and create nothing
        Connections.open(server.url.replace("fovea@", "guest@"))
    assert "permission denied" in refused.value.reason
    for url, words in (
        (locked, 'password authentication failed for user "locked"'),
        (server.url.replace("fovea@", "nobody:wr%2Fong@"), 'role "nobody" does not exist'),
        (server.url.replace("/postgres?", "/missing?"), 'database "missing" does not exist'),
        (server.url.replace("fovea@", "fovea:wr/ong@"), "%XX"),
    ):
        run = CliRunner().invoke(app, ["backup", str(tmp_path / "backup"), "--collections-url", url])
        assert run.exit_code == 1
        assert words in run.output and "FOVEA_EMBED_COLLECTIONS_URL" in run.output
        assert not any(word in run.output for word in ("wr/ong", "wr%2Fong", "ong@"))
    with (
        structlog.testing.capture_logs() as logs,
        running(shared_settings(tmp_path, checkpoint, locked), are_collections_open=False) as service,
    ):
        wait_until_ready(lambda: "can't be reached" in service.client.get("/readyz").text)
        answers = [service.client.get(path).text for path in ("/collections", "/readyz")]
    (line,) = [log for log in logs if log["event"] == "collections wait for their database"]
    assert line["log_level"] == "warning"
    assert "password authentication failed" in line["reason"]
    assert line["setting"] == "FOVEA_EMBED_COLLECTIONS_URL"
    assert (line["host"], line["database"], line["user"]) == (f"{server.folder}:5432", "postgres", "locked")
    assert not any(word in str(logs) for word in ("wr/ong", "wr%2Fong"))
    assert not any("authentication" in answer or "locked" in answer for answer in answers)


def test_vectors_that_can_not_be_reached_are_told_of_at_the_start_and_again_when_they_can(
    tmp_path: Path, checkpoint: Path, postgres_url: str, vectors: VectorsInMemory
) -> None:
    settings = shared_settings(tmp_path, checkpoint, empty_schema(postgres_url))
    settings = settings.model_copy(update={"vectors_url": "http://root:secret@in.memory:19530"})
    vectors.is_down = True
    with structlog.testing.capture_logs() as logs, running(settings) as service:
        wait_until_ready(lambda: "FOVEA_EMBED_VECTORS_URL" in service.client.get("/readyz").text)
        assert service.client.get("/readyz").status_code == 200
        vectors.is_down = False
        wait_until_ready(lambda: "FOVEA_EMBED_VECTORS_URL" not in service.client.get("/readyz").text)
    lines = [log for log in logs if log["event"].startswith("vectors can")]
    assert [line["log_level"] for line in lines] == ["warning", "info"]
    for line in lines:
        assert (line["setting"], line["address"]) == ("FOVEA_EMBED_VECTORS_URL", "in.memory:19530")
    assert lines[0]["reason"] == "the server is down"
    assert "secret" not in str(logs)
