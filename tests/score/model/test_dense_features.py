"""Token features of open_clip's models: pooled ones are open_clip's own, tokens those of a plain computation."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from services.nn.clip_model import ClipModel, open_clip
from services.nn.vision_transformer import pack_tower
from services.score.model.dense_features import check_towers, encode_images, encode_texts
from tests.score.tiny import CONFIG, CONTEXT_LENGTH, EMBEDDING_WIDTH, IMAGE_SIZE, NUM_PATCHES, tiny_clip

TEXTS = ["a red circle left of two blue squares", "hey!", "a dog", "!= !="]

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "quick gelu": {"quick_gelu": True},
    "text tower of its own": {"custom_text": True},
    "mean of the patches": {"vision": {"pool_type": "avg"}},
    "normalised behind the pooling": {"vision": {"pool_type": "avg", "final_ln_after_pool": True}},
    "convolutional stem": {"conv_stem": [8, 16]},
    "layer scale": {"vision": {"ls_init_value": 0.1}, "text": {"ls_init_value": 0.1}},
    "other blocks": {"vision": {"block_type": "custom", "qk_norm": True}},
    "biased projection": {"text": {"proj_bias": True}},
}


@pytest.fixture(scope="module", params=MODELS)
def clip(request: pytest.FixtureRequest) -> ClipModel:
    clip = tiny_clip(**MODELS[request.param])
    noise = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in clip.model.parameters():
            if weight.ndim == 1:  # gains and biases begin as ones and zeros
                weight += 0.1 * torch.randn(weight.shape, generator=noise)
    return clip


@pytest.fixture
def pixels() -> Tensor:
    return torch.randn(3, 3, IMAGE_SIZE, IMAGE_SIZE, generator=torch.Generator().manual_seed(1))


def test_pooled_features_are_open_clips_own(clip: ClipModel, pixels: Tensor) -> None:
    input_ids = clip.tokenizer(TEXTS)
    with torch.inference_mode():
        images, texts = encode_images(clip.model, pixels), encode_texts(clip.model, input_ids)
        own = clip.model.encode_image(pixels, normalize=True), clip.model.encode_text(input_ids, normalize=True)
    torch.testing.assert_close(images.pooled, own[0], atol=1e-6, rtol=0)
    torch.testing.assert_close(texts.pooled, own[1], atol=1e-6, rtol=0)


def test_patch_tokens_are_the_last_blocks_behind_norm_and_projection(clip: ClipModel, pixels: Tensor) -> None:
    visual = clip.model.visual
    last: list[Tensor] = []
    handle = visual.transformer.resblocks[-1].register_forward_hook(lambda *called: last.append(called[2]))
    with torch.no_grad():
        clip.model.encode_image(pixels)
        handle.remove()
        tokens = encode_images(clip.model, pixels).tokens
        mean, variance = last[0].mean(dim=-1, keepdim=True), last[0].var(dim=-1, keepdim=True, correction=0)
        normalised = (last[0] - mean) / (variance + visual.ln_post.eps).sqrt()
        projected = (normalised * visual.ln_post.weight + visual.ln_post.bias) @ visual.proj
    assert tokens.shape == (3, NUM_PATCHES, EMBEDDING_WIDTH)
    torch.testing.assert_close(tokens, projected[:, 1:], atol=1e-5, rtol=0)


def test_text_tokens_are_words_and_end_of_text_behind_norm_and_projection(clip: ClipModel) -> None:
    tower = getattr(clip.model, "text", clip.model)
    outputs: list[Tensor] = []
    handle = tower.ln_final.register_forward_hook(lambda *called: outputs.append(called[2]))
    input_ids = clip.tokenizer(TEXTS)
    with torch.no_grad():
        clip.model.encode_text(input_ids)
        handle.remove()
        projection = tower.text_projection
        projected = projection(outputs[0]) if callable(projection) else outputs[0] @ projection
        features = encode_texts(clip.model, input_ids)
    num_tokens = [clip.tokenizer.num_tokens(text) for text in TEXTS]
    assert features.mask.tolist() == [[0 < w < n for w in range(max(num_tokens))] for n in num_tokens]
    cut = projected[:, : max(num_tokens)]
    torch.testing.assert_close(features.tokens[features.mask], cut[features.mask], atol=1e-5, rtol=0)


def test_with_class_token_pooling_the_last_text_token_is_the_pooled_one_before_it_is_normalised() -> None:
    clip = tiny_clip()
    with torch.inference_mode():
        features = encode_texts(clip.model, clip.tokenizer(TEXTS))
    end = features.mask.shape[1] - 1 - features.mask.flip(1).int().argmax(dim=1)
    last = features.tokens[torch.arange(len(TEXTS)), end]
    torch.testing.assert_close(F.normalize(last, dim=-1), features.pooled)
    assert (last.norm(dim=-1) - 1).abs().min() > 1e-2


def test_an_exclamation_mark_counts_as_a_word_though_its_id_is_that_of_padding() -> None:
    clip = tiny_clip()
    input_ids = clip.tokenizer(["!= !="])
    assert input_ids[0, 1] == input_ids[0, 3] == 0
    assert encode_texts(clip.model, input_ids).mask.tolist() == [[False, True, True, True, True, True]]


def test_a_text_ends_at_its_mark_where_other_ids_are_higher() -> None:
    clip = tiny_clip(custom_text=True, text={"pool_type": "eos", "eos_id": 7})
    input_ids = torch.tensor([[1, 900, 7, 0, 0], [1, 20, 30, 9, 7]])
    input_ids = F.pad(input_ids, (0, CONTEXT_LENGTH - 5))
    with torch.inference_mode():
        features = encode_texts(clip.model, input_ids)
        own = clip.model.encode_text(input_ids, normalize=True)
    assert features.mask.tolist() == [[False, True, True, False, False], [False, True, True, True, True]]
    torch.testing.assert_close(features.pooled, own, atol=1e-6, rtol=0)


def test_a_text_is_the_same_alone_and_beside_a_longer_one_and_one_that_fills_the_context_is_whole() -> None:
    clip = tiny_clip()
    texts = ["a dog", "dog " * (CONTEXT_LENGTH + 9)]
    with torch.inference_mode():
        alone, both = (encode_texts(clip.model, clip.tokenizer(texts[:n])) for n in (1, 2))
    assert alone.tokens.shape[1] == 4
    torch.testing.assert_close(both.tokens[:1, :4], alone.tokens, atol=1e-6, rtol=0)
    assert both.mask[1].tolist() == [False] + [True] * (CONTEXT_LENGTH - 1)


@pytest.mark.slow
def test_packed_weights_give_the_features_that_they_were_packed_from(pixels: Tensor) -> None:
    clip = tiny_clip()
    with torch.inference_mode():
        before = encode_images(clip.model, pixels)
        pack_tower(clip.model.visual)
        after = encode_images(clip.model, pixels)
    torch.testing.assert_close(after.pooled, before.pooled, atol=1e-6, rtol=0)
    torch.testing.assert_close(after.tokens, before.tokens, atol=1e-5, rtol=0)


def test_pooled_features_are_of_unit_length_to_single_precision_in_half_precision_too(pixels: Tensor) -> None:
    clip = tiny_clip()
    input_ids = clip.tokenizer(TEXTS)
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.bfloat16):
        in_autocast = encode_images(clip.model, pixels).pooled, encode_texts(clip.model, input_ids).pooled
    clip.model.bfloat16()
    with torch.inference_mode():
        in_half = encode_images(clip.model, pixels.bfloat16()).pooled, encode_texts(clip.model, input_ids).pooled
    for pooled in (*in_autocast, *in_half):
        torch.testing.assert_close(pooled.norm(dim=-1), torch.ones(len(pooled)), atol=1e-6, rtol=0)


@pytest.mark.slow
def test_gradients_reach_every_weight_of_both_towers(pixels: Tensor) -> None:
    model = tiny_clip().model
    images, texts = encode_images(model, pixels), encode_texts(model, tiny_clip().tokenizer(TEXTS))
    total = sum(x.square().sum() for x in (images.tokens, texts.tokens)) + (images.pooled @ texts.pooled.T).sum()
    names, weights = zip(
        *((name, weight) for name, weight in model.named_parameters() if name != "logit_scale"), strict=True
    )
    gradients = torch.autograd.grad(total, weights, allow_unused=True)
    assert [
        name for name, gradient in zip(names, gradients, strict=True) if gradient is None or not gradient.any()
    ] == []


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"vision": {"attentional_pool": True}}, "plain ViT"),
        ({"vision": {"pool_type": "none"}}, "'none'"),
        ({"custom_text": True, "text": {"no_causal_mask": True}}, "causal"),
        ({"custom_text": True, "text": {"pool_type": "last"}}, "end of the text"),
        ({"custom_text": True, "text": {"embed_cls": True}}, "end of the text"),
    ],
)
def test_a_model_without_token_features_is_refused_in_a_sentence(config: dict[str, Any], reason: str) -> None:
    model = tiny_clip(**config).model
    texts = torch.zeros(1, CONTEXT_LENGTH, dtype=torch.long)
    for refuse in (
        lambda: check_towers(model),
        lambda: encode_images(model, torch.zeros(1, 3, IMAGE_SIZE, IMAGE_SIZE)),
    ):
        with pytest.raises(ValueError, match=f"FSC-CLIP needs .*{reason}"):
            refuse()
    if "custom_text" not in config:  # its text tower has them
        assert len(encode_texts(model, texts).tokens) == 1
        return
    with pytest.raises(ValueError, match=f"FSC-CLIP needs .*{reason}"):
        encode_texts(model, texts)


def test_a_residual_network_is_refused() -> None:
    config = copy.deepcopy(CONFIG["model_cfg"])
    config["vision_cfg"].update(layers=[1, 1, 1, 1], head_width=64)
    with pytest.raises(ValueError, match="FSC-CLIP needs a plain ViT"):
        check_towers(open_clip().CLIP(**config))


def test_siglip_which_pools_by_attention_and_reads_both_ways_is_refused() -> None:
    config = open_clip().get_model_config("ViT-B-16-SigLIP")
    config["vision_cfg"].update(timm_model_name="vit_tiny_patch16_224", timm_model_pretrained=False)
    config["text_cfg"].update(layers=1, hf_tokenizer_name=None, vocab_size=64, width=64, heads=1)
    config.pop("custom_text", None)
    with pytest.raises(ValueError, match="FSC-CLIP needs a plain ViT"):
        check_towers(open_clip().CustomTextCLIP(**config))
