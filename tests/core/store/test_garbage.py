from pathlib import Path

import pytest

from services.core.store.errors import CorruptCheckpoint, StoreUnavailable
from services.core.store.store import Store
from services.core.store.versions import Version
from tests.core.awkward_proxy import Treatment, awkward_proxy
from tests.core.s3_servers import S3Server
from tests.core.store_places import StorePlace
from tests.core.tiny_checkpoints import INFO, write_checkpoint


def publish_many(store: Store, tmp_path: Path, number: int) -> list[Version]:
    """Oldest first; `latest` is at the last."""
    return [
        store.publish("toy", write_checkpoint(tmp_path / "a", b"%d" % index), INFO, alias="latest")
        for index in range(number)
    ]


def remaining(store: Store) -> set[str]:
    return {version.id for version in store.versions("toy")}


@pytest.mark.slow
def test_what_aliases_name_or_would_roll_back_to_is_kept_beside_the_newest(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    versions = publish_many(store, tmp_path, 6)
    store.promote("toy", versions[0].id, "stable")
    store.promote("toy", versions[2].id, "stable")

    removed = store.gc(keep=1, grace_s=0, dry_run=False)

    kept = {versions[index].id for index in (0, 2, 4, 5)}
    assert {(removal.version, removal.reason) for removal in removed} == {
        (versions[index].id, "unused") for index in (1, 3)
    }
    assert remaining(store) == kept
    for version in kept:
        store.verify("toy", version)
    assert store.rollback("toy", "stable") == versions[0].id
    assert store.rollback("toy", "latest") == versions[4].id


@pytest.mark.slow
def test_a_dry_run_lists_and_removes_nothing(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    versions = publish_many(store, tmp_path, 3)

    [removal] = store.gc(keep=1, grace_s=0)

    assert (removal.name, removal.version, removal.size_bytes) == ("toy", versions[0].id, versions[0].size_bytes)
    assert remaining(store) == {version.id for version in versions}


@pytest.mark.slow
def test_nothing_young_is_removed(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    versions = publish_many(store, tmp_path, 3)
    place.objects.write("models/toy/versions/0123456789ab/config.json", [b"{}"], 2)

    assert store.gc(keep=1, grace_s=3600, dry_run=False) == []
    assert remaining(store) == {version.id for version in versions}


@pytest.mark.slow
def test_an_upload_without_a_manifest_is_removed_when_it_is_old(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    [version] = publish_many(store, tmp_path, 1)
    prefix = "models/toy/versions/0123456789ab"
    place.objects.write(f"{prefix}/tokenizer/merges.txt", [b"a"], 1)

    [removal] = store.gc(grace_s=0, dry_run=False)

    assert (removal.version, removal.reason) == ("0123456789ab", "incomplete")
    assert place.objects.entries(prefix) == []
    assert remaining(store) == {version.id}


def test_claims_and_probes_of_writers_that_died_are_swept_away(place: StorePlace, tmp_path: Path) -> None:
    publish_many(place.open(), tmp_path, 1)
    for key in ("claims/toy/dead", "probes/dead"):
        place.objects.write(key, [b"x"], 1)

    place.open(claim_life_s=0).gc(grace_s=0, dry_run=False)

    assert place.objects.entries("claims") == place.objects.entries("probes") == []


def test_a_half_written_local_file_is_swept_away_and_never_listed(tmp_path: Path) -> None:
    store = Store.open((tmp_path / "store").as_uri())
    [version] = publish_many(store, tmp_path, 1)
    half_written = tmp_path / "store" / "models" / "toy" / "aliases" / "latest#123"
    half_written.write_text("{")
    assert list(store.aliases("toy")) == ["latest"]

    store.gc(grace_s=0, dry_run=False)

    assert not half_written.exists()
    assert store.resolve("toy") == version.id


@pytest.mark.slow
def test_a_removal_that_stops_half_way_leaves_no_damaged_version(rclone: S3Server, tmp_path: Path) -> None:
    deletions: list[str] = []

    def fail_from_the_second_deletion(method: str, path: str, _headers: set[str]) -> Treatment:
        if method != "DELETE" and "?delete" not in path:
            return "forward"
        deletions.append(path)
        return "forward" if len(deletions) == 1 else "not implemented"

    with awkward_proxy(rclone) as proxy:
        store = Store.open(proxy.server.url(tmp_path.name), options=proxy.server.options)
        versions = publish_many(store, tmp_path, 3)
        proxy.treat = fail_from_the_second_deletion
        with pytest.raises(StoreUnavailable):
            store.gc(keep=1, grace_s=0, dry_run=False)

    assert len(deletions) > 1
    [incomplete] = Store.open(rclone.url(tmp_path.name), options=rclone.options).gc(grace_s=0)
    assert (incomplete.version, incomplete.reason) == (versions[0].id, "incomplete")


def test_an_empty_folder_is_left_of_no_removed_version(tmp_path: Path) -> None:
    store = Store.open((tmp_path / "store").as_uri())
    versions = publish_many(store, tmp_path, 3)

    store.gc(keep=1, grace_s=0, dry_run=False)

    folders = {path.name for path in (tmp_path / "store" / "models" / "toy" / "versions").iterdir()}
    assert folders == {version.id for version in versions[1:]}


def test_an_alias_that_cannot_be_read_stops_the_collection(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    versions = publish_many(store, tmp_path, 3)
    place.objects.write("models/toy/aliases/stable", [b"damaged"], 7)

    with pytest.raises(CorruptCheckpoint, match="toy@stable is damaged"):
        store.gc(keep=1, grace_s=0, dry_run=False)
    assert remaining(store) == {version.id for version in versions}
