import json
import math

import pytest

from services.core.store.errors import CorruptCheckpoint, InvalidCheckpoint
from services.core.store.manifest import CheckpointInfo, Manifest, StoredFile
from tests.core.tiny_checkpoints import INFO

FILES = {"a.json": StoredFile(sha256="0" * 64, size_bytes=2), "b.txt": StoredFile(sha256="1" * 64, size_bytes=3)}


def test_the_id_depends_on_the_content_alone() -> None:
    manifest = Manifest.describe("toy", INFO, FILES)
    reordered = Manifest.describe("another", INFO, dict(reversed(FILES.items())))

    assert reordered.digest == manifest.digest
    assert manifest.version == manifest.digest[:12]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "other"},
        {"base": "ViT-B-32"},
        {"training": {"steps": 4}},
        {"seed": 8},
        {"metrics": {"accuracy": 0.25}},
        {"code_revision": "abc"},
        {"licence": None},
        {"statement": "It knows colors."},
    ],
)
def test_every_field_of_the_description_changes_the_id(change: dict[str, object]) -> None:
    changed = INFO.model_copy(update=change)

    assert Manifest.describe("toy", changed, FILES).digest != Manifest.describe("toy", INFO, FILES).digest


def test_a_version_without_a_statement_is_what_it_was_before_there_were_any() -> None:
    manifest = Manifest.describe("toy", INFO, FILES)

    assert b"statement" not in manifest.to_json()
    assert Manifest.parse(manifest.to_json(), name="toy", version=manifest.version) == manifest
    told = Manifest.describe("toy", INFO.model_copy(update={"statement": "It knows colors."}), FILES)
    assert Manifest.parse(told.to_json(), name="toy", version=told.version).statement == "It knows colors."


def test_path_digest_and_size_of_every_file_change_the_id() -> None:
    first = FILES["a.json"]
    others = [
        {"c.json": first, "b.txt": FILES["b.txt"]},
        {**FILES, "a.json": first.model_copy(update={"size_bytes": 3})},
        {**FILES, "a.json": first.model_copy(update={"sha256": "2" * 64})},
        {"a.json": first},
    ]

    digests = {Manifest.describe("toy", INFO, files).digest for files in [FILES, *others]}

    assert len(digests) == 5


def test_a_manifest_survives_being_written_and_read() -> None:
    info = CheckpointInfo(kind="k", training={"lr": 1e-7, "steps": 10, "nested": [{"x": None, "y": True}, 1.0]})
    manifest = Manifest.describe("toy", info, FILES)

    assert Manifest.parse(manifest.to_json(), name="toy", version=manifest.version) == manifest


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(InvalidCheckpoint, match="plain JSON"):
        Manifest.describe("toy", CheckpointInfo(kind="k", metrics={"loss": value}), FILES)


def test_any_changed_field_of_a_stored_manifest_is_damage() -> None:
    manifest = Manifest.describe("toy", INFO, FILES)
    for field in ("kind", "training", "seed", "metrics", "digest", "version", "name", "files"):
        content = json.loads(manifest.to_json())
        content[field] = {} if isinstance(content[field], dict) else 1 if field == "seed" else "0" * 12
        with pytest.raises(CorruptCheckpoint, match=r"toy@.* is damaged: manifest\.json"):
            Manifest.parse(json.dumps(content).encode(), name="toy", version=manifest.version)


@pytest.mark.parametrize("body", [b"", b"\x00\xff", b"[]", b"{}", b'{"files": {}}'])
def test_what_is_no_manifest_is_damage(body: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        Manifest.parse(body, name="toy", version="0" * 12)
