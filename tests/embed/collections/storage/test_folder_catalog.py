"""Collections are there or not there, under their names, also when the process is killed while it makes them."""

import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from services.core.errors import NotFound
from services.embed.collections.storage.catalog import CatalogInUse
from services.embed.collections.storage.database import IncompatibleDatabase, StorageFull
from services.embed.collections.storage.folder_catalog import FolderCatalog
from services.embed.collections.storage.sqlite_store import DATABASE_NAME
from tests.core.child_processes import running
from tests.embed.collections.killed_process import NUM_KILLS, until_killed
from tests.embed.collections.small_disk import fill, mounted_disk
from tests.embed.collections.stored import INFO, LIMITS, content, everything, new_image

pytestmark = pytest.mark.process

NAMES = [f"{letter}-{number}" for letter in "aAbB" for number in range(3)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "collections"


@pytest.fixture
def catalog(root: Path) -> Iterator[FolderCatalog]:
    catalog = FolderCatalog.open(root)
    yield catalog
    catalog.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_disk(tmp_path / "disk") as path:
        yield path


def create(catalog: FolderCatalog, *names: str) -> None:
    for name in names:
        catalog.create(replace(INFO, name=name)).close()


def test_a_deleted_collection_is_gone_with_all_its_files_and_its_name_is_free(
    catalog: FolderCatalog, root: Path
) -> None:
    create(catalog, "birds", "other")
    (catalog.folder("birds") / "indexes").mkdir()
    (catalog.folder("birds") / "indexes" / "color").write_bytes(b"derived")
    catalog.delete("birds")
    assert catalog.names() == ["other"]
    assert [path.name for path in root.iterdir() if path.is_dir()] == ["other"]
    for ask in (catalog.open_store, catalog.delete):
        with pytest.raises(NotFound, match="birds"):
            ask("birds")
    store = catalog.create(INFO)
    assert everything(store) == {}
    store.close()


def test_names_that_differ_in_case_only_have_folders_that_differ_in_more(catalog: FolderCatalog) -> None:
    names = ["Birds", "bIRDS", "birds", "x.Y_Z-9"]
    create(catalog, *names)
    assert catalog.names() == sorted(names)
    assert len({catalog.folder(name).name.lower() for name in names}) == len(names)
    for name in names:
        store = catalog.open_store(name)
        assert store.info.name == name
        store.close()


def test_other_folders_and_files_are_no_collections(catalog: FolderCatalog, root: Path) -> None:
    create(catalog, "birds")
    for name in ("lost+found", "empty", ".hidden", "=", "UPPER", "=upper", "a" * 65, "a b"):
        (root / name).mkdir()
    (root / "file").touch()
    for name in (".hidden", "UPPER", "a" * 65, "a b", "="):
        (root / name / DATABASE_NAME).touch()
    assert catalog.names() == ["birds"]


def test_a_folder_has_one_open_catalog(root: Path) -> None:
    catalog = FolderCatalog.open(root)
    with pytest.raises(CatalogInUse, match="collections"):
        FolderCatalog.open(root)
    catalog.close()
    catalog.close()
    FolderCatalog.open(root).close()


def test_a_folder_open_in_another_process_is_in_use_until_that_is_gone(root: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path;"
        "from services.embed.collections.storage.folder_catalog import FolderCatalog;"
        "catalog = FolderCatalog.open(Path(sys.argv[1])); print('open', flush=True); time.sleep(100)"
    )
    with running([sys.executable, "-c", program, str(root)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(CatalogInUse):
            FolderCatalog.open(root)
        process.kill()
    FolderCatalog.open(root).close()


def test_a_catalog_that_another_has_open_is_not_tidied_up(catalog: FolderCatalog, root: Path) -> None:
    (root / ".creating-1").mkdir()
    with pytest.raises(CatalogInUse):
        FolderCatalog.open(root)
    assert (root / ".creating-1").is_dir()


def test_a_store_that_can_not_be_read_is_still_named_and_can_be_deleted(catalog: FolderCatalog) -> None:
    create(catalog, "birds")
    connection = sqlite3.connect(catalog.folder("birds") / DATABASE_NAME)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(IncompatibleDatabase):
        catalog.open_store("birds")
    assert catalog.names() == ["birds"]
    catalog.delete("birds")
    assert catalog.names() == []


def create_and_delete(root: Path, seed: int, reports: Connection) -> None:
    catalog = FolderCatalog.open(root)
    dice = random.Random(seed)
    while True:
        name = dice.choice(NAMES)
        kind = "delete" if name in catalog.names() else "create"
        reports.send(((kind, name), False))
        if kind == "create":
            store = catalog.create(replace(INFO, name=name))
            store.add([new_image("a", content(1, 20_000))], LIMITS)
            store.close()
        else:
            catalog.delete(name)
        reports.send(((kind, name), True))


@pytest.mark.timeout(600 + 5 * NUM_KILLS)
def test_a_process_killed_while_it_makes_and_removes_collections_leaves_none_half_there(root: Path) -> None:
    expected: set[str] = set()
    for kill in range(NUM_KILLS):
        reports = until_killed(create_and_delete, root, kill)
        for kind, name in reports.done:
            expected = expected | {name} if kind == "create" else expected - {name}
        catalog = FolderCatalog.open(root)
        there = set(catalog.names())
        in_doubt = {reports.begun[1]} if reports.begun else set()
        assert there - in_doubt == expected - in_doubt
        assert {path for path in root.iterdir() if path.is_dir()} == {catalog.folder(name) for name in there}
        for name in there:
            store = catalog.open_store(name)
            assert store.info.name == name
            images = everything(store)
            store.close()
            assert list(images) == ["a"] or name in in_doubt
        if in_doubt & there:
            # made again by the next process, with its image
            (name,) = in_doubt
            catalog.delete(name)
            there.remove(name)
        catalog.close()
        expected = there


def test_on_a_full_disk_no_collection_is_made_but_others_can_be_deleted(small_disk: Path) -> None:
    catalog = FolderCatalog.open(small_disk)
    create(catalog, "birds")
    fill(small_disk / "ballast")
    with pytest.raises(StorageFull):
        create(catalog, "fish")
    assert catalog.names() == ["birds"]
    assert {path.name for path in small_disk.iterdir() if path.is_dir()} == {"birds"}
    catalog.delete("birds")
    (small_disk / "ballast").unlink()
    create(catalog, "fish")
    assert catalog.names() == ["fish"]
    catalog.close()
