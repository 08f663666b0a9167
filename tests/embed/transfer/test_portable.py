"""Errors in a form are named by file, line and field before anything is sent."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.embed.transfer.command import app
from services.embed.transfer.entries import TransferError
from services.embed.transfer.files import _checked_order
from services.embed.transfer.portable import checked_bytes, open_form, read_description, read_manifest

GOOD: dict[str, Any] = {"file": "a.png", "id": "a"}


def write(folder: Path, *lines: dict[str, Any] | str, **description: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "a.png").write_bytes(b"a")
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / "images.jsonl").write_text("".join(f"{text}\n" for text in texts))
    if description:
        (folder / "collection.json").write_text(json.dumps({"format": "fovea-collection/1", **description}))
    return folder


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2: Invalid JSON"),
        ({"id": "b"}, "line 2, file: Field required"),
        ({"file": "a.png", "id": 3}, "line 2, id: Input should be a valid string"),
        ({"file": "a.png", "id": "../b"}, "line 2, id: The image id has a path segment"),
        ({"file": "a.png", "id": "b", "metdata": {}}, "line 2, metdata: there is no such field"),
        ({"file": "a.png", "id": "b", "created": -1}, "line 2, created: Input should be greater"),
        ({"file": "a.png", "id": "b", "sha256": "abc"}, "line 2, sha256: String should match"),
        ({"file": "b.png", "id": "b"}, "line 2, file: there is no b.png"),
        ({"file": "a.png", "id": "a"}, "has two images 'a'"),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: dict[str, Any] | str, reason: str) -> None:
    form = open_form(write(tmp_path, GOOD, line))
    with pytest.raises(TransferError) as raised:
        _checked_order(form, read_description(form))
    assert reason in str(raised.value)


def test_a_list_may_begin_with_a_byte_order_mark_and_end_its_lines_as_windows_does(tmp_path: Path) -> None:
    form = open_form(write(tmp_path, GOOD, {**GOOD, "id": "b"}))
    text = (tmp_path / "images.jsonl").read_text()
    (tmp_path / "images.jsonl").write_text(text, encoding="utf-8-sig", newline="\r\n")
    assert [entry.id for entry in read_manifest(form)] == ["a", "b"]


def test_a_form_that_lacks_lines_or_is_of_another_format_is_refused(tmp_path: Path) -> None:
    form = open_form(write(tmp_path, GOOD, images=2))
    with pytest.raises(TransferError, match="has 1 lines, not 2"):
        _checked_order(form, read_description(form))
    with pytest.raises(TransferError, match="'fovea-collection/9'"):
        read_description(open_form(write(tmp_path, GOOD, format="fovea-collection/9")))


def test_images_in_any_order_are_sorted(tmp_path: Path) -> None:
    form = open_form(write(tmp_path, {"file": "a.png", "id": "b"}, GOOD))
    entries = _checked_order(form, read_description(form))
    assert isinstance(entries, list)
    assert [entry.id for entry in entries] == ["a", "b"]


def test_bytes_that_are_not_those_of_the_list_and_files_elsewhere_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"secret")
    lines = [{**GOOD, "sha256": "0" * 64}, {"file": "../outside", "id": "b"}]
    form = open_form(write(tmp_path / "form", *lines))
    damaged, outside = read_manifest(form)
    with pytest.raises(TransferError, match=r"sha256: that of .* is another one"):
        checked_bytes(form, damaged)
    with pytest.raises(TransferError, match="leads out of the folder"):
        checked_bytes(form, outside)


def test_a_tar_made_by_tar_is_read(tmp_path: Path) -> None:
    write(tmp_path / "form", GOOD, name="things")
    with tarfile.open(tmp_path / "form.tar", "w") as tar:
        tar.add(tmp_path / "form", arcname="./")
    form = open_form(tmp_path / "form.tar")
    assert read_description(form).name == "things"
    (entry,) = read_manifest(form)
    assert checked_bytes(form, entry) == b"a"
    form.close()
    (tmp_path / "no.tar").write_bytes(b"no tar at all")
    with pytest.raises(TransferError, match="not an uncompressed tar"):
        open_form(tmp_path / "no.tar")


@pytest.mark.parametrize("name", ["images.jsonl", "collection.json", "a.png"])
def test_a_sparse_tar_that_says_that_it_has_more_than_it_has_is_refused_unread(tmp_path: Path, name: str) -> None:
    with tarfile.open(tmp_path / "form.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo(name)
        member.size = 1
        member.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**37)}
        tar.addfile(member, io.BytesIO(b"{"))
    assert (tmp_path / "form.tar").stat().st_size < 2**14
    with pytest.raises(TransferError, match=f"{name} says that it has {2**37} bytes, which are not in the tar"):
        open_form(tmp_path / "form.tar")


def test_commands_end_with_one_line_that_says_what_is_wrong(tmp_path: Path) -> None:
    for arguments, reason in (
        (["import", tmp_path / "none", "x"], "there is no folder and no tar"),
        (["export", "x", tmp_path / "out", "--url", "http://127.0.0.1:9/v1/"], "no Fovea at http://127.0.0.1:9: "),
        (["export", "x", tmp_path / "out"], "no Fovea at http://127.0.0.1:10: "),
        (["backup", tmp_path / "backups", "--collections-dir", tmp_path / "none"], "there are no collections in"),
        (["restore", tmp_path / "backups"], "there is no complete backup"),
    ):
        environment = {"FOVEA_URL": "http://127.0.0.1:10"}
        result = CliRunner(env=environment).invoke(app, [str(argument) for argument in arguments])
        assert (result.exit_code, result.stderr.count("\n"), result.stdout) == (1, 1, "")
        assert result.stderr.startswith(f"fovea collections {arguments[0]}: ")
        assert reason in result.stderr
    assert not (tmp_path / "out").exists()
