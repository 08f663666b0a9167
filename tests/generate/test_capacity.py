"""Sizes are those of the served model: its cache allocates as many bytes, and its parameters add up."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from services.generate.capacity import CacheSize, Capacity, weights_as_served
from services.generate.model.language_model import LanguageModel
from services.nn.devices import DeviceOptions
from tests.documentation.capacity import capacity_of, published_models

STARTER = Path(__file__).parents[2] / "services" / "generate" / "starter" / "open-facts"
LLAMA = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "max_position_embeddings": 4096,
}


def num_parameters(config: dict[str, Any]) -> int:
    """The parameters of a Llama, a Mistral or a Qwen 2 whose embeddings are not tied."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    keys = width // heads * config["num_key_value_heads"]
    attention = 2 * width * width + 2 * width * keys
    if config["model_type"] == "qwen2":
        attention += width + 2 * keys
    layer = attention + 3 * width * config["intermediate_size"] + 2 * width
    return int(config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * width + width)


@pytest.mark.parametrize("name", published_models())
def test_the_numbers_of_a_published_config_add_up_to_its_published_parameters(name: str) -> None:
    model = published_models()[name]
    assert num_parameters(model["config"]) == model["num_parameters"]


def test_vicuna_has_half_a_mebibyte_of_cache_a_token_and_qwen_a_ninth() -> None:
    sizes = {name: CacheSize.of(model["config"]).token_bytes("float16") for name, model in published_models().items()}
    assert sizes["vicuna-7b-v1.5"] == 512 * 1024
    assert sizes["Qwen2.5-7B-Instruct"] == 56 * 1024


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_served_models_weights_and_cache_take_what_was_computed(dtype: Any) -> None:
    model = LanguageModel.load(STARTER, DeviceOptions("cpu", dtype))
    cache = model.new_cache(256)
    cache.open(256)
    size = CacheSize.of(json.loads((STARTER / "config.json").read_text()))
    allocated = sum(numbers.nbytes for numbers in (*cache.keys, *cache.values))
    assert allocated == 256 * size.token_bytes(dtype)
    stored = sum(path.stat().st_size for path in STARTER.glob("*.safetensors"))
    with safe_open(STARTER / "model.safetensors", framework="pt") as weights:
        served = sum(weights.get_tensor(name).to(model.dtype).nbytes for name in weights.keys())  # noqa: SIM118
    assert weights_as_served(stored, "float16", dtype) == pytest.approx(served, rel=0.01)


def test_heads_and_their_width_default_as_in_transformers() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert CacheSize.of(without) == CacheSize(num_layers=4, num_kv_heads=4, head_dim=8, max_context=4096)
    assert CacheSize.of({**LLAMA, "head_dim": 16}).head_dim == 16


@pytest.mark.parametrize(
    ("scaling", "context"),
    [
        (None, 4096),
        ({"type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "dynamic", "factor": 2.0}, 4096),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4096),
        ({"rope_type": "default", "rope_theta": 10000.0}, 4096),
    ],
)
def test_the_context_is_the_one_that_scaled_positions_reach(scaling: Any, context: int) -> None:
    assert CacheSize.of({**LLAMA, "rope_scaling": scaling}).max_context == context
    assert CacheSize.of({**LLAMA, "rope_parameters": scaling}).max_context == context


@pytest.mark.parametrize("missing", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_a_config_of_another_layout_is_refused_by_the_name_of_what_it_lacks(missing: str) -> None:
    config = {key: value for key, value in LLAMA.items() if key != missing}
    with pytest.raises(ValueError, match=rf"no {missing}.*\(t5\)"):
        CacheSize.of({**config, "model_type": "t5"})


def test_what_is_left_beside_the_weights_is_shared_by_the_streams() -> None:
    found = Capacity(weight_bytes=100, token_bytes=10, budget_bytes=1105, max_context=64)
    assert (found.cache_bytes, found.cache_tokens, found.streams(40), found.longest_context) == (1005, 100, 2, 64)
    assert Capacity(weight_bytes=100, token_bytes=10, budget_bytes=400, max_context=64).longest_context == 30


@pytest.mark.parametrize("weight_bytes", [100, 96, 200])
def test_weights_beside_which_no_token_has_room_do_not_fit(weight_bytes: int) -> None:
    found = Capacity(weight_bytes=weight_bytes, token_bytes=10, budget_bytes=105, max_context=64)
    assert (found.fits, found.cache_tokens, found.streams(1)) == (False, 0, 0)


def test_the_docs_table_has_a_model_that_fits_and_one_that_does_not() -> None:
    llama = published_models()["Llama-3.1-8B-Instruct"]
    assert not capacity_of(llama, 16).fits
    assert capacity_of(llama, 24).fits
