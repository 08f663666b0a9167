"""No configuration makes a service or an import build more than the weights beside it hold."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from services.cli.main import app
from services.cli.store_import import write_reference
from services.core.refusals import Refused
from services.core.store.errors import InvalidCheckpoint
from services.nn.model_configs import StoredWeights, model_config
from services.nn.sentence_scores import load_likelihood
from tests.published_clips import write_hugging_face
from tests.published_instructblip import write_instructblip
from tests.published_llava import write_llava
from tests.published_models import publish
from tests.published_qwen3_vl import write_qwen3_vl_embedding
from tests.published_rerankers import publish_reranker

SERVICES = Path(__file__).parents[2] / "services"
MODEL_CONFIG, OPEN_CLIP_CONFIG = "config.json", "open_clip_config.json"
# A packaged checkpoint by its kind, and its configuration.
FOLDERS = {
    "causal-lm": ("generate/starter/litm-facts", MODEL_CONFIG),
    "t5-student": ("predict/starter/inferences", MODEL_CONFIG),
    "focallens-clip": ("embed/starter/focallens-shapes", OPEN_CLIP_CONFIG),
    "open-clip": ("embed/starter/clip-shapes", OPEN_CLIP_CONFIG),
    "fsc-clip": ("score/starter/fsc-clip-scenes", OPEN_CLIP_CONFIG),
}
SOURCES: dict[str, Callable[[Path], Any]] = {
    "llama": lambda folder: publish(folder.parent, folder.name),
    "t5": lambda folder: publish(folder.parent, folder.name),
    "llava": write_llava,
    "instructblip": write_instructblip,
    "qwen3_vl": write_qwen3_vl_embedding,
    "clip": write_hugging_face,
    "bert": lambda folder: publish_reranker(folder.parent, folder.name),
}
NAMES = {"llama": "vicuna-7b-v1.5", "t5": "flan-t5-base", "bert": "ms-marco-MiniLM-L6-v2"}
LAYERS = ("num_hidden_layers", "num_layers", "layers")


def changed(content: dict[str, Any], names: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Give each field of these names, however deep, another value."""
    return {
        name: value if name in names else changed(inner, names, value) if isinstance(inner, dict) else inner
        for name, inner in content.items()
    }


def change(path: Path, names: tuple[str, ...], value: Any) -> None:
    content = json.loads(path.read_text())
    wanted = changed(content, names, value)
    path.write_text(json.dumps(wanted if wanted != content else {**content, names[0]: value}))


@pytest.mark.parametrize(
    ("names", "value", "told"),
    [
        (LAYERS, 10**9, "layers is 1000000000: it must be at most"),
        (("vocab_size",), 2**62, f"vocab_size is {2**62}: it must be at most"),
        (LAYERS, "4", "layers is '4': it must be a whole number from 1"),
        (("num_attention_heads", "num_heads", "heads"), 0, "heads is 0: it must be a whole number from 1"),
    ],
)
@pytest.mark.parametrize("kind", FOLDERS)
def test_a_size_that_the_weights_can_not_have_is_refused_by_its_name_before_anything_is_built(
    tmp_path: Path, kind: str, names: tuple[str, ...], value: Any, told: str
) -> None:
    starter, config = FOLDERS[kind]
    folder = Path(shutil.copytree(SERVICES / starter, tmp_path / "checkpoint"))
    change(folder / config, names, value)
    with pytest.raises(InvalidCheckpoint) as refused:
        write_reference(kind, folder)
    assert told in str(refused.value)
    assert f"{config}: " in str(refused.value)


@pytest.mark.parametrize(
    ("names", "value", "told"),
    [
        (LAYERS, 10**9, r"layers is 1000000000: it must be at most"),
        (("vocab_size",), 2**62, rf"vocab_size is {2**62}: it must be at most"),
        (("num_attention_heads", "num_heads"), 0, r"heads is 0: it must be a whole number from 1"),
        (("hidden_size", "d_model"), -8, r"(hidden_size|d_model) is -8: it must be a whole number from 1"),
        (("hidden_size", "d_model"), [32], r"config\.json: .*(hidden_size|d_model).*\[32\]"),
        (("rope_theta", "layer_norm_eps", "layer_norm_epsilon"), float("nan"), "is not a number"),
        (("rope_scaling",), [1], r"rope_scaling is \[1\]: it must be an object"),
        (("model_type",), ["llama"], r"model_type is \['llama'\]: it must be a str"),
    ],
)
@pytest.mark.parametrize("source", SOURCES)
def test_an_import_of_a_hostile_configuration_is_refused_in_one_line_that_names_the_field(
    tmp_path: Path, source: str, names: tuple[str, ...], value: Any, told: str
) -> None:
    folder = tmp_path / NAMES.get(source, source)
    SOURCES[source](folder)
    change(folder / MODEL_CONFIG, names, value)
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path), "COLUMNS": "300"}
    task = ("--task", "esnli") if source == "t5" else ()
    result = CliRunner(env=environment).invoke(app, ["store", "import", str(folder), "--no-reference", *task])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output
    assert re.search(told, result.stderr.splitlines()[-1]), result.stderr


@pytest.mark.parametrize("names", [("hidden_act",), ("dtype", "torch_dtype")])
def test_an_import_names_the_field_of_a_text_that_no_library_knows(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = publish(tmp_path, NAMES["llama"])
    change(folder / MODEL_CONFIG, names, "__import__")
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path), "COLUMNS": "300"}
    result = CliRunner(env=environment).invoke(app, ["store", "import", str(folder)])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output
    assert re.search(rf"config\.json: .*{names[0]}.*__import__", result.stderr)


def test_an_import_of_a_template_that_never_ends_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = publish(tmp_path, "Qwen2.5-7B-Instruct")
    endless = "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}"
    change(folder / "tokenizer_config.json", ("chat_template",), endless)
    environment = {"FOVEA_STORE_URL": (tmp_path / "store").as_uri(), "HOME": str(tmp_path), "COLUMNS": "300"}
    result = CliRunner(env=environment).invoke(app, ["store", "import", str(folder)])
    assert (result.exit_code, result.exception.__class__) == (1, SystemExit), result.output
    assert re.search("Qwen.*: the checkpoint's chat template refuses", result.stderr)


def test_weights_of_another_shape_than_the_configuration_gives_them_are_named_with_both(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SERVICES / FOLDERS["t5-student"][0], tmp_path / "checkpoint"))
    change(folder / MODEL_CONFIG, ("num_heads",), 3)
    with pytest.raises(InvalidCheckpoint, match=r"SelfAttention.* is \[\d+, \d+\], and \[\d+, \d+\] by the config"):
        write_reference("t5-student", folder)


def test_a_text_tower_that_open_clip_reads_itself_names_no_code(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SERVICES / FOLDERS["open-clip"][0], tmp_path / "checkpoint"))
    (folder / "text_tower").mkdir()
    tower = {"model_type": "roberta", "num_hidden_layers": 1, "attn_implementation": "attacker/kernel"}
    (folder / "text_tower" / MODEL_CONFIG).write_text(json.dumps(tower))
    with pytest.raises(InvalidCheckpoint, match="names code that computes it"):
        write_reference("open-clip", folder)


def test_a_model_that_grows_beyond_its_weights_is_stopped_while_it_is_built() -> None:
    stored, built = StoredWeights(num_numbers=1000, num_tensors=4), list[nn.Linear]()
    with pytest.raises(Refused, match="far larger than its weights, 1000 numbers in at"), stored.bound("config.json"):
        while True:
            built.append(nn.Linear(4096, 1024, device="meta"))
    assert len(built) < 32
    nn.Linear(4096, 8192, device="meta")


def test_modules_without_weights_are_counted_too() -> None:
    layers = nn.ModuleList()
    with pytest.raises(Refused, match="far larger"), StoredWeights(1000, 4).bound():
        while True:
            layers.append(nn.Identity())


def test_a_source_chooses_neither_attention_nor_programs_however_deep_it_names_them() -> None:
    chosen = {"attn_implementation": "attacker/kernel", "experts_implementation": "attacker/experts"}
    text = {**chosen, "_attn_implementation": "attacker/kernel", "auto_map": {"AutoModel": "code.Model"}}
    raw = {"model_type": "llava", "text_config": {"model_type": "llama", **text}, "vision_config": chosen, **chosen}
    config = model_config(raw, StoredWeights(10**9, 10**3))
    for part in (config, config.text_config, config.vision_config):
        assert part._attn_implementation is None
        assert part._experts_implementation is None
        assert not hasattr(part, "auto_map")


def test_a_model_of_sentences_is_bounded_by_its_weights(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(SERVICES / "curate/starter/blind-grammar", tmp_path / "scorer"))
    config = json.loads((folder / MODEL_CONFIG).read_text())
    (folder / MODEL_CONFIG).write_text(json.dumps({**config, "num_hidden_layers": 10**9, "n_layer": 10**9}))
    with pytest.raises(Refused, match="is 1000000000: it must be at most"):
        load_likelihood(folder)
