"""Each method minimises the loss that it is named after, over one process or several."""

import math
from dataclasses import replace
from typing import cast, get_args

import pytest
import torch
from torch import nn

from services.nn.clip_model import ClipModel
from services.nn.text_transformer import MAX_LOG_SCALE
from services.score.fsc_clip import FscClipWeights, Missing, clip_loss, fsc_clip_losses, negclip_loss
from services.score.model.dense_features import encode_images, encode_texts
from services.score.negatives.annotation import TextBlobAnnotator
from services.score.negatives.hard_negatives import KINDS, HardNegatives
from services.score.training.batches import TuningBatch, TuningData
from services.score.training.objectives import Method, TuningLoss, method_weights
from services.score.training.recipe import Recipe
from starters.score.training.tuning import SceneLexicon, SceneSource
from tests.score.tiny import IMAGE_SIZE, tiny_clip

WEIGHTS = FscClipWeights()


def batch_of(clip: ClipModel, num_images: int = 4, seed: int = 0) -> TuningBatch:
    made = HardNegatives(TextBlobAnnotator(), SceneLexicon())
    return TuningData(SceneSource(IMAGE_SIZE), clip.tokenizer, made, KINDS, seed, num_images)(0)


def loss_of(clip: ClipModel, method: Method) -> TuningLoss:
    return TuningLoss((clip.model, clip.transform), method, WEIGHTS)


def test_the_losses_are_those_of_the_methods() -> None:
    clip = tiny_clip()
    batch = batch_of(clip)
    images = encode_images(clip.model, batch.pixels(clip.transform))
    texts = encode_texts(clip.model, batch.input_ids)
    scale = clip.model.logit_scale.exp()
    plain = clip_loss(images.pooled, texts.pooled[:4], scale)
    cross_entropy = FscClipWeights(lambda_local=0.0, gamma=0.0, beta=None)
    expected = {
        "clip": plain,
        "negclip": negclip_loss(images.pooled, texts.pooled, scale),
        "global": fsc_clip_losses(images, texts, batch.exists, scale, cross_entropy).total,
        "fsc-clip": fsc_clip_losses(images, texts, batch.exists, scale, WEIGHTS).total,
    }
    found = {method: loss_of(clip, method)(batch).item() for method in get_args(Method)}
    assert found == {method: pytest.approx(value.item(), rel=1e-6) for method, value in expected.items()}
    assert len(set(found.values())) == 4


def test_negclip_counts_missing_negatives_as_logits_of_zero_where_the_recipe_says_so() -> None:
    clip = tiny_clip()
    whole = batch_of(clip)
    exists = whole.exists.clone()
    exists[-1, -1] = False
    batch = replace(whole, input_ids=whole.input_ids[:-1], exists=exists)  # its negative is the last of the texts
    zeros = TuningLoss((clip.model, clip.transform), "negclip", Recipe(method="negclip", missing="zero").weights)
    images = encode_images(clip.model, batch.pixels(clip.transform)).pooled
    texts = encode_texts(clip.model, batch.input_ids).pooled
    # the released code has a text of zeros in the place of each
    padded = torch.cat([texts, texts.new_zeros(int((~batch.exists).sum()), texts.shape[1])])
    expected = negclip_loss(images, padded, clip.model.logit_scale.exp()).item()
    assert zeros(batch).item() == pytest.approx(expected, rel=1e-6)
    assert expected > loss_of(clip, "negclip")(batch).item() + 1e-5


@pytest.mark.parametrize("method", get_args(Method))
def test_every_method_learns(method: Method) -> None:
    clip = tiny_clip()
    loss = loss_of(clip, method).train()
    batch = batch_of(clip)
    optimizer = torch.optim.AdamW(loss.parameters(), lr=1e-3)
    values = []
    for _ in range(8):
        value = loss(batch)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        values.append(value.item())
    assert all(map(math.isfinite, values))
    assert values[-1] < 0.9 * values[0]


@pytest.mark.parametrize("missing", ["exclude", "zero"])
@pytest.mark.parametrize("method", get_args(Method))
def test_captions_without_negatives_leave_clips_own_loss(method: Method, missing: Missing) -> None:
    clip = tiny_clip()
    batch = batch_of(clip)
    none = replace(batch, input_ids=batch.input_ids[:4], exists=torch.zeros_like(batch.exists))
    loss = TuningLoss((clip.model, clip.transform), method, replace(WEIGHTS, missing=missing))
    value = loss(none)
    value.backward()
    assert value.item() == pytest.approx(loss_of(clip, "clip")(none).item(), rel=1e-6)
    gradients = [parameter.grad for parameter in loss.parameters() if parameter.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_the_temperature_stays_between_1_and_100() -> None:
    clip = tiny_clip()
    loss = loss_of(clip, "clip")
    for start, kept in ((9.0, MAX_LOG_SCALE), (-1.0, 0.0)):
        nn.init.constant_(clip.model.logit_scale, start)
        loss(batch_of(clip)).backward()
        assert clip.model.logit_scale.item() == pytest.approx(kept)


def test_a_convolutional_stem_keeps_its_statistics_while_it_is_tuned() -> None:
    clip = tiny_clip(conv_stem=[8, 8])
    norms = [module for module in clip.model.modules() if isinstance(module, nn.BatchNorm2d)]
    before = [cast(torch.Tensor, norm.running_mean).clone() for norm in norms]
    loss = loss_of(clip, "clip").train()
    loss(batch_of(clip)).backward()
    assert clip.model.training
    assert all(torch.equal(norm.running_mean, mean) for norm, mean in zip(norms, before, strict=True))  # type: ignore[arg-type]
    assert all(norm.weight.grad is not None for norm in norms)


def test_only_fsc_clip_is_regularised_and_only_it_is_local() -> None:
    weights = FscClipWeights(lambda_global=1.0)
    assert method_weights("fsc-clip", weights) is weights
    assert method_weights("global", weights) == FscClipWeights(lambda_global=1.0, lambda_local=0, gamma=0, beta=None)
    assert method_weights("clip", weights).lambda_global == 0
