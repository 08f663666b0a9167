"""Every change is recorded, on disk before it is made, or it is not made."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from services.core.audit import AuditFailed, AuditLog
from services.core.errors import Conflict
from services.core.exchange import Caller, set_caller


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_change_is_on_disk_as_begun_before_it_is_made_and_as_done_after(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    set_caller(Caller("key:0", "north", "ci"))
    async with AuditLog(path).change("collection.create", collection="birds") as entry:
        (begun,) = lines(path)
        entry["created"] = True
    assert lines(path)[0] == begun
    done = lines(path)[1]
    assert begun["outcome"] == "begun" and done["outcome"] == "done"
    for line in (begun, done):
        assert (line["action"], line["collection"]) == ("collection.create", "birds")
        assert (line["tenant"], line["key"], line["client"]) == ("north", "ci", "key:0")
        assert line["time"]
    assert done["created"] is True


async def test_what_unicode_ends_lines_with_ends_no_line_of_the_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with AuditLog(path).change("collection.create", collection="a\u2028b\u2029c\u0085d"):
        pass
    for text in (path.read_text().splitlines(), path.read_text().split("\n")[:-1]):
        assert [json.loads(line)["collection"] for line in text] == ["a\u2028b\u2029c\u0085d"] * 2


async def test_a_change_that_fails_is_recorded_with_its_error_and_fails_as_it_did(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for error, name in ((Conflict("taken", code="image_exists"), "image_exists"), (KeyError("x"), "KeyError")):
        with pytest.raises(type(error)):
            async with AuditLog(path).change("images.add"):
                raise error
        assert (lines(path)[-1]["outcome"], lines(path)[-1]["error"]) == ("failed", name)


async def test_what_can_not_be_recorded_is_not_done(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path)  # a folder
    is_done = False
    with pytest.raises(AuditFailed) as raised:
        async with audit.change("images.add"):
            is_done = True
    assert (raised.value.status, raised.value.code) == (503, "audit_failed")
    with pytest.raises(AuditFailed), audit.command("key.create"):
        is_done = True
    assert not is_done


async def test_a_pipe_in_place_of_the_file_is_refused_at_once_and_a_file_is_written_again_later(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    audit = AuditLog(path)
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(AuditFailed), audit.command("key.create"):
            raise AssertionError("made without a record")
    finally:
        os.close(reader)
    with pytest.raises(AuditFailed), audit.command("key.create"):
        raise AssertionError("made without a record")
    path.unlink()
    with audit.command("key.create"):
        pass
    assert [line["outcome"] for line in lines(path)] == ["begun", "done"]


async def test_a_change_stays_made_where_its_end_can_not_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    async with AuditLog(path).change("images.add"):
        path.unlink()
        path.mkdir()


async def test_lines_of_several_writers_stay_whole_and_a_file_that_is_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for audit in (AuditLog(path), AuditLog(path)):
        with audit.command("key.create", key="x" * 1000):
            pass
    assert len(lines(path)) == 4
    path.rename(tmp_path / "older")
    with audit.command("key.create"):
        pass
    assert [line["outcome"] for line in lines(path)] == ["begun", "done"]
    assert path.stat().st_mode & 0o077 == 0


async def test_without_a_file_changes_are_made_all_the_same() -> None:
    async with AuditLog(None).change("images.add") as entry:
        entry["added"] = 1
