"""Collections moved between two running services, one of each kind, and into files, as `fovea collections` does it."""

import errno
import hashlib
import json
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from services.embed.transfer.command import app
from tests.conftest import empty_schema
from tests.contract.background import in_background
from tests.contract.embed_processes import tiny_environment
from tests.contract.processes import start_process
from tests.contract.test_collections import COLOR, as_base64, picture, shared_collections

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def urls(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A service over a folder, and one over PostgreSQL and an object store."""
    folder = tmp_path_factory.mktemp("moving")
    environment = tiny_environment(
        folder, FOVEA_EMBED_DEVICE="cpu", FOVEA_EMBED_NUM_THREADS="1", FOVEA_EMBED_PORT="0", FOVEA_EMBED_MAX_INPUTS="40"
    )
    shared = shared_collections(folder, empty_schema(postgres_url))
    local = start_process("services.embed", folder / "local.log", environment)
    cluster = start_process("services.embed", folder / "cluster.log", {**environment, **shared})
    for process in (local, cluster):
        process.wait_until_ready()
    yield {"local": local.url, "cluster": cluster.url}
    for process in (local, cluster):
        assert process.stop() == 0, process.log.read_text()


@pytest.fixture(params=[("local", "cluster"), ("cluster", "local")], ids=["to-cluster", "to-local"])
def direction(request: pytest.FixtureRequest, urls: dict[str, str]) -> tuple[str, str]:
    """Return the URLs of a service and of the one that its collection is to move to; neither has any."""
    one, other = request.param
    for url in urls.values():
        for collection in httpx.get(f"{url}/collections").json()["data"]:
            httpx.delete(f"{url}/collections/{collection['name']}")
    return urls[one], urls[other]


def run(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output + result.stderr
    return result


def add(url: str, numbers: range, *, prefix: str = "a/ö ", **query: str) -> httpx.Response:
    images = [
        {
            "id": f"{prefix}{n:03}",
            "image": as_base64(picture(n // 2)),
            "metadata": {"n": n},
            "created": 1_600_000_000 + n,
        }
        for n in numbers
    ]
    return httpx.post(f"{url}/images", params=query, json={"images": images}, timeout=60)


def make(url: str, num_images: int) -> str:
    collection = f"{url}/collections/things"
    assert httpx.put(collection, json={"conditions": [COLOR]}, timeout=60).status_code == 201
    for begin in range(0, num_images, 40):
        assert add(collection, range(begin, min(num_images, begin + 40))).status_code == 201
    return collection


def listed(collection: str) -> list[dict[str, Any]]:
    found: dict[str, Any] = httpx.get(f"{collection}/images", params={"limit": 1000}, timeout=60).json()
    assert not found["has_more"]
    entries: list[dict[str, Any]] = found["data"]
    return entries


def described(collection: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(collection, timeout=60).json()
    pinned = sorted(str(one["condition"]) for one in found["conditions"] if one["pinned"])
    return {key: found[key] for key in ("model", "created", "size", "bytes", "access")} | {"pinned": pinned}


@dataclass
class Client:
    """It adds and deletes images until it is told to stop, and remembers what was answered."""

    collection: str
    stored: set[str]
    num_refused: int = 0
    others: list[httpx.Response] = field(default_factory=list)

    def work(self, stop: threading.Event) -> None:
        number = 500
        with httpx.Client(timeout=60) as client:
            while not stop.is_set():
                number += 1
                body = {"images": [{"id": f"new {number}", "image": as_base64(picture(number))}]}
                added = client.post(f"{self.collection}/images", json=body)
                victim = min(self.stored)
                deleted = client.delete(f"{self.collection}/images/{victim}")
                if added.status_code == 201:
                    self.stored.add(f"new {number}")
                if deleted.status_code == 204:
                    self.stored.discard(victim)
                refused = [answer for answer in (added, deleted) if answer.status_code not in (201, 204)]
                self.num_refused += len(refused)
                self.others += [one for one in refused if one.json()["error"]["code"] != "collection_read_only"]
                stop.wait(0.01)


def test_a_collection_migrates_while_it_takes_changes_and_loses_and_revives_nothing(
    direction: tuple[str, str],
) -> None:
    here, there = direction
    original, copy = make(here, 300), f"{there}/collections/things"
    before = described(original)
    client = Client(original, {image["id"] for image in listed(original)})
    with in_background(client.work):
        run("migrate", "things", "--from", here, "--to", there)
        assert described(copy)["access"] == "copy"
        done = json.loads(run("migrate", "things", "--from", here, "--to", there, "--finish", "--json").stdout)
    assert client.others == []
    assert client.num_refused == 0 or described(original)["access"] == "read_only"
    assert {image["id"] for image in listed(copy)} == client.stored
    assert listed(copy) == listed(original)
    assert (done["finished"], done["images"]) == (True, len(client.stored))
    after = described(copy)
    assert after == {**described(original), "access": "open"}
    assert [after[key] for key in ("model", "created", "pinned")] == [
        before[key] for key in ("model", "created", "pinned")
    ]
    refused = add(original, range(900, 901))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "collection_read_only")
    answer = httpx.post(f"{copy}/search", json={"text": "a", "k": 3, "condition": COLOR}, timeout=60)
    assert len(answer.json()["results"]) == 3
    # what has been switched over is never made a copy again
    httpx.delete(f"{copy}/images/{listed(copy)[0]['id']}")
    assert "not a copy" in run("migrate", "things", "--from", here, "--to", there, status=1).stderr


def test_a_migration_that_does_not_end_leaves_the_original_open(direction: tuple[str, str]) -> None:
    here, there = direction
    original = make(here, 80)
    run("migrate", "things", "--from", here, "--to", there, "--to-name", "other")
    # nobody else's changes are taken: they would be undone
    copy = f"{there}/collections/other"
    first = f"{copy}/images/{listed(copy)[0]['id']}"
    for refused in (httpx.delete(first), add(copy, range(4, 6), prefix="b/")):
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "collection_read_only")
    # another migration's are put right again
    assert httpx.delete(first, params={"fill": "true"}).status_code == 204
    assert add(copy, range(4, 6), prefix="b/", fill="true").status_code == 201
    taken = httpx.put(f"{there}/collections/things", json={}, timeout=60)
    assert taken.status_code == 201
    add(f"{there}/collections/things", range(1))
    for name, reason in (("things", "choose another name"), ("no/name", "64 letters")):
        assert reason in run("migrate", "things", "--from", here, "--to", there, "--to-name", name, status=1).stderr
    assert described(original)["access"] == "open"
    run("migrate", "things", "--from", here, "--to", there, "--to-name", "other", "--finish")
    assert listed(copy) == listed(original)
    # once it is open, what is still on its way from a migration does not reach it
    late = add(copy, range(90, 91), fill="true")
    assert (late.status_code, late.json()["error"]["param"]) == (409, "fill")


def test_an_export_is_read_by_plain_tools_and_imported_into_either_kind(
    direction: tuple[str, str], tmp_path: Path
) -> None:
    here, there = direction
    original = make(here, 60)
    for form in (tmp_path / "things", tmp_path / "things.tar"):
        done = json.loads(run("export", "things", form, "--url", here, "--json").stdout)
        assert done["images"] == 60
        assert "never written over" in run("export", "things", form, "--url", here, status=1).stderr
    with tarfile.open(tmp_path / "things.tar") as tar:
        tar.extractall(tmp_path / "extracted", filter="data")
    for folder in (tmp_path / "things", tmp_path / "extracted"):
        lines = [json.loads(line) for line in (folder / "images.jsonl").read_text().splitlines()]
        assert [(one["id"], one["metadata"]) for one in lines] == [(f"a/ö {n:03}", {"n": n}) for n in range(60)]
        sums = "".join(f"{one['sha256']}  {one['file']}\n" for one in lines)
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict"], input=sums.encode(), cwd=folder, check=True)
    for number, form in enumerate((tmp_path / "things", tmp_path / "things.tar")):
        name = f"imported-{number}"
        added = json.loads(run("import", form, name, "--url", there, "--json").stdout)
        assert (added["added"], added["digest"]) == (60, done["digest"])
        assert listed(f"{there}/collections/{name}") == listed(original)
        assert described(f"{there}/collections/{name}") == described(original)
        again = json.loads(run("import", form, name, "--url", there, "--json").stdout)
        assert (again["added"], again["unchanged"]) == (0, 60)


def test_images_that_the_collection_has_otherwise_are_named_and_the_others_added(
    direction: tuple[str, str], tmp_path: Path
) -> None:
    here, _ = direction
    collection = make(here, 10)
    folder = tmp_path / "form"
    folder.mkdir()
    (folder / "x.png").write_bytes(picture(77))
    (folder / "broken.png").write_bytes(b"broken")
    lines = [
        {"file": "x.png", "id": "a/ö 003"},
        {"file": "x.png", "id": "a/ö 002", "metadata": {"n": 3}},
        {"file": "x.png"},
        {"file": "broken.png"},
    ]
    (folder / "images.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    output = run("import", folder, "things", "--url", here, status=3).stdout.splitlines()
    rejected = {one["id"]: one["reason"] for one in map(json.loads, output[:-1])}
    assert rejected.keys() == {"a/ö 002", "a/ö 003", "broken.png"}
    assert all("exists with different content" in rejected[f"a/ö 00{n}"] for n in (2, 3))
    assert output[-1] == "1 added, 0 already present, 3 rejected: things"
    assert len(listed(collection)) == 11


def test_an_interrupted_export_is_continued(
    direction: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, _ = direction
    make(here, 200)
    from services.embed.transfer.portable import FolderWriter

    put, written = FolderWriter.put, []

    def put_some(self: FolderWriter, sha256: str, data: bytes) -> None:
        written.append(sha256)
        if len(written) == 50:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, sha256, data)

    form = tmp_path / "form"
    with monkeypatch.context() as patch:
        patch.setattr(FolderWriter, "put", put_some)
        assert "No space left" in run("export", "things", form, "--url", here, status=1).stderr
    assert "unfinished" in run("import", form, "--url", here, status=1).stderr
    httpx.put(f"{here}/collections/other", timeout=60)
    assert "'things'" in run("export", "other", form, "--url", here, status=1).stderr
    written.clear()
    run("export", "things", form, "--url", here)
    digests = {path.stem for path in (form / "images").glob("*/*")}
    assert digests == {hashlib.sha256(picture(n)).hexdigest() for n in range(100)}
    assert not (form / "unfinished.json").exists()
