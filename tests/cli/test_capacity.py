"""`fovea capacity` over folders in the layouts of published models, and over the store."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.capacity import app
from services.core.store.store import Store
from tests.core.tiny_checkpoints import INFO, safetensors
from tests.documentation.capacity import capacity_of, published_models

ROOT = Path(__file__).parents[2]
VICUNA = published_models()["vicuna-7b-v1.5"]
GIB = 1024**3


def capacity(model: Path | str, *arguments: str) -> dict[str, Any]:
    asked = CliRunner().invoke(app, [str(model), "--json", *arguments])
    assert asked.exit_code == 0, asked.output
    answer: dict[str, Any] = json.loads(asked.output)
    return answer


def sparse(path: Path, num_bytes: int) -> None:
    """A file of this size that takes no room."""
    with path.open("wb") as file:
        file.truncate(num_bytes)


@pytest.fixture
def vicuna(tmp_path: Path) -> Path:
    """Vicuna's config and weights as they are published: two shards of pickles."""
    folder = tmp_path / "vicuna"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(VICUNA["config"]))
    half = VICUNA["num_parameters"]  # two bytes a number, two files
    for number in (1, 2):
        sparse(folder / f"pytorch_model-0000{number}-of-00002.bin", half)
    shards = {f"layer{number}": f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder


def test_a_folder_gives_what_the_arithmetic_gives(vicuna: Path) -> None:
    found, computed = capacity(vicuna, "--memory", "24GiB"), capacity_of(VICUNA, 24)
    assert found["weight_bytes"] == computed.weight_bytes
    assert found["token_bytes"] == computed.token_bytes
    assert found["cache_tokens"] == computed.cache_tokens == 18_531
    assert (found["context"], found["streams"], found["longest_context"]) == (4096, 4, 4096)


def test_people_are_told_the_same_and_the_setting_that_uses_it(vicuna: Path) -> None:
    told = CliRunner().invoke(app, [str(vicuna), "--memory", "24GiB", "--context", "2048"]).output
    assert re.search(r"^weights +12\.6 GiB of 21\.6 GiB$", told, re.MULTILINE)
    assert re.search(r"^cached token +512 KiB$", told, re.MULTILINE)
    assert re.search(r"^streams +9 of 2,048 tokens$", told, re.MULTILINE)
    assert "FOVEA_GENERATE_MAX_CACHED_TOKENS=18531" in told
    assert "--gpu-memory-utilization 0.9 --max-model-len 4096" in told


def test_models_beside_it_get_shares_of_the_gpu_and_it_the_rest(vicuna: Path, tmp_path: Path) -> None:
    tower = tmp_path / "tower"
    tower.mkdir()
    sparse(tower / "model.safetensors", GIB)
    beside = [f"--beside={service}={tower}" for service in ("embed", "embed", "score")]
    found = capacity(vicuna, "--memory", "24GiB", *beside)
    # (2 + 2 × 1) and (2 + 1) of 24
    assert found["shares"] == {"embed": 0.17, "score": 0.13}
    assert found["share"] == 0.7
    assert found["budget_bytes"] == int(24 * GIB * 0.7)
    told = CliRunner().invoke(app, [str(vicuna), "--memory", "24GiB", *beside]).output
    assert "FOVEA_GENERATE_MEMORY_SHARE=0.7 FOVEA_EMBED_MEMORY_SHARE=0.17 FOVEA_SCORE_MEMORY_SHARE=0.13" in told
    for wrong in ("generate=x", "embed"):
        assert CliRunner().invoke(app, [str(vicuna), "--memory", "24GiB", f"--beside={wrong}"]).exit_code == 2


def test_a_model_that_does_not_fit_is_told_with_both_sizes_and_status_1(vicuna: Path) -> None:
    asked = CliRunner().invoke(app, [str(vicuna), "--memory", "12GiB"])
    assert asked.exit_code == 1
    assert asked.stderr.endswith("does not fit: its weights take 12.6 GiB in bfloat16, 90% of 12 GiB are 10.8 GiB\n")
    as_json = CliRunner().invoke(app, [str(vicuna), "--memory", "12GiB", "--json"])
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["fits"] is False


def test_the_share_and_the_dtype_are_options(vicuna: Path) -> None:
    assert capacity(vicuna, "--memory", "80GiB", "--share", "0.5")["budget_bytes"] == 40 * GIB
    assert capacity(vicuna, "--memory", "80GiB", "--dtype", "float32")["weight_bytes"] == 4 * VICUNA["num_parameters"]


def test_safetensors_come_first_and_a_second_form_of_the_weights_is_not_added(vicuna: Path) -> None:
    sparse(vicuna / "model.safetensors", 1000)
    sparse(vicuna / "consolidated.safetensors", 10 * GIB)
    assert capacity(vicuna, "--memory", "24GiB")["weight_bytes"] == 1000


def test_a_hub_cache_of_links_is_a_folder_like_any_other(vicuna: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in vicuna.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert capacity(snapshot, "--memory", "24GiB")["cache_tokens"] == 18_531


def test_a_name_is_looked_up_in_the_store(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(VICUNA["config"]))
    (folder / "model.safetensors").write_bytes(safetensors(bytes(10_000)))
    url = (tmp_path / "store").as_uri()
    version = Store.open(url).publish("vicuna", folder, INFO)
    found = capacity("vicuna", "--memory", "1GiB", "--store-url", url)
    assert found["model"] == str(version)
    assert found["weight_bytes"] == (folder / "model.safetensors").stat().st_size
    absent = CliRunner().invoke(app, ["vicuna@stable", "--memory", "1GiB", "--store-url", url])
    assert "has no alias 'stable'" in str(absent.exception)


def test_a_starter_is_known_where_the_store_is_empty_and_nothing_is_stored(tmp_path: Path) -> None:
    found = capacity("open-facts", "--memory", "1GiB", "--store-url", (tmp_path / "store").as_uri())
    assert found["longest_context"] == 8192
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model_type": "t5", "num_hidden_layers": None}, "config.json has no num_hidden_layers"),
        ({"quantization_config": {"bits": 4}}, "quantised"),
        ({"torch_dtype": "float8_e4m3fn"}, "dtype that is not served"),
    ],
)
def test_what_is_not_served_is_refused(change: dict[str, Any], reason: str, vicuna: Path) -> None:
    (vicuna / "config.json").write_text(json.dumps({**VICUNA["config"], **change}))
    asked = CliRunner().invoke(app, [str(vicuna), "--memory", "24GiB"])
    assert reason in str(asked.exception)


def test_a_shard_that_is_missing_is_named(vicuna: Path) -> None:
    (vicuna / "pytorch_model-00002-of-00002.bin").unlink()
    assert "pytorch_model-00002" in str(CliRunner().invoke(app, [str(vicuna), "--memory", "24GiB"]).exception)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--memory", "much"], "not a size such as 24GiB"),
        (["--memory", "24GiB", "--context", "8192"], "the model's own context is 4096 tokens"),
    ],
)
def test_an_option_that_can_not_be_is_refused(arguments: list[str], reason: str, vicuna: Path) -> None:
    refused = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(vicuna), *arguments])
    assert refused.exit_code == 2
    assert reason in refused.output


@pytest.mark.process
def test_the_command_needs_no_torch_and_tells_a_refusal_in_one_line(vicuna: Path) -> None:
    command = [sys.executable, "-m", "tests.cli.without_packages", "torch,transformers,safetensors", "capacity"]
    told = subprocess.run([*command, vicuna, "--memory", "24GiB"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "18,531 tokens" in told.stdout
    (vicuna / "config.json").unlink()
    ended = subprocess.run(
        [*command, vicuna, "--memory", "24GiB"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (1, f"fovea capacity: {vicuna} has no config.json\n")
