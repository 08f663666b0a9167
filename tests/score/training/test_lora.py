"""Low-rank training of a CLIP: what trains, what stays, and what comes out of it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from services.nn.clip_model import ClipModel
from services.score.fsc_clip import FscClipWeights, ImageFeatures, TextFeatures, fsc_clip_losses, interpolate
from services.score.model.dense_features import encode_images, encode_texts
from services.score.training.lora import add_lora, merged_state_dict
from services.score.training.recipe import Recipe
from tests.score.tiny import IMAGE_SIZE, tiny_clip

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "text tower of its own": {"custom_text": True, "text": {"proj_bias": True}},
    "convolutional stem": {"conv_stem": [8, 16]},
    "other blocks": {"vision": {"block_type": "custom", "qk_norm": True}},
}
TEXTS = ["a red circle", "a blue square", "a blue circle", "a red square"]


@pytest.fixture(params=MODELS)
def clip(request: pytest.FixtureRequest) -> ClipModel:
    torch.manual_seed(0)
    return tiny_clip(**MODELS[request.param])


def features(clip: ClipModel) -> tuple[ImageFeatures, TextFeatures]:
    pixels = torch.randn(2, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(1))
    return encode_images(clip.model, pixels), encode_texts(clip.model, clip.tokenizer(TEXTS))


def numbers(clip: ClipModel) -> list[Tensor]:
    with torch.no_grad():
        images, texts = features(clip)
    return [images.pooled, images.tokens, texts.pooled, texts.tokens]


def loss(clip: ClipModel) -> Tensor:
    scale = clip.model.logit_scale.exp()
    return fsc_clip_losses(*features(clip), torch.ones(1, 2, dtype=torch.bool), scale, FscClipWeights()).total


def train(clip: ClipModel, num_steps: int = 3) -> None:
    optimizer = torch.optim.AdamW([p for p in clip.model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(num_steps):
        optimizer.zero_grad()
        torch.autograd.backward(loss(clip))
        optimizer.step()


def trained(clip: ClipModel) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in clip.model.named_parameters() if weight.requires_grad}


def test_the_model_begins_as_it_was_and_every_matrix_soon_learns(clip: ClipModel) -> None:
    before = numbers(clip)
    add_lora(clip.model, 4)
    for was, now in zip(before, numbers(clip), strict=True):
        torch.testing.assert_close(now, was, atol=1e-6, rtol=0)
    train(clip)
    gradients = {name: weight.grad for name, weight in trained(clip).items()}
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


def test_only_the_matrices_train_and_nothing_else_moves_by_a_bit(clip: ClipModel) -> None:
    before = {name: weight.clone() for name, weight in clip.model.named_parameters()}
    add_lora(clip.model, 4)
    train(clip)
    frozen = {id(weight): weight for weight in clip.model.parameters() if not weight.requires_grad}
    assert len(frozen) == len(before)
    assert all(any(torch.equal(was, now) for now in frozen.values()) for was in before.values())
    assert not clip.model.logit_scale.requires_grad


def test_every_projection_linear_layer_and_convolution_of_both_towers_has_matrices_of_the_rank() -> None:
    clip = tiny_clip()
    add_lora(clip.model, 3)
    num_matrices = len(trained(clip))
    assert num_matrices == 2 * (3 * 4 + 1)  # three blocks of four layers, and the patches' convolution
    assert all(3 in weight.shape[:2] for weight in trained(clip).values())


def test_the_released_recipe_trains_15360_parameters_at_the_patches_of_a_vit_b_32() -> None:
    recipe = Recipe.read("fsc-clip-lora-laion-coco")
    assert recipe.lora_rank is not None
    vision = {"image_size": 64, "patch_size": 32, "width": 768, "layers": 1}
    clip = tiny_clip(vision=vision)
    patches = clip.model.visual.conv1
    add_lora(clip.model, recipe.lora_rank)
    matrices = {name: weight for name, weight in trained(clip).items() if name.startswith("visual.conv1.")}
    assert {name: tuple(weight.shape) for name, weight in matrices.items()} == {
        "visual.conv1.lora_A.default.weight": (4, 3, 32, 32),
        "visual.conv1.lora_B.default.weight": (768, 4, 1, 1),
    }
    assert sum(weight.numel() for weight in matrices.values()) == 15_360
    a, b = matrices.values()
    nn.init.normal_(b)
    pixels = torch.randn(1, 3, 64, 64)
    added = F.conv2d(F.conv2d(pixels, a, stride=32), b) / 4
    torch.testing.assert_close(clip.model.visual.conv1(pixels), patches(pixels) + added, atol=1e-4, rtol=0)


def test_merged_weights_are_a_plain_models_and_give_the_trained_models_features(clip: ClipModel) -> None:
    names = set(clip.model.state_dict())
    add_lora(clip.model, 4)
    train(clip)
    expected = numbers(clip)
    merged = merged_state_dict(clip.model)
    assert set(merged) == names
    plain = copy_of_architecture(clip)
    plain.model.load_state_dict(merged)
    for ours, theirs in zip(numbers(plain), expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)
    for again, before in zip(numbers(clip), expected, strict=True):
        assert torch.equal(again, before)  # merging changed nothing of the model that goes on training


def copy_of_architecture(clip: ClipModel) -> ClipModel:
    model_cfg = clip.config["model_cfg"]
    rest = {key: value for key, value in model_cfg.items() if key not in ("vision_cfg", "text_cfg", "embed_dim")}
    stem = {"conv_stem": clip.config["conv_stem"]} if "conv_stem" in clip.config else {}
    return tiny_clip(seed=9, vision=model_cfg["vision_cfg"], text=model_cfg["text_cfg"], **rest, **stem)


def test_the_scale_of_what_is_added_is_one_over_the_rank() -> None:
    clip = tiny_clip()
    before = clip.model.visual.transformer.resblocks[0].attn.in_proj_weight.detach().clone()
    before_mlp = clip.model.visual.transformer.resblocks[0].mlp.c_fc.weight.detach().clone()
    add_lora(clip.model, 4)
    for weight in trained(clip).values():
        nn.init.ones_(weight)  # a product of ones is the rank
    merged = merged_state_dict(clip.model)
    block = "visual.transformer.resblocks.0"
    torch.testing.assert_close(merged[f"{block}.attn.in_proj_weight"], before + 1)
    torch.testing.assert_close(merged[f"{block}.mlp.c_fc.weight"], before_mlp + 1)


def test_interpolated_merged_weights_go_straight_from_base_to_trained_unlike_scaled_matrices() -> None:
    clip = tiny_clip()
    base = {name: weight.clone() for name, weight in clip.model.state_dict().items()}
    add_lora(clip.model, 4)
    train(clip, num_steps=5)
    tuned = merged_state_dict(clip.model)
    half = interpolate(base, tuned, 0.5)
    with torch.no_grad():
        for weight in trained(clip).values():
            weight.mul_(0.5)
    scaled = merged_state_dict(clip.model)
    name = "visual.transformer.resblocks.0.attn.in_proj_weight"
    update = tuned[name] - base[name]
    torch.testing.assert_close(half[name] - base[name], update / 2, atol=1e-6, rtol=0)
    torch.testing.assert_close(scaled[name] - base[name], update / 4, atol=1e-6, rtol=0)
    assert update.abs().max() > 1e-3


def test_the_released_initialisation_moves_the_attention_and_nothing_else() -> None:
    clip = tiny_clip()
    before = {name: weight.clone() for name, weight in clip.model.state_dict().items()}
    add_lora(clip.model, 4, official_init=True)
    merged = merged_state_dict(clip.model)
    moved = {name for name, weight in merged.items() if not torch.equal(weight, before[name])}
    assert moved == {name for name in before if name.endswith("attn.in_proj_weight")}


def test_a_state_of_the_matrices_restores_the_trained_model() -> None:
    clip, other = tiny_clip(), tiny_clip()
    for model in (clip, other):
        add_lora(model.model, 4)
    train(clip)
    other.model.load_state_dict(clip.model.state_dict())
    for ours, theirs in zip(numbers(clip), numbers(other), strict=True):
        assert torch.equal(ours, theirs)


def test_the_matrices_are_added_in_single_precision_under_autocast() -> None:
    clip = tiny_clip()
    add_lora(clip.model, 4, official_init=True)
    attention = clip.model.visual.transformer.resblocks[0].attn
    plain = attention.in_proj_weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(attention.in_proj_weight, plain)
        value = loss(clip)
    assert value.isfinite()


@pytest.mark.parametrize("rank", [0, -4])
def test_a_rank_below_one_is_refused(rank: int) -> None:
    model = tiny_clip().model
    with pytest.raises(ValueError, match="at least 1"):
        add_lora(model, rank)
