"""Faults of one collection affect only that one, are reported, and are over once it is repaired."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from services.embed.collections import local_collections
from tests.embed.collections.test_collections import (
    PICTURES,
    Service,
    picture,
    running,
    settings_in,
)
from tests.embed.tiny import write_tiny_checkpoint

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failed collections after a short time."""
    monkeypatch.setattr(local_collections, "RETRY_S", 0.05)


def readiness(service: Service) -> str:
    response = service.client.get("/readyz")
    assert response.status_code == 200
    detail: str = response.json()["checks"]["collections"]["detail"]
    return detail


def is_well(service: Service, name: str) -> bool:
    return bool(service.client.get(f"/collections/{name}").status_code == 200)


def edit(statement: str) -> Damage:
    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "images.sqlite")) as connection:
            connection.execute(statement)
            connection.commit()

    return damage


def replace_by_folder(folder: Path) -> None:
    (folder / "images.sqlite").unlink()
    (folder / "images.sqlite").mkdir()


def replace_by_loop(folder: Path) -> None:
    """Replace a folder by a link to itself, which no user can open, whatever their rights."""
    shutil.rmtree(folder)
    folder.symlink_to(folder)


DAMAGES: dict[str, Damage] = {
    "database is a folder": replace_by_folder,
    "database is gone": lambda folder: (folder / "images.sqlite").unlink(),
    "database is empty": lambda folder: (folder / "images.sqlite").write_bytes(b""),
    "database is something else": lambda folder: (folder / "images.sqlite").write_bytes(b"no database" * 1000),
    "description is missing": edit("DELETE FROM collection"),
    "totals are missing": edit("DELETE FROM totals"),
    "table is missing": edit("DROP TABLE contents"),
    "folder can't be read": replace_by_loop,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.slow
def test_a_damaged_collection_answers_503_alone_and_comes_back_once_it_is_mended(
    checkpoint: Path, tmp_path: Path, damage: str
) -> None:
    settings = settings_in(tmp_path, checkpoint)
    folder, backup = tmp_path / "collections" / "damaged", tmp_path / "backup"
    with running(settings) as service:
        for name in ("damaged", "other"):
            service.create(name=name)
            service.add(PICTURES, name=name)
    shutil.copytree(folder, backup)
    (folder / "images.sqlite").chmod(0o600)
    DAMAGES[damage](folder)
    with running(settings) as service:
        for method, path in (("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/images"), ("POST", "/search")):
            refused = service.client.request(
                method, f"/collections/damaged{path}", json={"text": "a"} if path == "/search" else None
            )
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "collection_not_open")
            assert "'damaged'" in refused.json()["error"]["message"]
        listed = service.client.get("/collections").json()
        assert [one["name"] for one in listed["data"]] == ["other"]
        assert listed["unavailable"] == ["damaged"]
        assert set(service.search(name="other", text="a thing")["results"][0]) == {"id", "score", "metadata"}
        assert readiness(service).startswith("1 of 2 open; default/damaged: ")
        folder.rename(tmp_path / "removed")  # at once, as the collection of a folder that is missing is forgotten
        backup.rename(folder)
        service.wait_until(lambda: is_well(service, "damaged"), of="other")
        assert len(service.search(name="damaged", text="a thing")["results"]) == len(PICTURES)
        assert readiness(service) == "2 of 2 open"


@pytest.mark.parametrize("what", ["indexes", "states"])
@pytest.mark.parametrize("damage", ["file", "folder of files"])
@pytest.mark.slow
def test_what_can_be_made_again_is_not_needed_to_answer(
    checkpoint: Path, tmp_path: Path, what: str, damage: str
) -> None:
    settings = settings_in(tmp_path, checkpoint)
    with running(settings) as service:
        service.create()
        service.add(PICTURES)
        expected = service.scores(text="a thing")
    derived = tmp_path / "collections" / "things" / what
    if damage == "file":
        shutil.rmtree(derived)
        derived.write_bytes(b"no folder")
    else:
        for path in list(derived.iterdir()):
            path.unlink()
            path.mkdir()
    with running(settings) as service:
        assert service.scores(text="a thing").keys() == expected.keys()
        service.wait_until_ready(None)
        service.add({"more": picture(100)})
        assert set(service.scores(text="a thing")) == {*PICTURES, "more"}


@pytest.mark.slow
def test_a_database_that_vanishes_takes_nothing_more_and_comes_back(checkpoint: Path, tmp_path: Path) -> None:
    """Images added to a file that was removed would be acknowledged and lost."""
    with running(settings_in(tmp_path, checkpoint)) as service:
        service.create()
        service.create(name="other")
        service.add(PICTURES)
        folder = tmp_path / "collections" / "things"
        away = folder.rename(tmp_path / "away")
        refused = service.client.post(
            "/collections/things/images", content=picture(1), headers={"content-type": "image/png"}
        )
        assert refused.status_code == 503
        assert is_well(service, "other")
        service.wait_until(lambda: service.client.get("/collections/things").status_code == 404, of="other")
        away.rename(folder)
    with running(service.settings) as service:
        assert set(service.scores(text="a thing")) == set(PICTURES)


@pytest.mark.slow
def test_a_damaged_page_costs_the_images_on_it_and_is_named(checkpoint: Path, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, checkpoint)
    with running(settings) as service:
        service.create()
        service.add({f"large-{number}": picture(number) for number in range(200)})
    file = tmp_path / "collections" / "things" / "images.sqlite"
    pages = bytearray(file.read_bytes())
    with closing(sqlite3.connect(file)) as connection:
        found = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_images_1'")
        (page,) = found.fetchone()
    pages[(page - 1) * 4096 : page * 4096] = b"\xff" * 4096  # where images are found by their ids
    file.write_bytes(pages)
    with running(settings) as service:
        refused = service.client.get("/collections/things/images/large-1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "collection_damaged")
        assert "default/things: " in readiness(service)
        assert service.search(text="a thing")["results"]


@pytest.mark.slow
def test_a_folder_that_can_not_be_used_is_tried_until_it_can(checkpoint: Path, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, checkpoint)
    (tmp_path / "collections").write_bytes(b"a file in its place")
    with running(settings, are_collections_open=False) as service:
        assert "not open" in readiness(service)
        assert service.client.get("/collections").json()["error"]["code"] == "collections_not_open"
        assert service.client.post("/embed", json={"texts": ["a"]}).status_code == 200
        (tmp_path / "collections").unlink()
        while service.client.put("/collections/things").status_code != 201:
            pass
        assert readiness(service) == "1 of 1 open"


@pytest.mark.slow
def test_a_folder_of_something_else_is_a_conflict_and_left_as_it_is(checkpoint: Path, tmp_path: Path) -> None:
    with running(settings_in(tmp_path, checkpoint)) as service:
        theirs = tmp_path / "collections" / "things"
        theirs.mkdir()
        (theirs / "letter").write_text("dear")
        refused = service.client.put("/collections/things")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "collection_folder_taken")
        assert (theirs / "letter").read_text() == "dear"
