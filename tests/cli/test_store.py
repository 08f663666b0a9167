import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from services.cli.store import app
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from tests.core.s3_servers import ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY, moto_server, put_raw
from tests.core.tiny_checkpoints import INFO, write_checkpoint, write_starter


@dataclass(frozen=True)
class StoreCommand:
    url: str

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--store-url", self.url])

    def json(self, *arguments: str) -> Any:
        result = self(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def refusal(self, *arguments: str) -> str:
        """The one line that a failing command prints."""
        result = self(*arguments)
        assert (result.exit_code, result.stdout) == (1, "")
        [line] = result.stderr.splitlines()
        return line


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With a model of its own, so that no starters are published into it."""
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("toy", write_checkpoint(tmp_path / "first", b"first"), INFO)
    return store


@pytest.fixture
def fovea_store(store: Store) -> StoreCommand:
    return StoreCommand(store.label)


def test_ls_lists_models_with_versions_and_aliases(fovea_store: StoreCommand, store: Store) -> None:
    [row] = fovea_store.json("ls")

    assert (row["name"], row["id"], row["aliases"]) == ("toy", store.resolve("toy"), ["latest"])
    table = fovea_store("ls", "toy").stdout
    assert row["id"] in table
    assert "latest" in table


def test_ls_says_that_a_store_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.store.packaged_starters", lambda *_: [])  # as where the store can only be read
    empty = StoreCommand((tmp_path / "empty").as_uri())

    assert empty("ls").stdout == f"No models in {empty.url}.\n"
    assert empty.json("ls") == []


@pytest.mark.process
def test_ls_names_a_key_that_can_not_be_read_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
    with moto_server() as server:
        put_raw(server, BUCKET, "store/models//toy", "store/models/toy/versions/./a.json")
        url = server.url("store")
        version = Store.open(url).publish("toy", write_checkpoint(tmp_path / "toy"), INFO)
        listed = StoreCommand(url)("ls")
    assert listed.exit_code == 0
    assert version.id in listed.stdout
    assert f"s3://{BUCKET}/store/models/toy/versions/./a.json" in listed.stderr


def test_publish_reads_the_description_and_moves_the_aliases(
    fovea_store: StoreCommand, store: Store, tmp_path: Path
) -> None:
    directory = str(write_starter(tmp_path / "second", "toy", b"second"))

    published = fovea_store.json("publish", directory)
    assert published["aliases"] == ["latest"]
    assert store.resolve("toy") == published["id"]

    renamed = fovea_store.json("publish", directory, "--name", "other", "--alias", "a", "--alias", "b")
    assert set(store.aliases("other")) == {"a", "b"}
    assert store.resolve("other", "a") == renamed["id"]


def test_fetch_copies_a_version_to_a_folder_and_compares_one_that_is_there(
    fovea_store: StoreCommand, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "for another server" / "toy"

    fetched = fovea_store.json("fetch", "toy", str(folder))

    assert (fetched["version"], fetched["folder"]) == (store.resolve("toy"), str(folder))
    manifest = store.manifest("toy", fetched["version"])
    copied = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert copied == {*manifest.files, "manifest.json"}
    assert [path.name for path in folder.parent.iterdir()] == ["toy"]
    assert fovea_store("fetch", "toy", str(folder)).exit_code == 0
    (folder / "config.json").write_text("{}")
    assert "config.json" in fovea_store.refusal("fetch", "toy@latest", str(folder))
    assert "other" in fovea_store.refusal("fetch", "other", str(folder))


def test_fetch_without_a_folder_makes_the_copy_that_services_would_make(
    fovea_store: StoreCommand, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOVEA_CHECKPOINT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FOVEA_CHECKPOINT_CACHE_MAX_BYTES", "1MiB")

    fetched = fovea_store.json("fetch", "toy")

    assert fetched["folder"] == str(tmp_path / "cache" / "toy" / store.resolve("toy"))
    monkeypatch.setenv("FOVEA_CHECKPOINT_CACHE_MAX_BYTES", "1")
    assert "FOVEA_CHECKPOINT_CACHE_MAX_BYTES" in fovea_store.refusal("fetch", f"toy@{publish_another(store, tmp_path)}")


def publish_another(store: Store, tmp_path: Path) -> str:
    return store.publish("toy", write_checkpoint(tmp_path / "another", b"another"), INFO).id


def test_fetch_links_a_folder_to_a_version_of_a_store_that_nothing_changes(
    fovea_store: StoreCommand, store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "linked"

    fovea_store.json("fetch", "toy", str(folder), "--link")
    publish_another(store, tmp_path)
    fetched = fovea_store.json("fetch", "toy", str(folder), "--link")

    assert fetched["folder"] == str(folder)
    assert folder.readlink() == tmp_path / "store" / "models" / "toy" / "versions" / store.resolve("toy")
    (tmp_path / "taken").mkdir()
    assert "taken" in fovea_store.refusal("fetch", "toy", str(tmp_path / "taken"), "--link")


def test_a_model_made_elsewhere_is_published_under_a_name_and_a_kind(
    fovea_store: StoreCommand, store: Store, tmp_path: Path
) -> None:
    directory = write_starter(tmp_path / "second", "toy", b"second")
    (directory / "checkpoint.json").unlink()

    published = fovea_store.json("publish", str(directory), "--name", "vicuna", "--kind", "causal-lm", "--no-reference")

    assert store.manifest("vicuna", published["id"]).kind == "causal-lm"
    assert store.resolve("vicuna") == published["id"]


def test_show_prints_the_manifest_of_an_alias_and_of_a_version(fovea_store: StoreCommand, store: Store) -> None:
    version = store.resolve("toy")
    for reference in ("toy", "toy@latest", f"toy@{version}"):
        assert fovea_store.json("show", reference) == store.manifest("toy", version).model_dump(mode="json")
    assert store.manifest("toy", version).files["config.json"].sha256 in fovea_store("show", "toy").stdout


def test_promote_and_rollback_move_an_alias_and_can_say_from_where(
    fovea_store: StoreCommand, store: Store, tmp_path: Path
) -> None:
    first = store.resolve("toy")
    second = store.publish("toy", write_checkpoint(tmp_path / "second", b"second"), INFO).id

    fovea_store.json("promote", f"toy@{first}", "stable", "--expected", "none")
    assert "not moved: expected it at no version" in fovea_store.refusal(
        "promote", f"toy@{second}", "stable", "--expected", "none"
    )
    fovea_store.json("promote", "toy@latest", "stable", "--expected", first)
    assert store.resolve("toy", "stable") == second
    assert fovea_store("rollback", "toy", "stable").stdout == f"toy@stable is {first}\n"
    assert fovea_store.json("rollback", "toy")["version"] == first


def test_verify_names_the_damaged_file_and_fails(fovea_store: StoreCommand, store: Store, tmp_path: Path) -> None:
    version = store.resolve("toy")
    assert fovea_store.json("verify", "toy") == [{"version": f"toy@{version}", "damage": None}]
    assert fovea_store("verify").exit_code == 0

    (tmp_path / "store" / "models" / "toy" / "versions" / version / "config.json").write_text('{"width": 5}')

    result = fovea_store("verify", "--json")
    assert result.exit_code == 1
    [row] = json.loads(result.stdout)
    assert "config.json: expected sha256" in row["damage"]


def test_gc_removes_only_when_told_to(fovea_store: StoreCommand, store: Store, tmp_path: Path) -> None:
    for body in (b"second", b"third"):
        store.publish("toy", write_checkpoint(tmp_path / "next", body), INFO)
    flags = ("gc", "--keep", "1", "--grace-hours", "0")

    [candidate] = fovea_store.json(*flags)
    assert len(store.versions("toy")) == 3
    assert fovea_store.json(*flags, "--delete") == [candidate]
    assert len(store.versions("toy")) == 2


def test_what_goes_wrong_is_told_in_one_line(fovea_store: StoreCommand, tmp_path: Path) -> None:
    assert "there is no model 'nothing'" in fovea_store.refusal("show", "nothing")
    assert "no model 'nothing'" in fovea_store.refusal("ls", "nothing")
    assert "checkpoint.json: No such file" in fovea_store.refusal("publish", str(tmp_path / "first"))
    (tmp_path / "first" / "checkpoint.json").write_text('{"name": "toy"}')
    assert "checkpoint.json: kind: Field required" in fovea_store.refusal("publish", str(tmp_path / "first"))
    assert "must begin with file://" in StoreCommand("ftp://host").refusal("ls")


def test_the_store_is_found_through_the_environment(store: Store) -> None:
    result = CliRunner().invoke(app, ["ls", "--json"], env={"FOVEA_STORE_URL": store.label})

    assert [row["name"] for row in json.loads(result.stdout)] == ["toy"]


def test_control_characters_of_a_manifest_are_shown_and_not_obeyed(
    fovea_store: StoreCommand, store: Store, tmp_path: Path
) -> None:
    info = CheckpointInfo(kind="tiny", base="\x1b[2J\x1b]0;title\x07", licence="MIT\r\x9b1m")
    store.publish("toy", write_checkpoint(tmp_path / "hostile", b"hostile"), info)

    shown = fovea_store("show", "toy").stdout

    assert not {"\x1b", "\x07", "\r", "\x9b"} & set(shown)
    assert r"\x1b[2J" in shown


def test_what_changes_the_store_is_recorded_and_what_reads_it_is_not(tmp_path: Path, store: Store) -> None:
    command, audit = StoreCommand((tmp_path / "store").as_uri()), tmp_path / "audit.jsonl"
    folder = write_checkpoint(tmp_path / "second", b"second")
    changes = (
        ("publish", str(folder), "--name", "toy", "--kind", "toy-kind", "--alias", "latest"),
        ("promote", "toy@latest", "stable"),
        ("rollback", "toy", "latest"),
        ("gc", "--delete"),
    )
    for arguments in changes:
        result = command(*arguments, "--audit-log", str(audit))
        assert result.exit_code == 0, result.output
    assert command("rollback", "toy", "no-such-alias", "--audit-log", str(audit)).exit_code == 1
    command("ls")
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    ended = [(line["action"], line["outcome"]) for line in lines if line["outcome"] != "begun"]
    assert ended == [
        *((f"store.{arguments[0]}", "done") for arguments in changes),
        ("store.rollback", "failed"),
    ]
    assert len(lines) == 2 * len(ended)
    assert lines[1]["version"] and lines[1]["aliases"] == ["latest"]


def test_nothing_is_moved_where_it_can_not_be_recorded(tmp_path: Path, store: Store) -> None:
    command = StoreCommand((tmp_path / "store").as_uri())
    assert "audit log" in command.refusal("promote", "toy@latest", "stable", "--audit-log", str(tmp_path))
    assert set(store.aliases("toy")) == {"latest"}
