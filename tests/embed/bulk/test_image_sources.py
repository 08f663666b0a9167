import gzip
import json
import os
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.embed.bulk.image_sources import (
    Listing,
    Skipped,
    SourceError,
    Unreadable,
    fingerprint,
    list_images,
    read_image,
    read_metadata,
)

LIMIT = 1000


def write_files(folder: Path, *names: str) -> Path:
    """Files whose content is their name."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode())
    return folder


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, BytesIO(data))
    return path


def ids(listing: Listing) -> list[str]:
    return [image.id for image in listing.images]


def test_images_of_a_folder_are_called_by_their_path_in_it_and_stand_in_its_order(tmp_path: Path) -> None:
    write_files(tmp_path, "b/2.jpg", "a.PNG", "b/1.webp", "b-c/3.gif", "notes.txt", ".hidden.jpg", ".git/x.jpg")
    listing = list_images([str(tmp_path)])
    assert ids(listing) == ["a.PNG", "b-c/3.gif", "b/1.webp", "b/2.jpg"]
    assert listing.skipped == []
    assert [read_image(image, LIMIT) for image in listing.images] == [name.encode() for name in ids(listing)]
    assert [read_metadata(image) for image in listing.images] == [None] * 4


def test_links_to_folders_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    write_files(tmp_path / "pictures", "a.jpg")
    (tmp_path / "pictures" / "again").symlink_to(tmp_path / "pictures")
    write_files(tmp_path / "elsewhere", "b.jpg")
    (tmp_path / "pictures" / "other").symlink_to(tmp_path / "elsewhere")
    assert ids(list_images([str(tmp_path / "pictures")])) == ["a.jpg", "other/b.jpg"]


def test_what_a_folder_can_not_give_is_skipped_with_the_reason(tmp_path: Path) -> None:
    write_files(tmp_path, "a.jpg")
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / os.fsdecode(b"\xff.jpg")).write_bytes(b"x")
    listing = list_images([str(tmp_path)])
    assert ids(listing) == ["a.jpg"]
    assert sorted(listing.skipped, key=lambda one: one.id) == [
        Skipped("\\udcff.jpg", "its name is not UTF-8"),
        Skipped("gone.jpg", "No such file or directory"),
        Skipped("pipe.jpg", "it is not a file"),
    ]


def test_images_of_a_tar_are_called_by_their_key_and_have_the_json_beside_them(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar",
        {
            "./x/2.jpg": b"two",
            "./x/2.json": b'{"n": 2}',
            "x/1.json": b'{"n": 1}',
            "x/1.jpg": b"one",
            "x.y/3.v2.png": b"three",
            "x/1.txt": b"a caption",
            "x/._1.jpg": b"a fork",
        },
    )
    listing = list_images([str(path)])
    assert ids(listing) == ["x/2", "x/1", "x.y/3"]
    assert [read_image(image, LIMIT) for image in listing.images] == [b"two", b"one", b"three"]
    assert [read_metadata(image) for image in listing.images] == [{"n": 2}, {"n": 1}, None]


def test_a_range_names_its_tar_files(tmp_path: Path) -> None:
    for number in range(9, 12):
        write_tar(tmp_path / f"s-{number:03d}.tar", {f"{number}.jpg": b"x"})
    assert ids(list_images([f"{tmp_path}/s-{{009..011}}.tar"])) == ["9", "10", "11"]
    with pytest.raises(SourceError, match=r"there is no .*s-012\.tar"):
        list_images([f"{tmp_path}/s-{{009..012}}.tar"])


def test_a_range_without_zeros_in_front_has_none(tmp_path: Path) -> None:
    for number in range(9, 12):
        write_tar(tmp_path / f"s-{number}.tar", {f"{number}.jpg": b"x"})
    assert ids(list_images([f"{tmp_path}/s-{{9..11}}.tar"])) == ["9", "10", "11"]


def test_a_folder_gives_its_tar_files_and_its_images(tmp_path: Path) -> None:
    write_tar(tmp_path / "b.tar", {"2.jpg": b"x"})
    write_tar(tmp_path / "a.tar", {"1.jpg": b"x"})
    write_files(tmp_path, "c.jpg")
    assert ids(list_images([str(tmp_path)])) == ["1", "2", "c.jpg"]


def test_an_id_that_two_images_have_is_refused_with_both_named(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", {"1.jpg": b"x"})
    write_tar(tmp_path / "b.tar", {"1.png": b"x"})
    with pytest.raises(SourceError) as refused:
        list_images([str(tmp_path)])
    assert str(refused.value) == f"two images have the id '1': 1.jpg in {tmp_path}/a.tar, and 1.png in {tmp_path}/b.tar"


def test_suffixes_choose_among_images_of_one_key(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"image", "1.mask.png": b"mask"})
    (image,) = list_images([str(path)], ["jpg"]).images
    (mask,) = list_images([str(path)], ["mask.png"]).images
    assert (read_image(image, LIMIT), read_image(mask, LIMIT)) == (b"image", b"mask")


@pytest.mark.parametrize("source", ["folder", "text.txt", "empty.tar", "zipped.tar"])
def test_a_source_without_images_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.txt").write_text("no tar")
    (tmp_path / "empty.tar").write_bytes(b"")
    plain = write_tar(tmp_path / "plain.tar", {"1.jpg": b"x"})
    (tmp_path / "zipped.tar").write_bytes(gzip.compress(plain.read_bytes()))
    with pytest.raises(SourceError, match="there are no images in"):
        list_images([str(tmp_path / source)])


def test_a_source_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"there is no .*nowhere"):
        list_images([str(tmp_path / "nowhere")])


def test_a_damaged_tar_gives_the_images_before_the_damage(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "whole.tar", {f"{i}.jpg": bytes([i]) * 700 for i in range(4)})
    damaged = tmp_path / "damaged.tar"
    content = bytearray(whole.read_bytes())
    header = content.index(b"2.jpg")
    content[header : header + 200] = b"\x55" * 200
    damaged.write_bytes(content)
    listing = list_images([str(damaged)])
    assert ids(listing) == ["0", "1"]
    assert listing.skipped == [Skipped(str(damaged), f"no readable tar file behind image 2: damaged at byte {header}")]


def test_a_tar_that_was_cut_off_anywhere_gives_whole_images_only(tmp_path: Path) -> None:
    members = {f"{i}.jpg": bytes([i]) * 700 for i in range(3)}
    content = write_tar(tmp_path / "whole.tar", {"first.json": b"{}", **members}).read_bytes()
    cut = tmp_path / "cut.tar"
    for length in range(0, content.rindex(b"\x02") + 1, 97):
        cut.write_bytes(content[:length])
        try:
            listing = list_images([str(cut)])
        except SourceError:
            continue  # nothing of the first image is left
        is_whole = []
        for image in listing.images:
            try:
                assert read_image(image, LIMIT) == members[image.name]
                is_whole.append(True)
            except Unreadable as error:
                assert "before its end" in str(error)
                is_whole.append(False)
        assert all(is_whole[:-1])
        assert not all(is_whole) or listing.skipped or length % 512 == 0, length


def test_an_image_that_vanished_or_is_too_large_is_unreadable(tmp_path: Path) -> None:
    write_files(tmp_path, "a.jpg", "b.jpg")
    gone, large = list_images([str(tmp_path)]).images
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(Unreadable, match="No such file"):
        read_image(gone, LIMIT)
    with pytest.raises(Unreadable, match="the file has 5 bytes; the limit is 4 bytes"):
        read_image(large, 4)


@pytest.mark.parametrize(
    "metadata",
    [b"", b"{", b"[1]", b'"text"', b'{"n": nan}', b'{"t": "\\ud800"}', b"[" * 5000, b'{"a":' * 300 + b"1" + b"}" * 300],
)
def test_metadata_that_is_no_json_object_is_unreadable(tmp_path: Path, metadata: bytes) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"x", "1.json": metadata})
    (image,) = list_images([str(path)]).images
    with pytest.raises(Unreadable, match="its metadata is no"):
        read_metadata(image)


def test_metadata_that_is_not_finite_is_left_out_with_a_warning_and_the_rest_is_kept(tmp_path: Path) -> None:
    metadata = b'{"n": NaN, "kept": 1.5, "of": {"far": -Infinity, "near": 1}, "list": [1, [Infinity]], "large": 1e999}'
    path = write_tar(tmp_path / "a.tar", {"1.jpg": b"x", "1.json": metadata})
    (image,) = list_images([str(path)]).images
    with capture_logs() as logs:
        assert read_metadata(image) == {"kept": 1.5, "of": {"near": 1}}
    (told,) = logs
    assert (told["log_level"], told["image"], told["fields"]) == ("warning", "1", ["n", "of.far", "list", "large"])


def test_a_fingerprint_stays_where_images_move_and_changes_where_they_change(tmp_path: Path) -> None:
    def taken(folder: Path) -> str:
        return fingerprint(list_images([str(folder)]).images)

    folder = write_files(tmp_path / "a", "1.jpg", "2.jpg")
    os.utime(folder / "1.jpg", ns=(1, 1))  # or a file system of coarse times gives the next content the same
    before = taken(folder)
    assert taken(folder.rename(tmp_path / "b")) == before
    times = (tmp_path / "b" / "1.jpg").stat()
    (tmp_path / "b" / "1.jpg").write_bytes(b"other")
    assert taken(tmp_path / "b") != before
    os.utime(tmp_path / "b" / "1.jpg", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert taken(tmp_path / "b") == before  # 5 bytes of the same time: nothing was read
    (tmp_path / "b" / "2.jpg").rename(tmp_path / "b" / "3.jpg")
    assert taken(tmp_path / "b") != before


def test_a_fingerprint_depends_on_the_metadata_in_a_tar(tmp_path: Path) -> None:
    taken = []
    for metadata in ({"n": 1}, {"n": 10}):
        path = write_tar(tmp_path / "a.tar", {"1.jpg": b"x", "1.json": json.dumps(metadata).encode()})
        os.utime(path, ns=(1, 1))
        taken.append(fingerprint(list_images([str(path)]).images))
    assert taken[0] != taken[1]
