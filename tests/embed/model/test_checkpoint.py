"""Checkpoint directories load what was saved, and preprocessing is open_clip's own."""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from services.core.store.checkpoint_files import packaged_starters
from services.core.store.store import Store
from services.embed.focallens import FocalLens
from services.embed.model.focallens_engine import FOCALLENS_CONFIG, FOCALLENS_WEIGHTS, load_focallens, save_focallens
from services.nn.clip_model import (
    MERGES,
    OPEN_CLIP_WEIGHTS,
    create_clip,
    load_clip,
    open_clip,
    save_clip,
)
from starters.embed.questions import learn_merges
from starters.merges import write_merges

VISION = {"image_size": 32, "patch_size": 16, "width": 32, "layers": 2, "head_width": 16}
TEXT = {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
CONFIG: dict[str, Any] = {"model_cfg": {"embed_dim": 16, "vision_cfg": VISION, "text_cfg": TEXT}}


def random_image(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize("size", [(32, 32), (53, 91), (91, 53), (33, 640), (8, 9), (1, 1)])
@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_preprocessing_is_open_clips_own(size: tuple[int, int], resize_mode: str) -> None:
    clip = create_clip({**CONFIG, "preprocess_cfg": {"resize_mode": resize_mode}})
    reference = open_clip().image_transform(
        32, is_train=False, mean=clip.transform.mean, std=clip.transform.std, resize_mode=resize_mode
    )
    image = random_image(*size)
    ours = clip.transform.normalise(torch.tensor(clip.transform(image))[None])[0]
    torch.testing.assert_close(ours, reference(image), atol=1e-6, rtol=0)


def test_a_resize_mode_that_is_not_ours_is_refused() -> None:
    with pytest.raises(ValueError, match="resize_mode is 'tallest', which is not one of shortest, longest, squash"):
        create_clip({**CONFIG, "preprocess_cfg": {"resize_mode": "tallest"}})


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads its own size from /proc")
@pytest.mark.parametrize("size", [(1, 600_000), (600_000, 1)])
def test_a_line_of_pixels_is_cropped_before_it_is_resized(size: tuple[int, int]) -> None:
    transform = create_clip(CONFIG).transform
    image = Image.linear_gradient("L").convert("RGB").resize(size)
    before = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    # resized whole, the line would be a plane of two gigabytes
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 256_000_000, before[1]))
    try:
        pixels = transform(image)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert pixels.shape == (32, 32, 3)
    assert abs(int(pixels.mean()) - 128) < 8


@pytest.mark.slow
def test_open_clip_loads_the_directory_that_we_write_and_we_load_it_too(tmp_path: Path) -> None:
    clip = create_clip(CONFIG)
    save_clip(clip, tmp_path)
    theirs = open_clip().create_model(f"local-dir:{tmp_path}").eval()
    ours = load_clip(str(tmp_path)).model.eval()
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(ours.encode_image(pixels), theirs.encode_image(pixels))
    tokenizer = open_clip().get_tokenizer(f"local-dir:{tmp_path}")
    text = ["a red circle"]
    assert torch.equal(load_clip(str(tmp_path)).tokenizer(text), tokenizer(text))


@pytest.mark.parametrize("quick_gelu", [False, True])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.slow
def test_an_open_clip_name_loads_with_a_file_of_weights(tmp_path: Path, suffix: str, quick_gelu: bool) -> None:
    (tmp_path / "ViT-tiny-test.json").write_text(json.dumps({**CONFIG["model_cfg"], "quick_gelu": quick_gelu}))
    open_clip().add_model_config(tmp_path / "ViT-tiny-test.json")
    original = create_clip({"model_cfg": {**CONFIG["model_cfg"], "quick_gelu": quick_gelu}}).model.eval()
    weights = tmp_path / f"weights{suffix}"
    state = {name: tensor.contiguous() for name, tensor in original.state_dict().items()}
    save_file(state, weights) if suffix == ".safetensors" else torch.save(state, weights)
    loaded = load_clip("ViT-tiny-test", str(weights))
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(loaded.model.eval().encode_image(pixels), original.encode_image(pixels))
    save_clip(loaded, tmp_path / "saved")
    again = load_clip(str(tmp_path / "saved")).model.eval()
    torch.testing.assert_close(again.encode_image(pixels), original.encode_image(pixels), atol=2e-3, rtol=0)


def test_a_name_that_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'ViT-nowhere' is neither a directory"):
        load_clip("ViT-nowhere")


@pytest.mark.parametrize("visibility", ["full", "readout"])
@pytest.mark.slow
def test_a_focallens_directory_embeds_as_the_model_that_was_saved(tmp_path: Path, visibility: Any) -> None:
    clip = create_clip(CONFIG)
    model = FocalLens(clip.model, condition_layer=1, visibility=visibility).eval()
    save_focallens(model, clip, tmp_path)
    loaded = load_focallens(tmp_path)
    assert (loaded.model.condition_layer, loaded.model.visibility) == (1, visibility)
    pixels = torch.randn(2, 3, 32, 32)
    conditions = model.encode_conditions(clip.tokenizer(["a color", "its shape"]))
    reread = loaded.model.encode_conditions(loaded.tokenizer(["a color", "its shape"]))
    # weights are stored in half precision
    torch.testing.assert_close(
        loaded.model.encode_images(pixels, reread), model.encode_images(pixels, conditions), atol=5e-3, rtol=0
    )
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())


def test_a_vocabulary_of_its_own_and_a_convolutional_stem_survive_the_disk(tmp_path: Path) -> None:
    write_merges(learn_merges(), tmp_path / MERGES)
    text = {**TEXT, "vocab_size": 512 + len(learn_merges()) + 2}
    model_config = {"embed_dim": 16, "vision_cfg": VISION, "text_cfg": text}
    clip = create_clip({"model_cfg": model_config, "conv_stem": [4, 8, 16]}, tmp_path / MERGES)
    save_clip(clip, tmp_path / "saved")
    loaded = load_clip(str(tmp_path / "saved"))
    assert torch.equal(loaded.tokenizer(["a red circle"]), clip.tokenizer(["a red circle"]))
    assert loaded.tokenizer.num_tokens("a red circle") == 5
    pixels = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(
        loaded.model.eval().encode_image(pixels), clip.model.eval().encode_image(pixels), atol=2e-3, rtol=0
    )


def test_a_stem_that_does_not_fit_the_patches_is_refused() -> None:
    with pytest.raises(ValueError, match="patches of 8 pixels, not 16"):
        create_clip({**CONFIG, "conv_stem": [4, 8]})


@pytest.mark.parametrize("missing", [FOCALLENS_CONFIG, FOCALLENS_WEIGHTS])
def test_a_directory_with_a_file_missing_does_not_load(tmp_path: Path, missing: str) -> None:
    clip = create_clip(CONFIG)
    save_focallens(FocalLens(clip.model), clip, tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(OSError, match=missing):
        load_focallens(tmp_path)


def test_weights_of_another_shape_do_not_load(tmp_path: Path) -> None:
    clip = create_clip(CONFIG)
    save_clip(clip, tmp_path)
    weights = load_file(tmp_path / OPEN_CLIP_WEIGHTS)
    save_file({**weights, "visual.proj": torch.zeros(3, 3)}, tmp_path / OPEN_CLIP_WEIGHTS)
    with pytest.raises(RuntimeError, match=r"visual\.proj"):
        load_clip(str(tmp_path))


def test_a_tokenizer_says_how_long_a_text_is_before_it_cuts_it() -> None:
    tokenizer = create_clip(CONFIG).tokenizer
    long = "red " * 40
    assert tokenizer.num_tokens(long) == 42
    assert tokenizer([long]).shape == (1, 16)


def test_a_tokenizer_reads_back_what_it_wrote() -> None:
    tokenizer = create_clip(CONFIG).tokenizer
    (row,) = tokenizer(["A red circle, 日本"]).tolist()
    start, *words, _ = row[: row.index(max(row)) + 1]
    assert tokenizer.decode(words) == "a red circle , 日本 "
    assert tokenizer.decode([start]) == "<start_of_text>"
    assert "\N{REPLACEMENT CHARACTER}" in tokenizer.decode(words[-1:])
    assert tokenizer.decode([]) == ""


def test_the_packaged_focallens_was_tuned_from_the_packaged_clip() -> None:
    store = Store.open("memory://")
    store.publish_starters(packaged_starters())
    tuned = store.manifest("focallens-shapes", store.resolve("focallens-shapes"))
    assert tuned.base == f"clip-shapes@{store.resolve('clip-shapes')}"
