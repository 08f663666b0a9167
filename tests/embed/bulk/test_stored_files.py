"""Images in an object store are listed and read as those of a folder are."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.store.objects import Objects
from services.embed.bulk.image_sources import SourceError, Unreadable, list_images, read_image, read_metadata
from tests.core.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, S3Server, moto_server, put_raw
from tests.embed.bulk_sources import write_images, write_shard

MAX_BYTES = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write_images(tmp_path / "photos", 3)
    write_images(folder / "2019", 2)
    write_images(folder / ".hidden", 1)
    write_shard(folder / "a-0.tar", range(100, 103))
    write_shard(folder / "a-1.tar", range(103, 105))
    return folder


def test_a_url_lists_what_the_folder_lists_and_reads_the_same_bytes(folder: Path) -> None:
    plain, stored = list_images([str(folder)]), list_images([f"file://{folder}"])
    assert [image.id for image in stored.images] == [image.id for image in plain.images]
    assert stored.skipped == []
    for one, other in zip(plain.images, stored.images, strict=True):
        assert read_image(one, MAX_BYTES) == read_image(other, MAX_BYTES)
        assert read_metadata(one) == read_metadata(other)


def test_tar_files_are_named_alone_and_as_a_range(folder: Path) -> None:
    assert [image.id for image in list_images([f"file://{folder}/a-1.tar"]).images] == ["103", "104"]
    ranged = list_images([f"file://{folder}/a-{{0..1}}.tar"])
    assert [image.id for image in ranged.images] == ["100", "101", "102", "103", "104"]


def test_a_damaged_tar_is_told_with_its_url_and_its_first_images_are_kept(folder: Path) -> None:
    whole = (folder / "a-0.tar").read_bytes()
    (folder / "a-0.tar").write_bytes(whole[:2048] + b"x" * 512 + whole[2560:])
    listing = list_images([f"file://{folder}/a-0.tar", f"file://{folder}/a-1.tar"])
    [damage] = listing.skipped
    assert damage.id == f"file://{folder}/a-0.tar"
    assert damage.reason.startswith("no readable tar file behind image ")


def test_what_is_gone_when_it_is_read_is_unreadable(folder: Path) -> None:
    listing = list_images([f"file://{folder}"])
    shutil.rmtree(folder / "2019")
    [gone] = [image for image in listing.images if image.id == "2019/000.jpg"]
    with pytest.raises(Unreadable, match=r"2019/000\.jpg is not in file://"):
        read_image(gone, MAX_BYTES)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("file://{folder}/none.tar", "none.tar is not in file://"),
        ("file://{folder}/none", "there are no images in file://"),
        ("s3://user:password@bucket/photos", "must not contain credentials"),
    ],
)
def test_a_url_that_leads_nowhere_is_told(folder: Path, source: str, complaint: str) -> None:
    with pytest.raises(SourceError, match=complaint):
        list_images([source.format(folder=folder)])


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    with moto_server() as server:
        photos = Objects(server.url("photos"), {})
        for path in (path for path in folder.rglob("*") if path.is_file()):
            content = path.read_bytes()
            photos.write(path.relative_to(folder).as_posix(), [content], len(content))
        yield server


@pytest.mark.process
def test_a_bucket_lists_what_the_folder_lists_and_reads_the_same_bytes(folder: Path, server: S3Server) -> None:
    plain, stored = list_images([str(folder)]), list_images([server.url("photos")])
    assert [image.id for image in stored.images] == [image.id for image in plain.images]
    for one, other in zip(plain.images, stored.images, strict=True):
        assert read_image(one, MAX_BYTES) == read_image(other, MAX_BYTES)
        assert read_metadata(one) == read_metadata(other)
    ranged = list_images([server.url("photos/a-{0..1}.tar")])
    assert len(ranged.images) == 5


@pytest.mark.process
def test_an_image_under_a_key_that_can_not_be_read_is_skipped_and_named(folder: Path, server: S3Server) -> None:
    put_raw(server, BUCKET, "photos/2019//lost.jpg", "photos/2019/./notes.txt")
    listing = list_images([server.url("photos")])
    assert [image.id for image in listing.images] == [image.id for image in list_images([str(folder)]).images]
    [lost] = listing.skipped
    assert lost.id == f"s3://{BUCKET}/photos/2019//lost.jpg"
    assert "can't be read" in lost.reason
