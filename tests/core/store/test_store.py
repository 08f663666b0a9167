import asyncio
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web

from services.core.store.checkpoint_files import read_description
from services.core.store.errors import (
    AliasMoved,
    CorruptCheckpoint,
    InvalidCheckpoint,
    NotFoundInStore,
    StoreUnavailable,
)
from services.core.store.manifest import MAX_JSON_BYTES, CheckpointInfo
from services.core.store.objects import Objects
from services.core.store.store import Store
from tests.core.s3_servers import BUCKET, S3Server, put_raw, rclone_server
from tests.core.store_places import StorePlace
from tests.core.tiny_checkpoints import INFO, write_checkpoint, write_starter
from tests.kept_port import kept_port
from tests.web_server import serving


@pytest.mark.slow
def test_a_published_version_is_found_under_its_alias_and_its_id(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    published = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)

    assert store.resolve("toy") == store.resolve("toy", published.id) == published.id
    assert store.names() == ["toy"]
    [listed] = place.open().versions("toy")
    assert (listed.id, listed.size_bytes, listed.num_files) == (
        published.id,
        published.size_bytes,
        published.num_files,
    )


def test_the_manifest_says_everything_that_the_publisher_knew(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)

    manifest = store.manifest("toy", version.id)

    assert CheckpointInfo(**manifest.model_dump(include=set(CheckpointInfo.model_fields))) == INFO
    assert (manifest.name, manifest.version, manifest.digest[:12]) == ("toy", version.id, version.id)
    assert set(manifest.files) == {"model.safetensors", "config.json", "tokenizer/merges.txt"}


def test_publishing_the_same_content_twice_gives_one_version_and_leaves_it_untouched(
    place: StorePlace, tmp_path: Path
) -> None:
    store = place.open()
    first = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    manifest = store.manifest("toy", first.id)

    second = store.publish("toy", write_checkpoint(tmp_path / "b"), INFO)

    assert second.id == first.id
    assert store.manifest("toy", first.id) == manifest
    assert store.aliases("toy")["latest"].previous == ()


@pytest.mark.slow
def test_a_file_larger_than_one_request_is_published_and_verified_whole(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    weights = bytes(range(256)) * (9 * 1024 * 1024 // 256)
    version = store.publish("toy", write_checkpoint(tmp_path / "a", weights), INFO)

    copy = store.fetch("toy", version.id, tmp_path / "cache")

    assert (copy / "model.safetensors").read_bytes() == (tmp_path / "a/model.safetensors").read_bytes()


def test_json_that_takes_long_to_read_is_not_published(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "new")
    long = " " * MAX_JSON_BYTES + "{}"
    for vocabulary in ("tokenizer.json", "tekken.json"):  # may be longer
        (directory / vocabulary).write_text(long)
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("toy", directory, INFO)

    (directory / "labels.json").write_text(long)
    with pytest.raises(
        InvalidCheckpoint, match=f"{directory}: labels.json has {len(long)} bytes; a JSON file may have 16777216"
    ):
        store.publish("toy", directory, INFO)


def test_publishing_without_an_alias_moves_none(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO, alias=None)

    assert store.aliases("toy") == {}
    assert store.resolve("toy", version.id) == version.id


@pytest.mark.slow
def test_an_alias_is_moved_only_from_where_the_caller_expects_it(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    old = store.publish("toy", write_checkpoint(tmp_path / "a", b"old"), INFO)
    new = store.publish("toy", write_checkpoint(tmp_path / "a", b"new"), INFO)

    store.promote("toy", old.id, "stable", expected=None)
    with pytest.raises(AliasMoved) as moved:
        store.promote("toy", new.id, "stable", expected=None)
    assert (moved.value.expected, moved.value.found) == (None, old.id)
    with pytest.raises(AliasMoved):
        store.rollback("toy", "latest", expected=old.id)

    store.promote("toy", new.id, "stable", expected=old.id)
    assert store.resolve("toy", "stable") == new.id


@pytest.mark.slow
def test_rolling_back_goes_to_the_version_before_and_then_further_back(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    ids = [store.publish("toy", write_checkpoint(tmp_path / "a", weights), INFO).id for weights in (b"1", b"2", b"3")]

    assert store.rollback("toy", "latest") == ids[1]
    assert store.rollback("toy", "latest") == ids[0] == store.resolve("toy")
    with pytest.raises(NotFoundInStore, match="no previous version"):
        store.rollback("toy", "latest")


def test_an_alias_remembers_a_bounded_number_of_versions(tmp_path: Path) -> None:
    store = Store.open("memory://")
    for number in range(25):
        store.publish("toy", write_checkpoint(tmp_path / "a", b"%d" % number), INFO)

    assert len(store.aliases("toy")["latest"].previous) == 20


def test_what_does_not_exist_is_named(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    assert (store.names(), store.versions("toy"), store.aliases("toy")) == ([], [], {})
    with pytest.raises(NotFoundInStore, match="there is no model 'toy' in "):
        store.resolve("toy")

    store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    with pytest.raises(NotFoundInStore, match="toy has no version 0123456789ab"):
        store.promote("toy", "0123456789ab", "stable")
    with pytest.raises(NotFoundInStore, match="toy has no version 'latest'"):
        store.manifest("toy", "latest")
    with pytest.raises(NotFoundInStore, match="toy has no alias 'stable'"):
        store.rollback("toy", "stable")


@pytest.mark.parametrize(
    ("reference", "meant"),
    [
        ("toyy@latest", "; did you mean toy?"),
        ("toyy@0123456789ab", "; did you mean toy?"),
        ("open-fact@latest", "; did you mean open-facts?"),  # which is packaged
        ("toy@lates", "; did you mean latest?"),
        ("unlike@latest", ""),
    ],
)
def test_the_nearest_name_is_asked_for_where_there_is_none(
    place: StorePlace, tmp_path: Path, reference: str, meant: str
) -> None:
    store = place.open()
    store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    name, _, alias = reference.partition("@")
    with pytest.raises(NotFoundInStore) as found:
        store.resolve(name, alias)
    assert "".join(str(found.value).partition("; ")[1:]) == meant


def test_an_upload_without_a_manifest_is_no_version(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    place.objects.delete([f"models/toy/versions/{version.id}/manifest.json"])

    assert store.versions("toy") == []
    with pytest.raises(NotFoundInStore):
        store.promote("toy", version.id, "stable")
    assert store.publish("toy", tmp_path / "a", INFO).id == version.id
    store.verify("toy", version.id)


@pytest.mark.parametrize("path", ["model.safetensors", "config.json", "manifest.json"])
def test_one_flipped_byte_in_the_store_is_found_and_mended_by_publishing_again(
    place: StorePlace, tmp_path: Path, path: str
) -> None:
    store = place.open()
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    key = f"models/toy/versions/{version.id}/{path}"
    body = bytearray(place.objects.read(key).body)
    body[len(body) // 2] ^= 1
    place.objects.write(key, [bytes(body)], len(body))

    with pytest.raises(CorruptCheckpoint) as damage:
        store.verify("toy", version.id)
    assert damage.value.file == path
    with pytest.raises(CorruptCheckpoint):
        store.fetch("toy", version.id, tmp_path / "cache")
    assert not (tmp_path / "cache" / "toy" / version.id).exists()

    store.publish("toy", tmp_path / "a", INFO)
    store.verify("toy", version.id)


def test_a_missing_and_a_truncated_file_are_named(place: StorePlace, tmp_path: Path) -> None:
    store = place.open()
    version = store.publish("toy", write_checkpoint(tmp_path / "a"), INFO)
    key = f"models/toy/versions/{version.id}/config.json"

    place.objects.write(key, [b"{}"], 2)
    with pytest.raises(CorruptCheckpoint, match=r"config\.json: expected 12 bytes, found 2"):
        store.verify("toy", version.id)
    place.objects.delete([key])
    with pytest.raises(CorruptCheckpoint, match=r"config\.json: expected a file, found none"):
        store.verify("toy", version.id)


def test_an_alias_that_is_not_one_is_reported_as_damage(place: StorePlace) -> None:
    place.objects.write("models/toy/aliases/latest", [b"nonsense"], 8)

    with pytest.raises(CorruptCheckpoint, match="toy@latest is damaged"):
        place.open().resolve("toy")


@pytest.mark.parametrize("name", ["", "Toy", "../toy", "a/b", "-a", "x" * 64])
def test_names_outside_the_rules_are_refused_with_the_rule(tmp_path: Path, name: str) -> None:
    store = Store.open("memory://")
    directory = write_checkpoint(tmp_path / "a")

    with pytest.raises(InvalidCheckpoint, match=r"model name .* must be 1 to 63 characters of"):
        store.publish(name, directory, INFO)
    with pytest.raises(InvalidCheckpoint, match=r"alias .* must be 1 to 63 characters of"):
        store.publish("toy", directory, INFO, alias=name)
    assert store.names() == []


def test_an_alias_that_looks_like_a_version_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="looks like a version id"):
        Store.open("memory://").publish("toy", write_checkpoint(tmp_path / "a"), INFO, alias="0123456789ab")


def test_starters_are_published(place: StorePlace, tmp_path: Path) -> None:
    starters = [write_starter(tmp_path / "a", "one"), write_starter(tmp_path / "b", "two")]
    store = place.open()

    store.publish_starters(starters)

    assert store.names() == ["one", "two"]
    manifest = store.verify("one", store.resolve("one"))
    assert manifest.kind == "tiny"
    assert "checkpoint.json" not in manifest.files


def test_starters_never_move_an_alias_and_complete_what_a_killed_process_left(
    place: StorePlace, tmp_path: Path
) -> None:
    store = place.open()
    own = store.publish("one", write_checkpoint(tmp_path / "own", b"own"), INFO)

    store.publish_starters([write_starter(tmp_path / "a", "one"), write_starter(tmp_path / "b", "two")])

    assert store.resolve("one") == own.id
    assert store.names() == ["one", "two"]


def test_a_store_with_an_earlier_starter_keeps_it_and_is_told_how_to_publish_the_packaged_one(
    place: StorePlace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = place.open()
    store.publish_starters([write_starter(tmp_path / "a", "one", b"earlier")])
    earlier = store.resolve("one")
    capsys.readouterr()
    packaged = write_starter(tmp_path / "b", "one")
    store.publish_starters([packaged])
    assert store.resolve("one") == earlier
    assert f"fovea store publish {packaged}" in capsys.readouterr().out
    store.publish("one", packaged, read_description(packaged).info())
    capsys.readouterr()
    store.publish_starters([packaged])
    assert "packaged" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_store_that_cannot_be_written_stays_without_the_starters_and_can_be_read(tmp_path: Path) -> None:
    starters = [write_starter(tmp_path / "starter", "one")]
    (tmp_path / "file").write_text("not a folder")

    store = Store.open((tmp_path / "file" / "store").as_uri())
    store.publish_starters(starters)
    assert store.names() == []
    with rclone_server(tmp_path / "rclone", "--read-only") as server:
        store = Store.open(server.url("models"), options=server.options)
        store.publish_starters(starters)
        assert store.names() == []
        with pytest.raises(StoreUnavailable):
            store.publish("toy", starters[0], INFO)


def test_opening_and_reading_a_local_store_creates_nothing(tmp_path: Path) -> None:
    store = Store.open((tmp_path / "store").as_uri())

    assert store.names() == []
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://host/path", "must begin with file://, memory://, s3://, gs://"),
        ("file://host/path", "needs an absolute path"),
        ("s3://key:secret@bucket/path", "must not contain credentials"),
        ("s3://bucket?secret_access_key=x", "secret_access_key does not belong in a URL"),
        ("s3://bucket?colour=red", "colour"),
    ],
)
def test_a_store_url_that_makes_no_sense_is_refused_with_a_reason(url: str, reason: str) -> None:
    with pytest.raises(StoreUnavailable, match=reason):
        Store.open(url)


def test_a_wrong_secret_is_told_in_one_line(rclone: S3Server) -> None:
    store = Store.open(rclone.url("x"), options={**rclone.options, "secret_access_key": "wrong"})

    with pytest.raises(StoreUnavailable) as refused:
        store.resolve("toy")
    assert "\n" not in str(refused.value)
    assert "403" in str(refused.value) and "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(refused.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "minio", "ftp://minio", "http://[::1", "http://", "http://a b"])
def test_an_endpoint_that_is_no_address_is_told_with_its_setting(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreUnavailable, match=r"no http:// or https:// address; set endpoint= in the store URL"):
        Store.open(f"s3://bucket?endpoint={quote(endpoint)}")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(StoreUnavailable, match="or AWS_ENDPOINT_URL"):
        Store.open("s3://bucket")


def test_two_different_endpoints_are_refused(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"s3://{BUCKET}/two?region=us-east-1&endpoint={moto.endpoint}"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"{moto.endpoint}/")
    assert Objects(url, moto.options).entries(None) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://elsewhere.example")
    with pytest.raises(StoreUnavailable, match=r"=https://elsewhere\.example differ; unset one"):
        Objects(url, moto.options)


def test_an_endpoint_may_end_with_a_slash_or_stand_in_the_environment(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/slash?region=us-east-1"
    assert Objects(f"{url}&endpoint={moto.endpoint}/", moto.options).entries(None) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    assert Objects(url, moto.options).entries(None) == []


@pytest.mark.parametrize(("bucket", "path"), [("none", ""), (BUCKET, "/minio")])
def test_a_bucket_that_the_endpoint_does_not_have_is_told_with_the_setting(
    moto: S3Server, bucket: str, path: str
) -> None:
    objects = Objects(f"s3://{bucket}?endpoint={moto.endpoint}{path}&region=us-east-1", moto.options)
    with pytest.raises(StoreUnavailable, match="has no such bucket; check the bucket's name, and endpoint="):
        objects.entries(None)


@pytest.mark.parametrize(
    ("status", "code", "cure"),
    [
        (400, "ExpiredToken", "have expired; renew AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN"),
        (400, "AuthorizationHeaderMalformed", "in another region; set region= in the store URL or AWS_REGION"),
        (301, "PermanentRedirect", "in another region; set region= in the store URL or AWS_REGION"),
        (403, "InvalidAccessKeyId", "refuses the credentials; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_what_a_server_refuses_is_told_with_the_setting_to_change(status: int, code: str, cure: str) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=f"<?xml version='1.0'?>\n<Error><Code>{code}</Code></Error>")

    async def ask() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with serving(app) as endpoint:
            objects = Objects(f"s3://bucket?endpoint={endpoint}", {"access_key_id": "a", "secret_access_key": "b"})
            with pytest.raises(StoreUnavailable, match=cure) as refused:
                await asyncio.to_thread(objects.entries, None)
            assert "\n" not in str(refused.value)

    asyncio.run(ask())


UNREADABLE_KEYS = ["a//b.jpg", "a/./b.jpg", "a/../b.jpg", "a/empty//", "a/.", "/lead.jpg", 'a/"é//x.jpg']


def test_keys_that_can_not_be_read_are_skipped_and_named(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    # S3 lists a thousand keys a page.
    readable = ["a/%2F b+ä.jpg", "a/c.jpg", "z.jpg", *(f"many/{number:04}" for number in range(1001))]
    put_raw(moto, "odd", *UNREADABLE_KEYS, "a/folder/", *readable)
    objects = Objects(f"s3://odd?endpoint={moto.endpoint}&region=us-east-1", moto.options)

    listing = objects.listing(None)
    assert sorted(listing.unreadable) == sorted(f"s3://odd/{key}" for key in UNREADABLE_KEYS)
    assert sorted(entry.key for entry in listing.entries) == sorted(readable)
    assert "can't be read" in (printed := capsys.readouterr().out) and "s3://odd/a//b.jpg" in printed

    inside = Objects(f"s3://odd/a?endpoint={moto.endpoint}&region=us-east-1", moto.options)
    assert sorted(entry.key for entry in inside.entries(None)) == ["%2F b+ä.jpg", "c.jpg"]
    assert [entry.key for entry in objects.entries("many")] == readable[3:]
    assert objects.children("a") == ["%2F b+ä.jpg", "c.jpg"]


def test_a_public_bucket_with_an_unreadable_key_is_listed_without_credentials(moto: S3Server) -> None:
    put_raw(moto, "public", "a//b.jpg", "c.jpg")
    url = f"s3://public?endpoint={moto.endpoint}&region=us-east-1&skip_signature=true"
    assert [entry.key for entry in Objects(url, {}).entries(None)] == ["c.jpg"]


def test_the_models_of_a_store_with_an_unreadable_key_are_found(moto: S3Server, tmp_path: Path) -> None:
    url = f"s3://models-and-more?endpoint={moto.endpoint}&region=us-east-1"
    put_raw(moto, "models-and-more", "models//toy", "models/toy/versions//x", "models/toy/aliases//x")
    store = Store.open(url, options=moto.options)
    version = store.publish("toy", write_checkpoint(tmp_path / "toy"), INFO)
    assert store.names() == ["toy"]
    assert [found.id for found in store.versions("toy")] == [version.id]
    assert list(store.aliases("toy")) == ["latest"]


def test_a_file_whose_name_is_not_utf_8_is_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"1")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.jpg")).write_bytes(b"1")
    listing = Objects(tmp_path.as_uri(), {}).listing(None)
    assert [(entry.key, entry.size_bytes) for entry in listing.entries] == [("a.jpg", 1)]
    [name] = listing.unreadable
    assert name == f"{tmp_path.as_uri()}/b\\udcff.jpg"


@pytest.mark.slow
def test_a_server_that_is_away_is_told_in_one_line_after_a_few_tries() -> None:
    with kept_port() as port:
        url = f"s3://bucket?endpoint=http://127.0.0.1:{port}"
        store = Store.open(url, options={"access_key_id": "a", "secret_access_key": "b"})
        with pytest.raises(StoreUnavailable, match=r"s3://bucket: .* retries") as away:
            store.resolve("toy")

    assert "\n" not in str(away.value)


def test_the_label_of_a_store_holds_no_query(rclone: S3Server) -> None:
    assert Store.open(rclone.url("models"), options=rclone.options).label == "s3://checkpoints/models"
