"""Attacks by writers to the model store: they can damage it, but nothing outside of it."""

import hashlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.core.store.errors import CorruptCheckpoint, NotFoundInStore, StoreError, StoreUnavailable
from services.core.store.manifest import MANIFEST_FILE, CheckpointInfo, Manifest, StoredFile
from services.core.store.store import Store
from tests.core.tiny_checkpoints import INFO, write_checkpoint

BODY = b"{}"
STORED = StoredFile(sha256=hashlib.sha256(BODY).hexdigest(), size_bytes=len(BODY))
FORBIDDEN_PATHS = [
    "../victim.json",
    "../../../../victim.json",
    "a/../../victim.json",
    "/tmp/victim.json",
    "//victim.json",
    "a//b.json",
    "./a.json",
    "a/./b.json",
    "a/",
    "",
    ".",
    "..",
    ".hidden.json",
    "a\\..\\b.json",
    "C:/victim.json",
    "a\0.json",
    "a\n.json",
    "a\x1b[2J.json",
    "a b.json",
    "ä.json",
    "-rf.json",
    "a" * 300 + ".json",
    "weights.pt",
    "run.py",
    MANIFEST_FILE,
    "Manifest.JSON",
]


def forge(store_folder: Path, *paths: str) -> str:
    """A version of `toy` that proves itself and names these files, as only a writer of manifests can make it."""
    manifest = Manifest.describe("toy", INFO, dict.fromkeys(paths, STORED))
    folder = store_folder / "models" / "toy" / "versions" / manifest.version
    folder.mkdir(parents=True)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    alias = {"version": manifest.version, "updated": datetime.now(UTC).isoformat(), "move": "0"}
    (store_folder / "models" / "toy" / "aliases").mkdir(parents=True, exist_ok=True)
    (store_folder / "models" / "toy" / "aliases" / "latest").write_text(json.dumps(alias))
    return manifest.version


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open((tmp_path / "store").as_uri())


@pytest.mark.parametrize("path", FORBIDDEN_PATHS)
def test_a_manifest_with_a_path_that_no_version_may_have_is_refused_whole(
    store: Store, tmp_path: Path, path: str
) -> None:
    version = forge(tmp_path / "store", "config.json", path)

    for use in (store.manifest, store.verify, lambda n, v: store.fetch(n, v, tmp_path / "cache")):
        with pytest.raises(CorruptCheckpoint, match=r"manifest\.json"):
            use("toy", version)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (("a.json", "A.json"), "differ only in case"),
        (("a/b.json", "A/B.json"), "differ only in case"),
        (("a.json", "a.json/b.json"), "both a file and the folder"),
        (("a.json", "A.JSON.txt/x.txt", "a.json.txt"), "both a file and the folder"),
        (tuple(f"{number}.json" for number in range(1001)), "1001 files, at most 1000"),
    ],
)
def test_paths_that_can_not_lie_in_one_folder_are_refused(
    store: Store, tmp_path: Path, paths: tuple[str, ...], message: str
) -> None:
    version = forge(tmp_path / "store", *paths)

    with pytest.raises(CorruptCheckpoint, match=message):
        store.fetch("toy", version, tmp_path / "cache")


@pytest.mark.parametrize("kind", ["relative", "absolute", "into the copy's folder"])
def test_no_file_outside_of_the_copy_is_emptied_or_written(store: Store, tmp_path: Path, kind: str) -> None:
    victim = tmp_path / "keys.json"
    victim.write_text('[{"key": "secret"}]')
    cache = tmp_path / "cache"
    # files/<path> lies three folders below the model's folder in the cache
    path = {
        "relative": "../../../../keys.json",
        "absolute": str(victim),
        "into the copy's folder": "../keys.json",
    }[kind]
    version = forge(tmp_path / "store", path)

    with pytest.raises(CorruptCheckpoint):
        store.fetch("toy", version, cache)

    assert victim.read_text() == '[{"key": "secret"}]'
    assert [found for found in cache.rglob("*") if found.is_file() and not found.name.endswith(".lock")] == []


def link_file(place: Path, target: Path) -> None:
    place.unlink()
    place.symlink_to(target / "notes.json")


def link_folder(place: Path, target: Path) -> None:
    place.parent.rename(place.parent.with_name("moved"))
    place.parent.symlink_to(target)


@pytest.mark.parametrize("link", [link_file, link_folder])
def test_what_lies_behind_a_link_in_a_local_store_is_neither_read_nor_written_nor_deleted(
    store: Store, tmp_path: Path, link: Callable[[Path, Path], None]
) -> None:
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO).id
    others = tmp_path / "others"
    others.mkdir()
    for name in ("notes.json", "config.json", MANIFEST_FILE):
        (others / name).write_text("{}")
    folder = tmp_path / "store" / "models" / "toy" / "versions" / version
    link(folder / "config.json", others)

    with pytest.raises(StoreError):
        store.verify("toy", version)
    with pytest.raises(StoreError):
        store.publish("toy", tmp_path / "a", INFO)
    store.gc(keep=1, grace_s=0, dry_run=False)

    assert {path.name: path.read_text() for path in others.iterdir()} == {
        "notes.json": "{}",
        "config.json": "{}",
        MANIFEST_FILE: "{}",
    }


def test_collecting_garbage_deletes_nothing_behind_a_folder_that_is_a_link(store: Store, tmp_path: Path) -> None:
    store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    victim = tmp_path / "collections" / "vectors.db"
    victim.parent.mkdir()
    victim.write_text("vectors")
    (tmp_path / "store" / "models" / "toy" / "versions" / ("0" * 12)).symlink_to(victim.parent)
    (tmp_path / "store" / "models" / "linked").symlink_to(victim.parent)

    removed = store.gc(keep=1, grace_s=0, dry_run=False)

    assert removed == []
    assert victim.read_text() == "vectors"
    assert store.names() == ["toy"]


def test_a_pipe_in_place_of_an_object_is_not_waited_for(store: Store, tmp_path: Path) -> None:
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO).id
    for name in ("versions/" + version + "/config.json", "aliases/latest"):
        path = tmp_path / "store" / "models" / "toy" / name
        path.unlink()
        os.mkfifo(path)

    with pytest.raises(StoreUnavailable, match="special file"):
        store.verify("toy", version)
    with pytest.raises(StoreUnavailable, match="special file"):
        store.resolve("toy")


def test_an_alias_that_is_too_long_to_be_one_is_not_read(store: Store, tmp_path: Path) -> None:
    store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    with (tmp_path / "store" / "models" / "toy" / "aliases" / "latest").open("r+b") as file:
        file.truncate(2**34)

    with pytest.raises(StoreUnavailable, match="more than"):
        store.resolve("toy")


@pytest.mark.parametrize("previous", ["../../../other", "x" * 12, "ABCDEF012345"])
def test_an_alias_that_names_what_is_no_version_is_damaged(store: Store, tmp_path: Path, previous: str) -> None:
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO).id
    alias = tmp_path / "store" / "models" / "toy" / "aliases" / "latest"
    alias.write_text(json.dumps({"version": version, "previous": [previous]}))

    with pytest.raises(CorruptCheckpoint):
        store.rollback("toy", "latest")


def test_names_that_nobody_can_publish_are_not_listed(store: Store, tmp_path: Path) -> None:
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO).id
    model = tmp_path / "store" / "models" / "toy"
    (model / "versions" / "not an id").mkdir()
    (model / "versions" / "not an id" / MANIFEST_FILE).write_text("{}")
    (model / "aliases" / "Not an alias").write_text("{}")

    assert [found.id for found in store.versions("toy")] == [version]
    assert list(store.aliases("toy")) == ["latest"]
    assert store.gc(keep=1, grace_s=0) == []


def test_a_key_with_characters_that_a_terminal_obeys_is_no_alias_and_is_not_written_to_it(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    (tmp_path / "store" / "models" / "toy" / "aliases" / "\x1b]0;title").write_text("{}")
    capsys.readouterr()

    assert list(store.aliases("toy")) == ["latest"]

    assert "\x1b]" not in capsys.readouterr().out


def test_a_file_that_grows_while_it_is_read_is_read_no_further_than_announced(store: Store, tmp_path: Path) -> None:
    manifest = Manifest.describe("toy", CheckpointInfo(kind="k"), {"a.json": STORED})
    folder = tmp_path / "store" / "models" / "toy" / "versions" / manifest.version
    folder.mkdir(parents=True)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_json())
    (folder / "a.json").write_bytes(BODY + b" " * 10)

    with pytest.raises(CorruptCheckpoint, match="expected 2 bytes"):
        store.fetch("toy", manifest.version, tmp_path / "cache")


def test_a_copy_in_which_a_link_took_the_place_of_a_file_is_fetched_anew(store: Store, tmp_path: Path) -> None:
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO).id
    copy = store.fetch("toy", version, tmp_path / "cache")
    (copy / "config.json").rename(tmp_path / "elsewhere.json")
    (copy / "config.json").symlink_to(tmp_path / "elsewhere.json")

    store.fetch("toy", version, tmp_path / "cache")

    assert not (copy / "config.json").is_symlink()


def test_a_version_that_is_away_is_told_from_one_that_is_damaged(store: Store, tmp_path: Path) -> None:
    forge(tmp_path / "store", "config.json")
    with pytest.raises(NotFoundInStore):
        store.manifest("toy", "0" * 12)
