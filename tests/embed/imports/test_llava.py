"""LLaVA as published is imported whole, and what would not be served rightly is refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from services.cli.main import app
from services.core.store.store import Store
from services.embed.model.mllm_engine import MLLM_CONFIG, MLLM_KIND, MllmPrompt, load_mllm, read_prompt
from tests.published_llava import NUM_IMAGE_TOKENS, SHARDS, SIDE, write_llava


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_llava(tmp_path / "models" / "llava-1.5-7b-hf")


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Any]:
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path), "COLUMNS": "300"}
    runner = CliRunner(env=environment)
    return lambda *arguments: runner.invoke(app, ["store", "import", *map(str, arguments)])


def test_the_command_imports_the_published_folder(source: Path, run: Callable[..., Any], tmp_path: Path) -> None:
    planned = run(source, "--dry-run", "--json")
    assert planned.exit_code == 0, planned.output
    plan = json.loads(planned.stdout)
    fates = {file["path"]: file["fate"] for file in plan["files"]}
    assert fates["tokenizer.model"] == "left: tokenizer.json says the same"
    assert fates["chat_template.jinja"] == f"left: {MLLM_CONFIG} has the prompt"
    assert plan["settings"] == ["FOVEA_EMBED_MODELS=llava-1.5-7b-hf"]
    result = run(source)
    assert result.exit_code == 0, result.output
    store = Store.open((tmp_path / "store").as_uri())
    manifest = store.manifest("llava-1.5-7b-hf", store.resolve("llava-1.5-7b-hf", "latest"))
    assert (manifest.kind, manifest.licence) == (MLLM_KIND, "llama2")
    assert manifest.source is not None
    assert manifest.source["image_tokens"] == NUM_IMAGE_TOKENS
    assert manifest.source["image_size"] == SIDE
    shards = {f"model-0000{number}-of-0000{SHARDS}.safetensors" for number in range(1, SHARDS + 1)}
    assert manifest.files.keys() >= {*shards, "model.safetensors.index.json", MLLM_CONFIG, "reference.json"}
    assert "chat_template.jinja" not in manifest.files


def test_a_prompt_of_the_source_stays(source: Path, run: Callable[..., Any]) -> None:
    own = {"prompt": "<image> {instruction}:", "no_instruction": "what?"}
    (source / MLLM_CONFIG).write_text(json.dumps(own))
    assert read_prompt(source) == MllmPrompt(**own)
    plan = json.loads(run(source, "--dry-run", "--json").stdout)
    assert {"path": MLLM_CONFIG, "size_bytes": (source / MLLM_CONFIG).stat().st_size, "fate": "taken"} in plan["files"]
    with pytest.raises(ValueError, match=r"needs one <image>, and \{instruction\} after it"):
        MllmPrompt("{instruction} <image>")


def _changed(path: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda config: config["text_config"].update(model_type="mistral"), "the language model is a 'mistral'"),
        (lambda config: config["vision_config"].update(model_type="siglip"), "the image tower is a 'siglip'"),
        (lambda config: config.pop("text_config"), "not of a LLaVA in transformers' layout"),
        (lambda config: config.update(quantization_config={"bits": 4}), "quantised weights are not served"),
        (lambda config: config.update(auto_map={"AutoModel": "a.b"}), "nothing of a source is run"),
    ],
)
def test_another_configuration_is_refused(
    source: Path, run: Callable[..., Any], change: Callable[[Any], object], told: str
) -> None:
    _changed(source / "config.json", change)
    refused = run(source, "--dry-run")
    assert refused.exit_code != 0
    assert told in refused.output


def test_what_serving_needs_must_be_there(source: Path, run: Callable[..., Any]) -> None:
    for name in ("tokenizer.json", "preprocessor_config.json"):
        kept = (source / name).read_bytes()
        (source / name).unlink()
        if name.startswith("preprocessor"):
            (source / "processor_config.json").unlink()
        assert f"has no {name}" in run(source, "--dry-run").output
        (source / name).write_bytes(kept)
    _changed(source / "preprocessor_config.json", lambda settings: settings.update(size={"shortest_edge": SIDE // 2}))
    with pytest.raises(ValueError, match="not to the tower's 56"):
        load_mllm(source)


def test_missing_weights_are_named(source: Path) -> None:
    index = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    missing = "language_model.model.layers.0.self_attn.k_proj.weight"
    shard = source / index[missing]
    weights = load_file(shard)
    del weights[missing]
    save_file(weights, shard, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks weights .*'model.language_model.layers.0.self_attn.k_proj"):
        load_mllm(source)


def test_image_settings_may_stand_in_the_processors_file(source: Path) -> None:
    expected = load_mllm(source).transform
    settings = json.loads((source / "preprocessor_config.json").read_text())
    (source / "processor_config.json").write_text(json.dumps({"image_processor": settings}))
    (source / "preprocessor_config.json").unlink()
    assert load_mllm(source).transform == expected
