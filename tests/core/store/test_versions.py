import shutil
from multiprocessing.queues import Queue
from pathlib import Path

import pytest

from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint, NotFoundInStore, StoreUnavailable
from services.core.store.store import Store
from services.core.store.versions import Version
from tests.core.child_processes import forked_processes
from tests.core.restless_writer import fetch_and_report
from tests.core.store_places import StorePlace
from tests.core.tiny_checkpoints import INFO, write_checkpoint

pytestmark = pytest.mark.process
# What a copy's manifest may take beside the files that it lists.
MANIFEST_BYTES = 4096


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open((tmp_path / "store").as_uri())


@pytest.fixture
def version(store: Store, tmp_path: Path) -> Version:
    return store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)


def test_a_copy_holds_exactly_what_was_published_and_its_manifest(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)

    copy = store.fetch("toy", version.id, tmp_path / "cache")

    published = {path: (tmp_path / "a" / path).read_bytes() for path in store.manifest("toy", version.id).files}
    copied = {str(path.relative_to(copy)): path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    copied.pop("manifest.json")
    assert copied == published


def test_a_second_fetch_needs_no_store(store: Store, version: Version, tmp_path: Path) -> None:
    copy = store.fetch("toy", version.id, tmp_path / "cache")
    shutil.rmtree(tmp_path / "store")

    assert store.fetch("toy", version.id, tmp_path / "cache") == copy


@pytest.mark.parametrize("damage", ["flipped byte", "truncated", "missing", "extra", "manifest", "link", "a file"])
def test_a_damaged_copy_is_never_handed_out(store: Store, version: Version, tmp_path: Path, damage: str) -> None:
    copy = store.fetch("toy", version.id, tmp_path / "cache")
    original = (copy / "model.safetensors").read_bytes()
    if damage == "flipped byte":
        (copy / "model.safetensors").write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
    elif damage == "truncated":
        (copy / "model.safetensors").write_bytes(original[:-1])
    elif damage == "missing":
        (copy / "config.json").unlink()
    elif damage == "extra":
        (copy / "extra.txt").touch()
    elif damage == "manifest":
        (copy / "manifest.json").write_text("{}")
    elif damage == "link":
        (copy / "extra").symlink_to(tmp_path)
    else:
        shutil.rmtree(copy)
        copy.write_text("a file in its place")

    assert store.fetch("toy", version.id, tmp_path / "cache") == copy

    assert (copy / "model.safetensors").read_bytes() == original
    assert sorted(path.name for path in copy.iterdir()) == [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer",
    ]


def test_what_a_killed_download_left_is_cleared_away(store: Store, version: Version, tmp_path: Path) -> None:
    abandoned = tmp_path / "cache" / "toy" / f".{version.id}.0123.part"
    abandoned.mkdir(parents=True)

    store.fetch("toy", version.id, tmp_path / "cache")

    assert not abandoned.exists()


def test_copies_of_all_models_together_take_no_more_than_they_may_and_those_used_longest_ago_go(
    store: Store, tmp_path: Path
) -> None:
    versions = [
        store.publish(name, write_checkpoint(tmp_path / "a", b"%d" % number * 100_000), INFO)
        for number in range(3)
        for name in ("toy", "other")
    ]
    cache = tmp_path / "cache"
    # Room for three of them, which have one size.
    max_bytes = 3 * versions[0].size_bytes + 2 * MANIFEST_BYTES

    def fetch(version: Version) -> Path:
        return store.fetch(version.name, version.id, cache, max_bytes)

    downloaded = (fetch(versions[0]) / "config.json").stat().st_mtime_ns
    for version in versions[1:]:
        fetch(version)
        assert sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) <= max_bytes + MANIFEST_BYTES
        # Used again after each of the others, so never the one that was not used for longest.
        assert (fetch(versions[0]) / "config.json").stat().st_mtime_ns == downloaded

    kept = {(path.parent.name, path.name) for path in cache.glob("*/*") if path.is_dir()}
    assert kept == {(version.name, version.id) for version in (versions[0], *versions[-2:])}


def test_a_version_larger_than_all_copies_may_be_is_refused_by_the_settings_name_and_costs_no_other_its_copy(
    store: Store, version: Version, tmp_path: Path
) -> None:
    large = store.publish("large", write_checkpoint(tmp_path / "large", bytes(100_000)), INFO)
    copy = store.fetch("toy", version.id, tmp_path / "cache")

    with pytest.raises(InvalidCheckpoint, match="FOVEA_CHECKPOINT_CACHE_MAX_BYTES"):
        store.fetch("large", large.id, tmp_path / "cache", large.size_bytes - 1)

    assert copy.is_dir()


def test_without_room_for_copies_a_version_is_used_where_it_lies_once_every_byte_is_checked(
    store: Store, version: Version, tmp_path: Path
) -> None:
    folder = store.fetch("toy", version.id, tmp_path / "cache", 0)

    assert folder == tmp_path / "store" / "models" / "toy" / "versions" / version.id
    assert not (tmp_path / "cache").exists()
    (folder / "model.safetensors").write_bytes(b"x" * (folder / "model.safetensors").stat().st_size)
    with pytest.raises(CorruptCheckpoint, match="safetensors"):
        store.fetch("toy", version.id, tmp_path / "cache", 0)


def test_a_store_that_is_no_folder_names_the_setting_that_leaves_no_room_for_copies(tmp_path: Path) -> None:
    store = Store.open("memory://")
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)

    with pytest.raises(InvalidCheckpoint, match="FOVEA_CHECKPOINT_CACHE_MAX_BYTES is 0"):
        store.fetch("toy", version.id, tmp_path / "cache", 0)


def test_what_is_not_in_the_store_is_not_fetched(store: Store, version: Version, tmp_path: Path) -> None:
    for name, missing in (("toy", "0123456789ab"), ("other", version.id), ("toy", "../toy"), ("toy", "latest")):
        with pytest.raises(NotFoundInStore):
            store.fetch(name, missing, tmp_path / "cache")


def test_a_cache_folder_that_cannot_be_written_is_named(store: Store, version: Version, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(StoreUnavailable, match=r"checkpoint cache .*file"):
        store.fetch("toy", version.id, tmp_path / "file")


def test_processes_that_fetch_the_same_version_at_once_all_get_it(version: Version, tmp_path: Path) -> None:
    processes = forked_processes()
    results: Queue[bool] = processes.Queue()
    url = (tmp_path / "store").as_uri()
    fetchers = [
        processes.Process(target=fetch_and_report, args=(url, version.id, tmp_path / "cache", results))
        for _ in range(4)
    ]
    for fetcher in fetchers:
        fetcher.start()
    assert [results.get(timeout=60) for _ in fetchers] == [True] * 4
    for fetcher in fetchers:
        fetcher.join()
    assert [path.name for path in (tmp_path / "cache" / "toy").glob("*.part")] == []
