import gzip
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.core.store.checkpoint_files import is_pickled, read_checkpoint_directory
from services.core.store.errors import InvalidCheckpoint
from services.core.store.manifest import check_path
from tests.core.tiny_checkpoints import safetensors, write_checkpoint

PICKLE = pickle.dumps({"weights": [1, 2, 3]})


def test_every_file_is_read_with_its_digest_in_order_of_path(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a")
    (tmp_path / "a" / "bpe.txt.gz").write_bytes(gzip.compress(b"a b\n"))
    (tmp_path / "a" / "spiece.model").write_bytes(b"\n\x0e\n\x05<unk>")
    (tmp_path / "a" / "chat_template.jinja").write_bytes(b"{{ messages[0]['content'] }}")

    files = read_checkpoint_directory(tmp_path / "a")

    paths = [
        "bpe.txt.gz",
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "spiece.model",
        "tokenizer/merges.txt",
    ]
    assert [file.path for file in files] == paths
    assert [file.stored.size_bytes for file in files] == [file.source.stat().st_size for file in files]


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "model.bin", "model.pkl", "model.ckpt", "x.npz", "run.py"])
def test_kinds_of_files_that_can_run_code_are_refused_by_name(tmp_path: Path, name: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / name).write_bytes(b"anything")

    with pytest.raises(InvalidCheckpoint, match=rf"{name} has a file type .*\.safetensors"):
        read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "notes.txt", "spiece.model", "bpe.txt.gz"])
def test_a_pickle_under_an_allowed_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(PICKLE)

    with pytest.raises(InvalidCheckpoint, match=name):
        read_checkpoint_directory(tmp_path)


def test_an_archive_as_torch_saves_it_is_refused_under_an_allowed_name(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "spiece.model", "w") as archive:
        archive.writestr("data.pkl", PICKLE)

    with pytest.raises(InvalidCheckpoint, match=r"spiece\.model is a zip archive"):
        read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"short",
        safetensors(b"weights")[:-1],
        safetensors(b"weights") + b"x",
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (15).to_bytes(8, "little") + b'{"weights": {}}',
    ],
    ids=["empty", "short", "truncated", "too long", "huge header", "no object", "no offsets"],
)
def test_a_safetensors_file_that_is_not_one_is_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(body)

    with pytest.raises(InvalidCheckpoint, match=r"model\.safetensors does not match its file type"):
        read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "body"), [("config.json", b"{"), ("notes.txt", b"\xff\xfe"), ("a.csv", b"a\0b"), ("b.txt.gz", b"plain")]
)
def test_text_that_is_not_what_its_name_says_is_refused(tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)

    with pytest.raises(InvalidCheckpoint, match=rf"{name} does not match its file type"):
        read_checkpoint_directory(tmp_path)


def test_symbolic_links_are_refused_also_as_folders(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a")
    (tmp_path / "a" / "more").symlink_to(tmp_path)
    with pytest.raises(InvalidCheckpoint, match="more is a symbolic link"):
        read_checkpoint_directory(tmp_path / "a")

    (tmp_path / "a" / "more").unlink()
    (tmp_path / "a" / "passwords.txt").symlink_to("/etc/passwd")
    with pytest.raises(InvalidCheckpoint, match=r"passwords\.txt is a symbolic link"):
        read_checkpoint_directory(tmp_path / "a")


def test_a_special_file_is_refused_without_opening_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")

    with pytest.raises(InvalidCheckpoint, match="not a regular file"):
        read_checkpoint_directory(tmp_path)


def test_an_empty_folder_a_file_and_nothing_at_all_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty" / "folders").mkdir(parents=True)
    (tmp_path / "checkpoint.json").write_text("{}")
    for directory, reason in (
        (tmp_path / "empty", "no files"),
        (tmp_path / "checkpoint.json", "not a folder"),
        (tmp_path / "absent", "not a folder"),
        (tmp_path, "no files"),
    ):
        with pytest.raises(InvalidCheckpoint, match=reason):
            read_checkpoint_directory(directory)


def test_a_manifest_among_the_files_is_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")

    with pytest.raises(InvalidCheckpoint, match=r"manifest\.json is reserved for the store"):
        read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../a", "a/../b", "a//b", "a/", "", ".hidden", "-rf", "a b", "a\\b", "é", "a\n", "x" * 201]
)
def test_paths_that_could_lead_elsewhere_or_need_quoting_are_refused(path: str) -> None:
    with pytest.raises(InvalidCheckpoint, match="path"):
        check_path(path)


def test_more_files_than_the_limit_are_refused_with_the_limit(tmp_path: Path) -> None:
    for number in range(1001):
        (tmp_path / f"{number}.txt").touch()

    with pytest.raises(InvalidCheckpoint, match="there are 1001 files, at most 1000"):
        read_checkpoint_directory(tmp_path)


class Attack:
    """Runs a command where it is loaded from a pickle."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("true",)


class State:
    def __init__(self) -> None:
        self.weights = [1.5, 2.5]


PICKLED: dict[str, Any] = {
    "a list": [1, 2, 3],
    "a dict": {"weights": {"a": 1.5, "b": [None, True]}},
    "a text": "weights",
    "an instance": State(),
    "an attack": Attack(),
    "an attack in a dict": {"a": (1, 2), "b": Attack()},
    "an array": np.arange(6.0).reshape(2, 3),
}


@pytest.mark.parametrize("name", ["notes.txt", "README.md", "spiece.model", "bpe.txt.gz", "chat.jinja", "rows.csv"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_of_any_protocol_is_refused_under_any_name(tmp_path: Path, name: str, protocol: int) -> None:
    for pickled in PICKLED.values():
        for body in (pickle.dumps(pickled, protocol), pickle.dumps(pickled, protocol) + b" and what stands behind it"):
            (tmp_path / name).write_bytes(gzip.compress(body) if name.endswith(".gz") else body)
            with pytest.raises(InvalidCheckpoint, match=name):
                read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize(
    "body",
    [
        b"cos\nsystem\n(S'true'\ntR",  # fails where it ends, but its command has run by then
        b"(S'true'\nios\nsystem\n.",
        b"(cos\nsystem\nS'true'\no.",
        b"N0" * 100 + b"cos\nsystem\n(S'true'\ntR.",
        b"V" + b"a" * 2_000_000 + b"\n0cos\nsystem\n(S'true'\ntR.",
        b"N0" * 20_000,
    ],
)
def test_a_pickle_written_to_hide_is_refused(tmp_path: Path, body: bytes) -> None:
    (tmp_path / "notes.txt").write_bytes(body)

    with pytest.raises(InvalidCheckpoint, match=r"notes\.txt is a pickle"):
        read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize("name", ["spiece.model", "notes.txt"])
def test_an_array_file_and_an_archive_behind_text_are_refused(tmp_path: Path, name: str) -> None:
    array, archive = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([State()], dtype=object), allow_pickle=True)
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("data.pkl", pickle.dumps(Attack()))
    for body in (array.getvalue(), archive.getvalue(), b"hello\n" + archive.getvalue()):
        (tmp_path / name).write_bytes(body)
        with pytest.raises(InvalidCheckpoint, match=rf"{name} is (a NumPy array|a zip archive)"):
            read_checkpoint_directory(tmp_path)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("spiece.model", b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02\n\n\n\x03<s>\x18\x03"),
        ("merges.txt", b"#version: 0.2\n\xc4\xa0 t\nh e\n"),
        ("vocab.txt", b"[PAD]\n[UNK]\n.\n,\nI\n"),
        ("vocab.txt", b"cat\ndog\n.\n"),
        ("vocab.txt", b"I5\n.\n"),
        ("vocab.txt", b"N\n.\n"),
        ("notes.txt", b"Git 1.7.12.2 Release Notes\n"),  # a number of eight bytes, then `2` and `.`
        ("notes.txt", b"(in the beginning\nthere was)\n."),
        ("notes.txt", b"Very short.\nNone of it runs.\n"),
        ("notes.txt", b""),
        ("chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %}"),
        ("README.md", b"# Title\n\nText.\n"),
    ],
)
def test_text_that_begins_like_a_pickle_is_published(tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)

    assert [file.path for file in read_checkpoint_directory(tmp_path)] == [name]


@pytest.mark.slow
def test_no_text_that_lies_around_is_taken_for_a_pickle() -> None:
    packages = Path(np.__file__).parents[1]
    texts = [path for ending in ("md", "txt", "json", "jinja", "csv", "tsv") for path in packages.rglob(f"*.{ending}")]
    own = list(Path(__file__).parents[3].glob("docs/**/*.md"))

    assert len(texts) + len(own) > 100
    assert [path for path in (*texts, *own) if is_pickled(path.read_bytes())] == []


def test_text_that_unpacks_to_more_than_its_limit_is_refused_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.core.store.checkpoint_files.MAX_UNPACKED_BYTES", 1000)
    (tmp_path / "bpe.txt.gz").write_bytes(gzip.compress(b"a" * 2000))

    with pytest.raises(InvalidCheckpoint, match="more than 1000 bytes"):
        read_checkpoint_directory(tmp_path)


def test_two_files_of_one_name_where_case_does_not_count_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "A.txt").touch()

    with pytest.raises(InvalidCheckpoint, match="differ only in case"):
        read_checkpoint_directory(tmp_path)
