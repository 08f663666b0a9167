"""The cache gets what a device's memory leaves beside the weights."""

from pathlib import Path

import pytest

from services.generate.engine import EngineOptions, GenerateEngine
from services.generate.generation.generation import AnswerOptions
from services.generate.model.language_model import CPU_CACHED_TOKENS, LanguageModel, fitting_tokens
from services.nn.devices import DeviceOptions
from tests.generate.served_tiny import MODEL, served_tiny
from tests.generate.tiny_models import save_tiny, tiny_model, tiny_tokenizer

KIBIBYTE = 1024


def has_memory(monkeypatch: pytest.MonkeyPatch, num_bytes: int) -> None:
    """Pretend that every device has so much memory: no test can fill a real one."""
    for module in ("services.generate.model.language_model", "services.nn.devices"):
        monkeypatch.setattr(f"{module}.memory_of", lambda _: num_bytes)


@pytest.fixture
def model() -> LanguageModel:
    return LanguageModel(tiny_model(), tiny_tokenizer())


def test_tokens_fill_the_share_of_memory_that_the_weights_leave(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 4 layers of keys and values of 2 heads, 8 numbers each, in float32
    assert model.config.token_bytes == 4 * 2 * 2 * 8 * 4
    has_memory(monkeypatch, 1000 * KIBIBYTE)
    free = 0.5 * (1000 * KIBIBYTE + model.weight_bytes) - model.weight_bytes
    assert fitting_tokens(model, 0.5) == int(free) // model.config.token_bytes


def test_a_cpu_gets_no_more_than_the_usual_cache(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    has_memory(monkeypatch, 2**40)
    assert fitting_tokens(model, 0.9) == CPU_CACHED_TOKENS


def test_weights_that_leave_no_room_for_a_token_are_refused_with_both_sizes(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_memory(monkeypatch, 0)
    with pytest.raises(ValueError, match=r"its weights take 0.0 GiB and leave no room for a token in 0.0 GiB of cpu"):
        fitting_tokens(model, 0.9)


def test_a_checkpoint_that_does_not_fit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = save_tiny(tmp_path)
    has_memory(monkeypatch, 10 * KIBIBYTE)
    with pytest.raises(ValueError, match=r"its weights take \d+\.\d GiB in float32, and cpu has \d+\.\d GiB free"):
        GenerateEngine.load(directory, EngineOptions(DeviceOptions("cpu", "float32")))


def test_a_limit_of_ones_own_is_kept(tmp_path: Path) -> None:
    engine = GenerateEngine.load(save_tiny(tmp_path), EngineOptions(max_cached_tokens=300))
    assert engine.processor.context_length == 300


def test_the_share_of_the_cache_that_answers_hold_is_measured(tmp_path: Path) -> None:
    with served_tiny(tmp_path, max_cached_tokens=1024) as client:
        assert f'fovea_kv_cache_usage_ratio{{name="{MODEL}"}} 0.0' in client.get("/metrics").text


def test_an_answer_holds_its_share_until_it_ends(tmp_path: Path) -> None:
    engine = GenerateEngine.load(save_tiny(tmp_path), EngineOptions(max_cached_tokens=512))
    item = engine.processor.prepare_completion("The keeper of", AnswerOptions(max_tokens=3, ignore_eos=True))
    engine.admit([item])
    held = engine.cache_share
    while engine.num_running:
        engine.step()
    assert 0 < held <= 1
    assert engine.cache_share == 0
