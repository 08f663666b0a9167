"""Findings of the doctor about shared collections, with a real PostgreSQL."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from services.cli.doctor.connections import find_image_store, find_postgres
from services.cli.doctor.findings import Finding, read_configured
from tests.cli.doctor.machine import Machine
from tests.conftest import empty_schema

NOWHERE = "postgresql://fovea:hunter2@127.0.0.1:1/fovea"
Find = Callable[..., list[Finding]]


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Find:
    """Run a check with these URLs, by the variable's name without FOVEA_EMBED_ and _URL."""

    def found(check: Callable[..., Iterator[Finding]], **urls: str) -> list[Finding]:
        for name, url in {"COLLECTIONS": NOWHERE, **urls}.items():
            monkeypatch.setenv(f"FOVEA_EMBED_{name}_URL", url)
        findings = list(check(read_configured()))
        assert all("hunter2" not in f"{one.found} {one.cure}" for one in findings)
        return findings

    return found


def database(url: str, name: str) -> str:
    return url.replace("/postgres?", f"/{name}?")


def as_user(url: str, user: str) -> str:
    return url.replace("fovea@", f"{user}@")


@pytest.fixture(scope="module")
def locked_url(postgres_url: str) -> str:
    """The server for a role that has to give its password, which is `right`."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
        (file,) = connection.execute("SHOW hba_file").fetchone() or ("",)
        Path(file).write_text(f"local all locked scram-sha-256\n{Path(file).read_text()}")
        connection.execute("SELECT pg_reload_conf()")
    while True:  # a server that reads its files again can only be polled
        try:
            psycopg.connect(as_user(postgres_url, "locked"), password="wrong").close()
        except psycopg.OperationalError:
            return as_user(postgres_url, "locked")
        time.sleep(0.02)


def test_nothing_is_said_where_collections_are_not_shared() -> None:
    configured = read_configured()
    assert [list(check(configured)) for check in (find_postgres, find_image_store)] == [[], []]


def test_a_database_that_can_be_used_is_well_and_is_left_as_it_was(find: Find, postgres_url: str) -> None:
    import psycopg

    url = empty_schema(postgres_url)
    [found] = find(find_postgres, COLLECTIONS=url)
    assert (found.status, found.cure) == ("ok", None)
    assert found.found.startswith("PostgreSQL ")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT to_regclass('migrations')").fetchone() == (None,)


def test_a_pgvector_with_known_faults_is_a_warning(find: Find, postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE faulty")
    url = database(postgres_url, "faulty")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION vector")
        connection.execute("UPDATE pg_extension SET extversion = '0.8.1' WHERE extname = 'vector'")
    [well, found] = find(find_postgres, COLLECTIONS=url)
    assert (well.status, found.status) == ("ok", "warning")
    assert found.found.endswith("pgvector 0.8.1 may damage graphs that are searched, which 0.8.4 does not")
    assert str(found.cure).endswith(", and in faulty: ALTER EXTENSION vector UPDATE")


def test_a_wrong_password_is_told_in_postgresqls_words(find: Find, locked_url: str) -> None:
    wrong = locked_url.replace("locked@", "locked:hunter2@")
    [found] = find(find_postgres, COLLECTIONS=wrong)
    assert found.status == "failure"
    assert found.found.startswith("FOVEA_EMBED_COLLECTIONS_URL: ")
    assert found.found.endswith('password authentication failed for user "locked"')
    assert "correct FOVEA_EMBED_COLLECTIONS_URL=postgresql://USER:PASSWORD@HOST" in str(found.cure)


def test_a_database_that_does_not_exist_is_named(find: Find, postgres_url: str) -> None:
    [found] = find(find_postgres, COLLECTIONS=database(postgres_url, "absent"))
    assert found.status == "failure"
    assert found.found.endswith('database "absent" does not exist')


def test_a_database_of_another_encoding_is_a_failure(find: Find, postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE latin ENCODING LATIN1 TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    [found] = find(find_postgres, COLLECTIONS=database(postgres_url, "latin"))
    assert (found.status, found.found) == (
        "failure",
        "FOVEA_EMBED_COLLECTIONS_URL: the encoding of latin is LATIN1, not UTF8",
    )


def test_a_user_who_may_not_make_tables_is_told_who_can_mend_it(find: Find, locked_url: str) -> None:
    import psycopg

    # as in a new database of PostgreSQL 15; before, all users may use the schema `public`
    url = f"{locked_url.replace('locked@', 'locked:right@')}&options={quote('-csearch_path=pg_catalog')}"
    psycopg.connect(url).close()
    [found] = find(find_postgres, COLLECTIONS=url)
    assert (found.status, found.found) == (
        "failure",
        "FOVEA_EMBED_COLLECTIONS_URL: locked may not make tables in postgres",
    )


def test_a_database_without_pgvector_is_told_who_can_mend_it(find: Find, postgres_url: str, locked_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE without TEMPLATE template0 OWNER locked")
    [found] = find(find_postgres, COLLECTIONS=database(postgres_url, "without"))
    assert found.status == "ok"  # its user may create it
    [found] = find(find_postgres, COLLECTIONS=database(locked_url.replace("locked@", "locked:right@"), "without"))
    assert (found.status, found.found) == (
        "failure",
        "FOVEA_EMBED_COLLECTIONS_URL: without lacks the extension vector, and locked may not create it",
    )
    assert found.cure == "as an administrator, in without: CREATE EXTENSION vector"


@pytest.mark.parametrize("password", ["hunter2/", "1/hunter2", "p@hunter2", "%zzhunter2", "p[hunter2"])
def test_parts_of_a_password_that_is_read_as_something_else_are_not_told(find: Find, password: str) -> None:
    [database] = find(find_postgres, COLLECTIONS=f"postgresql://fovea:{password}@127.0.0.1:1/fovea")
    assert database.status == "failure"


def test_the_object_store_of_the_images_is_tried(find: Find, tmp_path: Path) -> None:
    [unset] = find(find_image_store)
    assert (unset.status, "model store" in unset.found) == ("ok", True)
    [there] = find(find_image_store, COLLECTIONS_STORE=(tmp_path / "images").as_uri())
    assert (there.status, there.found) == ("ok", f"file://{tmp_path}/images answers")
    [bad] = find(find_image_store, COLLECTIONS_STORE="file://elsewhere/images")
    assert bad.status == "failure"
    assert bad.found.startswith("FOVEA_EMBED_COLLECTIONS_STORE_URL: ")
    assert "check FOVEA_EMBED_COLLECTIONS_STORE_URL" in str(bad.cure)


def share(machine: Machine) -> None:
    machine.environment["FOVEA_EMBED_COLLECTIONS_URL"] = NOWHERE
    machine.environment["FOVEA_EMBED_COLLECTIONS_STORE_URL"] = (machine.home / "images").as_uri()


@pytest.mark.process
def test_the_doctor_tells_of_all_that_is_not_there_and_of_no_password(machine: Machine) -> None:
    share(machine)
    ended = machine.doctor()
    assert ended.returncode == 1
    failed = [line.split()[1] for line in ended.stdout.splitlines() if line.startswith("FAILURE")]
    assert failed == ["postgresql"]
    assert re.search(r"^ok +room .*\bFOVEA_EMBED_COLLECTIONS_STORE_URL\b", ended.stdout, re.MULTILINE)
    assert "hunter2" not in ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.process
def test_without_its_packages_the_extra_is_named_and_nothing_else_is_tried(machine: Machine) -> None:
    share(machine)
    [(topic, found, cure)] = machine.failures(without=("psycopg", "psycopg_pool"))
    assert (topic, cure) == ("extras", "pip install 'fovea-serving[cluster]'")
    assert found == "FOVEA_EMBED_COLLECTIONS_URL is set, and psycopg is not installed"
