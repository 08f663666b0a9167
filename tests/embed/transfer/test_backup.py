"""A backup has all collections as of a moment, is read without the service, and comes back into either kind."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.core.store.errors import StoreUnavailable
from services.embed.collections.storage.catalog import Catalog, CatalogInUse
from services.embed.collections.storage.database import IncompatibleDatabase
from services.embed.collections.storage.image_store import CollectionInfo, ImageStore
from services.embed.collections.storage.sqlite_store import DATABASE_NAME
from services.embed.transfer import backup as backing_up
from services.embed.transfer.backup import BackupFolder, BackupRun, Restore, Storage
from services.embed.transfer.command import app
from services.embed.transfer.entries import TransferError
from services.jobs.progress import Bars
from tests.embed.collections.stored import INFO, LIMITS, content, everything, new_image

OTHER = CollectionInfo("cats", "other-model", 1_600_000_000.25)


@pytest.fixture
def folder(tmp_path: Path) -> BackupFolder:
    return BackupFolder(str(tmp_path / "backups"))


def fill(catalog: Catalog, num_images: int = 150) -> ImageStore:
    """Store two collections of two tenants; the images of the first have every other one's bytes in common."""
    store = catalog.create(INFO)
    for begin in range(0, num_images, 50):
        images = [
            replace(new_image(f"{n}/ä", content(n // 2, 100), {"n": n, "f": 0.1, "t": True}), created=n + 0.125)
            for n in range(begin, begin + 50)
        ]
        store.add(images, LIMITS)
    store.put_condition("the color", is_pinned=True)
    store.put_condition("the shape", is_pinned=False)
    with closing(catalog.create(OTHER, "zoo")) as other:
        other.add([new_image("a", b"1")], LIMITS)
        other.set_access("read_only")
    catalog.create(replace(INFO, name="empty")).close()
    return store


def known(catalog: Catalog) -> dict[tuple[str, str], Any]:
    """Return all that a backup promises to bring back; rows and times of use are not."""
    found = {}
    for tenant in catalog.tenants():
        for name in catalog.names(tenant):
            with closing(catalog.open_store(name, tenant)) as store:
                images = {key: (replace(image, row=0), data) for key, (image, data) in everything(store).items()}
                conditions = [(one.text, one.is_pinned) for one in store.conditions()]
                found[tenant, name] = store.info, images, conditions, store.access(), store.size()
    return found


def back_up(storage: Storage, folder: BackupFolder, bars: Bars) -> dict[str, Any]:
    with closing(storage.backed_up()) as source:
        return BackupRun(source, folder, bars).run()


def restore(folder: BackupFolder, storage: Storage, bars: Bars, backup_id: str | None = None) -> dict[str, Any]:
    with closing(storage.empty_catalog()) as catalog:
        return Restore(folder, backup_id or folder.finished()[-1], catalog, bars).run()


def test_what_is_backed_up_beside_a_service_comes_back_into_either_kind(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fill(catalog).close()
    before = known(catalog)
    done = back_up(storage, folder, bars)
    assert (done["collections"], done["images"], done["new_contents"]) == (3, 151, 76)
    storages = [Storage(tmp_path / "back", None, None, None)]
    if storage.database is not None:
        url = request.getfixturevalue("empty_database_url")
        storages.append(Storage(tmp_path / "back", url, (tmp_path / "back-objects").as_uri(), None))
    for back in storages:
        assert restore(folder, back, bars)["images"] == 151
        with closing(back.catalog()) as restored:
            assert known(restored) == before


def test_a_second_backup_copies_only_what_is_new_and_the_first_one_stays(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path
) -> None:
    store = fill(catalog)
    before = known(catalog)
    first = back_up(storage, folder, bars)
    assert Restore(folder, first["backup"], catalog, bars).run()["images"] == 151  # all of it is there
    assert known(catalog) == before
    for n in range(100):
        store.delete(f"{n}/ä")
    store.add([new_image("new", b"new"), new_image("again", b"1")], LIMITS)
    store.patch("100/ä", {"patched": True}, LIMITS)
    second = back_up(storage, folder, bars)
    assert (second["images"], second["new_contents"], second["new_bytes"]) == (53, 1, 3)
    assert folder.finished() == [first["backup"], second["backup"]]
    for number, (backup_id, expected) in enumerate([(first["backup"], before), (second["backup"], known(catalog))]):
        back = Storage(tmp_path / f"back-{number}", None, None, None)
        restore(folder, back, bars, backup_id)
        with closing(back.catalog()) as restored:
            assert known(restored) == expected
    store.close()


def test_a_backup_is_of_one_moment_whatever_is_changed_while_it_is_made(
    catalog: Catalog,
    storage: Storage,
    folder: BackupFolder,
    bars: Bars,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = fill(catalog)
    moments: list[dict[Any, Any]] = []
    write_lines = backing_up._write_lines

    def change_then_write(*arguments: Any) -> None:
        if not moments:
            moments.append(known(catalog))
            store.delete("7/ä")
            store.patch("8/ä", {"patched": True}, LIMITS)
            store.add([new_image("late", b"late")], LIMITS)
        write_lines(*arguments)

    monkeypatch.setattr(backing_up, "_write_lines", change_then_write)
    back_up(storage, folder, bars)
    back = Storage(tmp_path / "back", None, None, None)
    restore(folder, back, bars)
    with closing(back.catalog()) as restored:
        assert known(restored) == moments[0]
    store.close()


def test_an_interrupted_backup_is_none_and_the_next_one_continues(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(catalog).close()
    with monkeypatch.context() as patch:
        patch.setattr(folder, "write_description", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            back_up(storage, folder, bars)
    assert folder.finished() == []
    done = back_up(storage, folder, bars)
    assert (done["images"], done["new_contents"]) == (151, 0)
    assert folder.ids() == folder.finished() == [done["backup"]]


def test_an_interrupted_restoration_is_continued_and_shows_what_it_has_as_copies(
    catalog: Catalog,
    storage: Storage,
    folder: BackupFolder,
    bars: Bars,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(catalog).close()
    back_up(storage, folder, bars)
    back = Storage(tmp_path / "back", None, None, None)
    read = folder.data
    asked: list[str] = []

    def read_some(digest: str) -> bytes:
        asked.append(digest)
        if len(asked) == 100:
            raise KeyboardInterrupt
        return read(digest)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "data", read_some)
        with pytest.raises(KeyboardInterrupt):
            restore(folder, back, bars)
    with closing(back.catalog()) as partly, closing(partly.open_store(INFO.name)) as store:
        assert (store.access(), store.size()[0]) == ("copy", 64)
    restore(folder, back, bars)
    restore(folder, back, bars)
    with closing(back.catalog()) as restored:
        assert known(restored) == known(catalog)


def test_nothing_is_restored_over_anything(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, new_storage: Callable[[], Storage]
) -> None:
    fill(catalog).close()
    back_up(storage, folder, bars)
    with closing(catalog.open_store(INFO.name)) as store:
        store.delete("3/ä")
    before = known(catalog)
    if storage.database is None:
        with pytest.raises(CatalogInUse):
            restore(folder, storage, bars)
    with pytest.raises(TransferError, match="another collection 'birds'; nothing is overwritten"):
        Restore(folder, folder.finished()[-1], catalog, bars).run()
    assert known(catalog) == before
    foreign = new_storage()
    with closing(foreign.catalog()) as other:
        other.create(OTHER, "default").close()
        with pytest.raises(TransferError, match="not empty: it has a collection 'cats'"):
            Restore(folder, folder.finished()[-1], other, bars).run()


@pytest.mark.parametrize("what", ["image", "list", "description"])
def test_a_damaged_backup_is_named_and_not_restored(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path, what: str
) -> None:
    fill(catalog).close()
    backup_id = back_up(storage, folder, bars)["backup"]
    path = {
        "image": next((tmp_path / "backups/contents").glob("*/*")),
        "list": tmp_path / f"backups/backups/{backup_id}/000000.jsonl",
        "description": tmp_path / f"backups/backups/{backup_id}/backup.json",
    }[what]
    path.write_bytes(path.read_bytes()[:-1])
    back = Storage(tmp_path / "back", None, None, None)
    with pytest.raises(TransferError, match="damaged"):
        restore(folder, back, bars)
    if what != "description":
        path.unlink()
        with pytest.raises(TransferError, match="has no"):
            restore(folder, back, bars)


def test_of_backups_of_both_kinds_in_one_place_one_has_to_be_named(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path
) -> None:
    fill(catalog).close()
    first, second = (back_up(storage, folder, bars)["backup"] for _ in range(2))
    description = tmp_path / "backups" / "backups" / second / "backup.json"
    other = {"local": "cluster", "cluster": "local"}
    described = json.loads(description.read_text())
    description.write_text(json.dumps(described | {"kind": other[described["kind"]]}))
    arguments = ["restore", str(tmp_path / "backups"), "--collections-dir", str(tmp_path / "back")]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 1
    assert "has backups of cluster and local collections: name one with --backup" in refused.stderr
    assert CliRunner().invoke(app, [*arguments, "--backup", first]).exit_code == 0


def test_backups_are_listed_with_what_they_hold(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path
) -> None:
    fill(catalog).close()
    first, second = (back_up(storage, folder, bars) for _ in range(2))
    arguments = ["restore", "--list", str(tmp_path / "backups")]
    lines = CliRunner().invoke(app, arguments).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [first["backup"], second["backup"]]
    assert all("3 collections, 151 images" in line for line in lines)
    listed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["backups"]
    assert listed == [{key: one[key] for key in listed[0]} for one in (first, second)]


def test_bytes_of_earlier_backups_that_were_damaged_are_copied_again(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path
) -> None:
    fill(catalog).close()
    before = known(catalog)
    back_up(storage, folder, bars)
    cut, changed, *_ = sorted((tmp_path / "backups" / "contents").rglob("*/*"))
    cut.write_bytes(b"")
    assert back_up(storage, folder, bars)["new_contents"] == 1
    changed.write_bytes(b"x" * changed.stat().st_size)
    assert back_up(storage, folder, bars)["new_contents"] == 0
    with closing(storage.backed_up()) as source:
        assert BackupRun(source, folder, bars).run(verify=True)["new_contents"] == 1
    back = Storage(tmp_path / "back", None, None, None)
    restore(folder, back, bars)
    with closing(back.catalog()) as restored:
        assert known(restored) == before


def test_nothing_is_restored_among_other_files(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path
) -> None:
    fill(catalog).close()
    back_up(storage, folder, bars)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"a")
    with pytest.raises(TransferError, match="is not empty, and is no folder of collections"):
        restore(folder, Storage(tmp_path / "photos", None, None, None), bars)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["a.jpg"]


def test_damaged_bytes_are_not_backed_up(catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars) -> None:
    fill(catalog).close()
    if storage.database is None:
        with closing(sqlite3.connect(storage.folder / INFO.name / DATABASE_NAME, isolation_level=None)) as connection:
            connection.execute("UPDATE contents SET data = x'00' WHERE content = 3")
    else:
        assert storage.images_url is not None
        next(path for path in Path(storage.images_url.removeprefix("file://")).rglob("*-*")).write_bytes(b"damaged")
    with pytest.raises(TransferError, match=r"bytes of the image with SHA-256 [0-9a-f]{64} are damaged"):
        back_up(storage, folder, bars)
    assert folder.finished() == []


def test_a_place_of_another_version_is_not_changed_by_a_backup(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars
) -> None:
    catalog.create(INFO).close()
    if storage.database is None:
        path = storage.folder / INFO.name / DATABASE_NAME
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA user_version = 1")
    else:
        import psycopg

        with psycopg.connect(storage.database, autocommit=True) as database:
            database.execute("DELETE FROM migrations WHERE version = 3")
    with pytest.raises(IncompatibleDatabase, match=r"start (the|a) service of this version"):
        back_up(storage, folder, bars)


def test_a_backup_says_where_it_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="must begin with"):
        BackupFolder("ftp://host/backups")
    folder = BackupFolder(str(tmp_path / "none"))
    assert folder.finished() == []
    with pytest.raises(TransferError, match="no complete backup 'x'"):
        folder.describe("x")


def test_lists_of_a_backup_are_lines_of_json_with_digests(
    catalog: Catalog, storage: Storage, folder: BackupFolder, bars: Bars, tmp_path: Path
) -> None:
    fill(catalog).close()
    backup_id = back_up(storage, folder, bars)["backup"]
    lines = (tmp_path / f"backups/backups/{backup_id}/000000.jsonl").read_text().splitlines()
    image = json.loads(lines[0])
    assert (len(lines), image["id"], image["metadata"]) == (150, "0/ä", {"n": 0, "f": 0.1, "t": True})
    assert (tmp_path / "backups" / image["file"]).read_bytes() == content(0, 100)
