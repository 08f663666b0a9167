"""Arrays that flax serialised are read without running anything, and files that hold no MagicLens are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from services.cli.main import app
from services.core.refusals import Refused
from services.core.store.store import Store
from services.embed.imports.magiclens import convert_magiclens, read_arrays
from tests.published_magiclens import packed, random_parameters, write_magiclens


def test_arrays_of_every_size_are_read_by_their_paths() -> None:
    nested: dict[str, Any] = {f"layer_{i}": {"w": np.full((2, i), i, np.float32)} for i in range(20)}
    nested["a" * 300] = {
        "big": np.arange(70_000, dtype=np.int64),
        "one": np.array(3, "f4"),
        "half": np.ones(300, "f2"),
    }
    found = read_arrays(packed(nested))
    assert len(found) == 23
    for name, value in nested.items():
        for inner, array in value.items():
            np.testing.assert_array_equal(found[f"{name}/{inner}"].numpy(), array)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        packed({"a": 1}),
        packed(["a"]),
        packed({"a": np.ones(3)})[:-1],
        packed({"a": np.ones(3)}) + b"\x00",
        b"\x81\xa1a\xc7\x00\x02",  # another extension
        b"\x81\xa1a" * 5000,
        packed({"a": np.ones(3, np.float32)}).replace(b"float32", b"no_grad"),
        packed({"a": np.ones(3, np.float32)}).replace(b"\x91\x03", b"\x91\x04"),
    ],
)
def test_damaged_arrays_are_refused(data: bytes) -> None:
    with pytest.raises(Refused, match="no arrays that flax serialised"):
        read_arrays(data)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda p: p["clip"].pop("logit_scale"), "^clip/logit_scale is missing"),
        (lambda p: p["clip"]["visual"]["ln_pre"].update(more=np.ones(2)), "unexpected arrays: clip/visual/ln_pre/more"),
        (lambda p: p["clip"]["visual"]["conv1"].update(kernel=np.ones(2)), "other shapes"),
        (lambda p: p.pop("multimodal_encoder"), "multimodal_encoder/x_layers_0"),
    ],
)
def test_files_of_another_model_are_refused_by_name(tmp_path: Path, change: Any, told: str) -> None:
    parameters = random_parameters()
    change(parameters["params"])
    with pytest.raises(Refused, match=told):
        convert_magiclens(write_magiclens(tmp_path / "m.pkl", parameters), tmp_path / "out")


def test_the_command_imports_the_published_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    source = write_magiclens(tmp_path / "models" / "magic_lens_clip_base.pkl")
    url = (tmp_path / "store").as_uri()
    result = CliRunner(env={"FOVEA_STORE_URL": url}).invoke(app, ["store", "import", str(source)])
    assert result.exit_code == 0, result.output
    store = Store.open(url)
    manifest = store.manifest("magic_lens_clip_base", store.resolve("magic_lens_clip_base", "latest"))
    assert manifest.kind == "magiclens"
    assert manifest.files.keys() >= {"magiclens.json", "model.safetensors", "reference.json"}
