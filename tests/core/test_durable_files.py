import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.core.durable_files import delete_durably, half_written_files, write_durably


def test_the_old_content_stays_whole_until_the_new_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_durably(path, [b"old"])
    os.link(path, tmp_path / "same file")

    def chunks() -> Iterator[bytes]:
        yield b"ne"
        assert path.read_bytes() == b"old"
        yield b"w"

    write_durably(path, chunks())

    assert path.read_bytes() == b"new"
    # Written beside and moved over it, never into it.
    assert (tmp_path / "same file").read_bytes() == b"old"


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    def failing_chunks() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("no more")

    write_durably(tmp_path / "file", [b"old"])
    with pytest.raises(RuntimeError):
        write_durably(tmp_path / "file", failing_chunks())

    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_half_written_files_are_told_from_others_by_their_name(tmp_path: Path) -> None:
    for name in ("file#12", "file", "#", "file#x", "#1"):
        (tmp_path / name).touch()

    assert [path.name for path in half_written_files(tmp_path)] == ["file#12"]


def test_deleting_removes_the_folder_only_when_it_is_empty_and_may_be_repeated(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_durably(tmp_path / "folder" / name, [b"x"])

    delete_durably(tmp_path / "folder" / "one")
    assert (tmp_path / "folder" / "two").exists()
    delete_durably(tmp_path / "folder" / "two")
    assert not (tmp_path / "folder").exists()
    delete_durably(tmp_path / "folder" / "two")
    assert tmp_path.exists()
