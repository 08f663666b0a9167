"""Several processes share collections: each answers for all, whatever becomes of the others and of the databases."""

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer.testing import CliRunner

from services.core.settings import SettingsError, read_settings
from services.core.store.objects import Objects
from services.core.store.store import Store
from services.embed.collections.index.vector_table import Rows
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
from tests.embed.tiny import wait_until_ready, write_tiny_checkpoint

pytest.importorskip("psycopg_pool", reason="needs the extra `cluster`")

from services.embed.collections.cluster import connections
from services.embed.collections.cluster.catalog import PostgresCatalog, sweep
from services.embed.collections.cluster.connections import Connections
from services.embed.collections.cluster.leases import IndexWork
from services.embed.collections.cluster.vectors import SharedVectors

pytestmark = [pytest.mark.process, pytest.mark.slow]

NAMES = set(PICTURES)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture
def settings(tmp_path: Path, checkpoint: Path, postgres_url: str) -> EmbedSettings:
    return shared_settings(tmp_path, checkpoint, empty_schema(postgres_url))


def shared_settings(folder: Path, checkpoint: Path, url: str) -> EmbedSettings:
    return settings_in(
        folder,
        checkpoint,
        collections_url=url,
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


def test_images_are_indexed_while_searches_are_measured(
    settings: EmbedSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    tune = SharedVectors.tune

    def slowly(vectors: SharedVectors, sample: Rows) -> str:
        has_begun.set()
        may_end.wait()
        return tune(vectors, sample)

    monkeypatch.setattr(SharedVectors, "tune", slowly)
    first, second, *others = PICTURES
    try:
        with running(settings.model_copy(update={"index_max_exact": 1})) as service:
            service.create()
            service.add({name: PICTURES[name] for name in (first, second)})
            assert has_begun.wait(60)
            service.add({name: PICTURES[name] for name in others})
            service.wait_until_ready(None)
            assert set(service.scores(text="a thing")) == NAMES
        # a process that stops does not wait either
        assert not may_end.is_set()
    finally:
        may_end.set()


def test_a_large_collection_is_searched_by_a_graph_and_its_recall_is_told(settings: EmbedSettings) -> None:
    with two(settings.model_copy(update={"index_max_exact": 8})) as (a, b):
        a.create()
        a.add(PICTURES)

        def is_by_graph() -> bool:
            return bool(b.search(text="a thing")["index"]["kind"] == "hnsw")

        b.wait_until(is_by_graph)
        found = b.search(text="a thing")["index"]
        assert not found["exact"] and found["recall_at_10"] >= settings.index_min_recall
        a.client.delete("/collections/things/images/picture-00.png")
        assert set(b.scores(text="a thing")) == NAMES - {"picture-00.png"}


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
            checkpoint, number = connection.execute("SELECT checkpoint, index FROM indexes").fetchone() or ("", 0)
            (width,) = connection.execute(f"SELECT vector_dims(vector) FROM vectors_{number}").fetchone() or (0,)
        work = IndexWork(catalog.connections, store.collection, checkpoint, "dead")
        work.drop_index("plain")
        work.start_index("plain", width)
        lease = work.take(3600)
        if lease is not None:  # otherwise the process was faster
            assert a.describe()["state"] == "building"
            assert set(a.scores(text="a thing")) == NAMES
            work.renew(lease, 0)  # now it has expired
        a.wait_until_ready(None)
        assert set(a.scores(text="a thing")) == NAMES
        catalog.close()


def test_versions_side_by_side_answer_each_with_its_own_vectors(settings: EmbedSettings, tmp_path: Path) -> None:
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
        catalog = catalog_of(settings)
        with catalog.connections.reading() as connection:
            made = connection.execute("SELECT checkpoint, index FROM indexes").fetchall()
            assert len({checkpoint for checkpoint, _ in made}) == 2
            connection.execute(
                "UPDATE indexes SET used = used - interval '2 days' WHERE index IN"
                " (SELECT max(index) FROM indexes UNION SELECT max(index) - 1 FROM indexes)"
            )
        sweep(catalog)
        with catalog.connections.reading() as connection:
            kept = connection.execute("SELECT checkpoint, index FROM indexes").fetchall()
            assert len({checkpoint for checkpoint, _ in kept}) == 1
            for _, number in made:
                table = connection.execute("SELECT to_regclass(%s)", (f"vectors_{number}",)).fetchone()
                assert (table != (None,)) == (number in {number for _, number in kept})
        catalog.close()
        assert_alike(a.scores(image=as_base64(query)), a.expected(query, None, PICTURES | {"late": picture(301)}))


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may end."""
    with postgres_server() as server:
        yield server


def refusal(send: Callable[[], Any]) -> tuple[int, str, str]:
    response = send()
    return response.status_code, response.json()["error"]["code"], response.headers["retry-after"]


def test_without_their_database_collections_answer_503_and_other_routes_answer(
    tmp_path: Path, checkpoint: Path, server: PostgresServer
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
    tmp_path: Path, checkpoint: Path, server: PostgresServer
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
        ({"collections_url": None}, "FOVEA_EMBED_COLLECTIONS_STORE_URL is for shared"),
        ({"collections_url": "mysql://x"}, "postgresql://"),
        ({"collections_store_url": "memory://x"}, "memory://"),
    ):
        with pytest.raises(ValueError, match=reason):
            EmbedSettings(**{**given, **change})


def test_the_settings_that_do_not_fit_are_named_as_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_EMBED_COLLECTIONS_URL", "mysql://fovea:secret@postgres/fovea")
    with pytest.raises(SettingsError) as refused:
        read_settings(EmbedSettings)
    assert str(refused.value).startswith("FOVEA_EMBED_COLLECTIONS_URL must begin with postgresql://")
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
