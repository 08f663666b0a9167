"""FSC-CLIP checkpoint folders: what is written is what is read, by this service and by open_clip."""

import json
from pathlib import Path

import pytest
import torch

from services.nn.clip_model import open_clip
from services.score.model.checkpoint import FscClipCheckpoint, load_fsc_clip, save_fsc_clip
from services.score.model.dense_features import encode_images, encode_texts
from tests.score.tiny import IMAGE_SIZE, tiny_clip, write_tiny_checkpoint


def test_a_saved_checkpoint_is_loaded_with_its_weights_in_half_precision_and_its_local_weight(tmp_path: Path) -> None:
    clip = tiny_clip()
    save_fsc_clip(FscClipCheckpoint(clip, 0.3), tmp_path)
    loaded = load_fsc_clip(tmp_path)
    assert loaded.local_weight == 0.3
    assert loaded.clip.config == clip.config
    for name, weight in loaded.clip.model.state_dict().items():
        assert torch.equal(weight, clip.model.state_dict()[name].half().to(weight.dtype)), name


def test_a_loaded_model_evaluates_and_wants_no_gradient(tmp_path: Path) -> None:
    model = load_fsc_clip(write_tiny_checkpoint(tmp_path)).clip.model
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())


def test_a_model_is_loaded_in_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    loaded = load_fsc_clip(write_tiny_checkpoint(tmp_path), device="cpu", dtype=torch.bfloat16)
    assert {weight.dtype for weight in loaded.clip.model.parameters()} == {torch.bfloat16}
    with torch.inference_mode():
        images = encode_images(loaded.clip.model, torch.zeros(1, 3, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.bfloat16))
        texts = encode_texts(loaded.clip.model, loaded.clip.tokenizer(["a dog"]))
    assert images.tokens.dtype == texts.tokens.dtype == torch.bfloat16
    assert (images.pooled @ texts.pooled.T).isfinite().all()


def test_open_clip_loads_a_checkpoint_too(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    own = open_clip().create_model(f"local-dir:{directory}").state_dict()
    assert all(torch.equal(own[name], w) for name, w in load_fsc_clip(directory).clip.model.state_dict().items())


@pytest.mark.parametrize("local_weight", [-0.1, 1.1, float("nan")])
def test_a_local_weight_beyond_its_range_is_refused(tmp_path: Path, local_weight: float) -> None:
    with pytest.raises(ValueError, match="from 0 to 1"):
        FscClipCheckpoint(tiny_clip(), local_weight)
    directory = write_tiny_checkpoint(tmp_path)
    (directory / "fsc_clip.json").write_text(json.dumps({"local_weight": local_weight}))
    with pytest.raises(ValueError, match="from 0 to 1"):
        load_fsc_clip(directory)


def test_settings_that_are_unknown_or_no_object_are_refused(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    for content in ('{"local_weight": 0.5, "weight": 1}', "{}", "[0.5]", '{"local_weight": "much"}'):
        (directory / "fsc_clip.json").write_text(content)
        with pytest.raises(ValueError, match=r"fsc_clip\.json"):
            load_fsc_clip(directory)


def test_a_model_without_token_features_is_no_checkpoint() -> None:
    with pytest.raises(ValueError, match="plain ViT"):
        FscClipCheckpoint(tiny_clip(vision={"attentional_pool": True}), 0.5)


def test_a_folder_without_the_settings_is_no_checkpoint(tmp_path: Path) -> None:
    directory = write_tiny_checkpoint(tmp_path)
    (directory / "fsc_clip.json").unlink()
    with pytest.raises(OSError, match=r"fsc_clip\.json"):
        load_fsc_clip(directory)


def test_a_temperature_is_kept_and_is_a_finite_number_above_zero(tmp_path: Path) -> None:
    save_fsc_clip(FscClipCheckpoint(tiny_clip(), 0.3, 0.05), tmp_path)
    assert load_fsc_clip(tmp_path).temperature == 0.05
    assert load_fsc_clip(write_tiny_checkpoint(tmp_path / "other")).temperature is None
    for temperature in (0, -1, "1e999", '"warm"'):
        (tmp_path / "fsc_clip.json").write_text(f'{{"local_weight": 0.5, "temperature": {temperature}}}')
        with pytest.raises(ValueError, match="temperature"):
            load_fsc_clip(tmp_path)
