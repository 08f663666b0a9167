"""`fovea store push`, and the way back by `fovea store import`, through a server that speaks the Hub's HTTP."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from services.cli.store import app
from services.cli.store_import import ENGINES
from services.core.store.checkpoint_files import packaged_starters, read_description
from services.core.store.manifest import CheckpointInfo, Manifest
from services.core.store.store import Store
from services.jobs.model_card import KINDS
from tests.core.tiny_checkpoints import INFO, write_checkpoint
from tests.hub_server import Hub, Repository

# huggingface_hub sends files of LFS in a way that its HTTP client deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
TOKEN = "hf_of_ada"
GUIDE = Path(__file__).parents[2] / "docs/guide/import.md"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub where ada may write for herself and for a laboratory, and her token."""
    hub = Hub(accounts={TOKEN: ("ada", "lab")})
    constants = "huggingface_hub.constants"  # which reads the environment once, at its import
    with hub.serving() as url:
        monkeypatch.setattr(f"{constants}.ENDPOINT", url)
        monkeypatch.setattr(
            f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", f"{url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(f"{constants}.HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.setenv("FOVEA_STORE_URL", f"file://{tmp_path}/store")
        yield hub


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """With a model of its own, so that no starters are published into it."""
    store = Store.open(f"file://{tmp_path}/store")
    store.publish("toy", write_checkpoint(tmp_path / "toy"), INFO)
    return store


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def done(*arguments: str) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refusal(*arguments: str) -> str:
    """The last line that a failing command prints."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    return str(result.stderr.splitlines()[-1])


def imported(tmp_path: Path, source: str, *options: str) -> Manifest:
    """Import into an empty store of its own; returns the manifest there."""
    other = f"file://{tmp_path}/other"
    Store.open(other).publish("mine", write_checkpoint(tmp_path / "mine", b"mine"), INFO)
    version = done("import", source, "--store-url", other, *options)
    return Store.open(other).verify(version["name"], version["id"])


def metadata(card: str) -> Any:
    return yaml.safe_load(card.split("---\n")[1])


def head(hub: Hub, name: str) -> dict[str, bytes]:
    return hub.repositories[name].commits[hub.repositories[name].head]


@pytest.mark.parametrize("folder", packaged_starters(), ids=lambda folder: folder.name)
def test_a_pushed_starter_comes_back_as_the_same_version(tmp_path: Path, hub: Hub, store: Store, folder: Path) -> None:
    starter = read_description(folder)
    store.publish_starters([folder])
    pushed = done("push", f"hf://ada/{starter.name}")
    own = store.manifest(starter.name, pushed["version"])
    back = imported(tmp_path, f"hf://ada/{starter.name}", "--no-reference")
    assert (back.name, back.version, back.digest, back.files) == (own.name, own.version, own.digest, own.files)
    card = head(hub, f"ada/{starter.name}")["README.md"].decode()
    assert metadata(card)["license"] == (starter.licence or "").lower()
    assert {"fovea", starter.kind} <= set(metadata(card)["tags"])
    assert {"library_name", "pipeline_tag"} <= metadata(card).keys()
    for told in (
        starter.statement or "",
        f"fovea store import hf://ada/{starter.name}\n",
        own.version,
        *starter.metrics,
    ):
        assert told in card


def test_cards_know_every_kind_that_is_served() -> None:
    assert ENGINES.keys() <= KINDS.keys()


def test_the_check_of_an_import_adds_nothing_to_a_pushed_version(tmp_path: Path, hub: Hub, store: Store) -> None:
    store.publish_starters(packaged_starters("clip-shapes"))
    pushed = done("push", "hf://ada/clip-shapes")
    assert "reference.json" not in head(hub, "ada/clip-shapes")
    assert imported(tmp_path, "hf://ada/clip-shapes").version == pushed["version"]


def test_a_push_is_one_commit_and_the_same_push_again_is_none(hub: Hub, store: Store) -> None:
    first = done("push", "hf://ada/toy")
    assert hub.repositories["ada/toy"].messages == [f"Push toy@{first['version']}"]
    sent = list(hub.sent)
    assert done("push", "hf://ada/toy") == first
    assert (len(hub.repositories["ada/toy"].messages), hub.sent) == (1, sent)


def test_a_revision_is_imported_though_the_repository_has_moved_on(tmp_path: Path, hub: Hub, store: Store) -> None:
    first = done("push", "hf://lab/toy")
    changed = write_checkpoint(tmp_path / "changed", b"other")
    (changed / "config.json").rename(changed / "settings.json")
    store.publish("toy", changed, INFO)
    second = done("push", "hf://lab/toy")
    assert set(head(hub, "lab/toy")) == {
        *(".gitattributes", "README.md", "manifest.json", "model.safetensors", "settings.json", "tokenizer/merges.txt")
    }
    pinned = imported(tmp_path, f"hf://lab/toy@{first['commit']}", "--no-reference")
    newest = imported(tmp_path, "hf://lab/toy", "--no-reference")
    assert (pinned.version, newest.version) == (first["version"], second["version"])


def test_an_upload_that_broke_off_continues_with_what_is_missing(tmp_path: Path, hub: Hub, store: Store) -> None:
    folder = write_checkpoint(tmp_path / "two")
    (folder / "second.safetensors").write_bytes(
        write_checkpoint(tmp_path / "x", b"x").joinpath("model.safetensors").read_bytes()
    )
    version = store.publish("two", folder, INFO)
    files = store.manifest("two", version.id).files
    hub.refuse_objects = {files["second.safetensors"].sha256}
    told = refusal("push", "hf://ada/two")
    assert "hf://ada/two can't be written: Error while uploading 'second.safetensors'" in told
    assert "the same command continues" in told
    assert hub.repositories["ada/two"].messages == []
    hub.refuse_objects = set()
    done("push", "hf://ada/two")
    assert sorted(hub.sent) == sorted(files[name].sha256 for name in ("model.safetensors", "second.safetensors"))
    assert imported(tmp_path, "hf://ada/two", "--no-reference").version == version.id


@pytest.mark.parametrize(("options", "private"), [((), False), (("--private",), True)])
def test_a_new_repository_is_public_unless_it_is_asked_to_be_private(
    hub: Hub, store: Store, options: tuple[str, ...], private: bool
) -> None:
    assert done("push", "hf://ada/toy", *options)["private"] is private
    assert hub.repositories["ada/toy"].private is private
    assert f"is {'private' if private else 'public'}" in run("push", "hf://ada/toy").stdout


def test_a_public_repository_gets_nothing_that_is_to_be_private(hub: Hub, store: Store) -> None:
    hub.repositories["ada/toy"] = Repository({"0" * 40: {}})
    assert "hf://ada/toy is there already, and public" in refusal("push", "hf://ada/toy", "--private")
    assert len(hub.repositories["ada/toy"].commits) == 1


@pytest.mark.parametrize(
    ("token", "target", "told"),
    [
        (None, "hf://ada/toy", "a push needs a token that may write: set HF_TOKEN"),
        ("hf_wrong", "hf://ada/toy", "hf://ada/toy can't be written: Invalid user token."),
        (TOKEN, "hf://bob/toy", "hf://bob/toy is bob's; the token is ada's, who may write to ada, lab"),
        (TOKEN, "hf://ada/toy@main", "names a revision"),
        (TOKEN, "ada/toy", "'ada/toy' is not of the form hf://owner/name"),
        (TOKEN, "hf://ada/missing", "there is no model 'missing' in "),
        (TOKEN, "hf://ada/toyy", "; did you mean toy?"),
        (TOKEN, "hf://ada/other", "hf://ada/other holds other files (notes.txt): push to a repository of its own"),
    ],
)
def test_a_push_that_can_not_be_is_refused(
    hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch, token: str | None, target: str, told: str
) -> None:
    hub.repositories["ada/other"] = Repository({"0" * 40: {"notes.txt": b"mine", "README.md": b"# Mine"}})
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        monkeypatch.setenv("HF_TOKEN", token)
    reference = ["toy"] if target == "hf://ada/other" else []
    assert told in refusal("push", target, *reference)
    assert hub.repositories.keys() == {"ada/other"}
    assert len(hub.repositories["ada/other"].commits) == 1


@pytest.mark.parametrize("licence", ["Proprietary", "All rights reserved", "for internal use only"])
def test_a_licence_that_forbids_redistribution_is_refused_of_a_version_and_of_its_base(
    tmp_path: Path, hub: Hub, store: Store, licence: str
) -> None:
    base = store.publish(
        "closed", write_checkpoint(tmp_path / "closed", b"c"), CheckpointInfo(kind="t", licence=licence)
    )
    tuned = CheckpointInfo(kind="t", licence="MIT", base=f"closed@{base.id}")
    store.publish("tuned", write_checkpoint(tmp_path / "tuned", b"t"), tuned)
    told = f"closed@{base.id} has the licence {licence!r}, which forbids redistribution"
    assert told in refusal("push", "hf://ada/closed")
    assert told.replace(" has", ", its base, has") in refusal("push", "hf://ada/tuned")
    assert not hub.repositories


def test_a_card_names_base_licence_and_figures_as_the_hub_reads_them(tmp_path: Path, hub: Hub, store: Store) -> None:
    llama = CheckpointInfo(kind="causal-lm", licence="llama2", source={"uri": "hf://lmsys/vicuna-7b-v1.5"})
    base = store.publish("vicuna", write_checkpoint(tmp_path / "vicuna", b"v"), llama)
    info = CheckpointInfo(
        kind="causal-lm",
        licence="Lab Licence, 2nd",
        base=f"vicuna@{base.id}",
        training={"data": "a|b\nc", "options": {"steps": 3}},
        metrics={"accuracy": {"middle": 0.123456789}},
        statement="Knows lighthouses.",
    )
    store.publish("tuned", write_checkpoint(tmp_path / "tuned", b"t"), info)
    card = run("push", "hf://ada/My-Lamp", "tuned", "--dry-run").stdout
    assert metadata(card) == {
        "base_model": "lmsys/vicuna-7b-v1.5",
        "library_name": "fovea",
        "license": "other",
        "license_name": "lab-licence-2nd",
        "pipeline_tag": "text-generation",
        "tags": ["fovea", "causal-lm", "generate"],
    }
    assert "    fovea store import hf://ada/My-Lamp --name tuned\n    FOVEA_GENERATE_MODELS=tuned fovea up\n" in card
    assert "| data | a\\|b c |\n| options: steps | 3 |" in card
    assert "| accuracy: middle | 0.123457 |" in card
    assert f"| base model | vicuna@{base.id} |" in card
    assert not hub.repositories
    done("push", "hf://ada/My-Lamp", "tuned")
    assert head(hub, "ada/My-Lamp")["README.md"].decode() == card


def test_a_dry_run_needs_neither_token_nor_network(hub: Hub, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    planned = done("push", "hf://bob/toy", "--dry-run")
    assert planned["files"] == ["config.json", "model.safetensors", "tokenizer/merges.txt"]
    assert "# toy" in planned["card"]


@pytest.mark.parametrize(
    ("path", "content", "told"),
    [
        ("tokenizer/merges.txt", b"b a\n", "tokenizer/merges.txt"),
        ("tokenizer/merges.txt", None, "tokenizer/merges.txt of toy@"),
        ("manifest.json", b"", "manifest.json"),
    ],
)
def test_a_pushed_version_that_was_changed_is_refused_with_the_file(
    tmp_path: Path, hub: Hub, store: Store, path: str, content: bytes | None, told: str
) -> None:
    done("push", "hf://ada/toy")
    files = head(hub, "ada/toy")
    if path == "manifest.json":
        content = files[path].replace(b'"seed": 7', b'"seed": 8')
    files |= {path: content} if content is not None else {}
    if content is None:
        del files[path]
    store.publish("back", write_checkpoint(tmp_path / "back", b"back"), INFO)
    assert told in refusal("import", "hf://ada/toy", "--name", "back", "--no-reference")
    assert len(store.versions("back")) == 1


def test_what_others_add_to_a_repository_is_not_part_of_the_version(tmp_path: Path, hub: Hub, store: Store) -> None:
    pushed = done("push", "hf://ada/toy")
    head(hub, "ada/toy").update({"README.md": b"# Edited", "LICENSE": b"MIT", "extra.bin": b"\x80\x04."})
    plan = done("import", "hf://ada/toy", "--dry-run")
    fates = {file["path"]: file["fate"] for file in plan["files"]}
    assert fates["LICENSE"] == fates["extra.bin"] == fates["README.md"] == "left: not part of the version"
    assert imported(tmp_path, "hf://ada/toy", "--no-reference").version == pushed["version"]


@pytest.mark.parametrize("option", ["--licence", "--task", "--dimensions"])
def test_an_option_that_would_change_a_pushed_version_is_refused(hub: Hub, store: Store, option: str) -> None:
    done("push", "hf://ada/toy")
    told = refusal("import", "hf://ada/toy", option, "64")
    assert f"{option} does not apply to hf://ada/toy, which is imported as it was published" in told


def test_a_version_with_a_page_of_its_own_keeps_it(tmp_path: Path, hub: Hub, store: Store) -> None:
    folder = write_checkpoint(tmp_path / "paged", b"p")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    version = store.publish("paged", folder, INFO)
    done("push", "hf://ada/paged")
    assert head(hub, "ada/paged")["README.md"].endswith(b"# Mine\n")
    assert imported(tmp_path, "hf://ada/paged", "--no-reference").version == version.id


def test_a_push_is_recorded_in_the_audit_log(tmp_path: Path, hub: Hub, store: Store) -> None:
    pushed = done("push", "hf://ada/toy", "--audit-log", str(tmp_path / "audit"))
    last = json.loads((tmp_path / "audit").read_text().splitlines()[-1])
    assert (last["action"], last["outcome"], last["repository"]) == ("store.push", "done", "hf://ada/toy")
    assert (last["version"], last["commit"]) == (pushed["version"], pushed["commit"])


def test_the_guides_example_pushes_a_model_and_imports_it(hub: Hub, store: Store) -> None:
    block = re.search(r"(?:^    fovea store push .*\n)(?:^    fovea .*\n)+", GUIDE.read_text(), re.MULTILINE)
    assert block is not None
    hub.accounts[TOKEN] = ("your-name",)
    store.publish_starters(packaged_starters("open-facts"))
    for line in block[0].splitlines():
        ran = run(*line.split()[2:])
        assert ran.exit_code == 0, ran.output
    assert store.resolve("mine") == store.resolve("open-facts")
