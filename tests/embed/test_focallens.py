"""FocalLens-CLIP keeps the promises of its equations, on tiny open_clip models with random weights."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from services.embed.focallens import FocalLens, Visibility, unique_answer_loss
from services.embed.training.objectives import Contrast
from services.embed.visibility import Readouts
from services.nn.clip_model import ClipModel, create_clip
from services.nn.text_transformer import encode_text

GOLDENS = Path(__file__).parents[1] / "goldens"
VISIBILITIES: list[Visibility] = ["full", "readout"]


def tiny_clip(**vision: Any) -> ClipModel:
    torch.manual_seed(0)
    config = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 3, "head_width": 32, **vision}
    text = {"context_length": 24, "vocab_size": 49408, "width": 48, "heads": 2, "layers": 2}
    clip = create_clip({"model_cfg": {"embed_dim": 32, "vision_cfg": config, "text_cfg": text}})
    clip.model.eval()
    return clip


def contrastive_loss(
    image_features: Tensor, text_features: Tensor, logit_scale: Tensor | float, *, symmetric: bool = False
) -> Tensor:
    """Eq. 5.1: softmax cross-entropy over S_ij = scale · φ_i·T(y_j), rows only, or the mean with the columns'.

    (B, E) and (B, E), both L2-normalised, row i of one belonging to row i of the other. Returns a scalar.
    """
    logits = logit_scale * image_features @ text_features.T
    target = torch.arange(logits.shape[0], device=logits.device)
    rows = F.cross_entropy(logits, target)
    if not symmetric:
        return rows
    return (rows + F.cross_entropy(logits.T, target)) / 2


@pytest.fixture(scope="module")
def clip() -> ClipModel:
    return tiny_clip()


@pytest.fixture(scope="module")
def pixels() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def readouts(*pairs: tuple[int, int]) -> Readouts:
    images, conditions = zip(*pairs, strict=True)
    return Readouts(torch.tensor(images), torch.tensor(conditions))


def test_with_the_condition_masked_the_output_is_open_clips_own(clip: ClipModel, pixels: Tensor) -> None:
    model = FocalLens(clip.model, visibility="full")
    own = clip.model.encode_image(pixels, normalize=True)
    conditions = model.encode_conditions(clip.tokenizer(["a color"]))
    masked = model.encode_images(pixels, conditions, readouts((0, 0), (1, -1), (2, -1)))
    torch.testing.assert_close(masked[1:], own[1:], atol=1e-6, rtol=0)
    torch.testing.assert_close(model.encode_images(pixels), own, atol=1e-6, rtol=0)
    assert (masked[0] - own[0]).abs().max() > 1e-3


@pytest.mark.parametrize("condition_layer", [0, 1, 2])
@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_an_image_reads_the_same_alone_and_in_a_batch_of_many_readouts(
    clip: ClipModel, pixels: Tensor, visibility: Visibility, condition_layer: int
) -> None:
    model = FocalLens(clip.model, visibility=visibility, condition_layer=condition_layer)
    conditions = model.encode_conditions(clip.tokenizer(["a color", "its shape", "where it is"]))
    pairs = [(2, 1), (0, -1), (0, 0), (1, 2), (0, 2), (2, 1)]
    together = model.encode_images(pixels, conditions, readouts(*pairs))
    for row, (image, condition) in zip(together, pairs, strict=True):
        token = None if condition < 0 else conditions[condition : condition + 1]
        alone = model.encode_images(pixels[image : image + 1], token)
        torch.testing.assert_close(row, alone[0], atol=1e-6, rtol=0)


def test_in_readout_the_patches_do_not_depend_on_the_condition_and_in_full_they_do(
    clip: ClipModel, pixels: Tensor
) -> None:
    model = FocalLens(clip.model, visibility="readout")
    conditions = model.encode_conditions(clip.tokenizer(["a color", "its shape"]))
    states = [
        model.encode_images_and_states(pixels, conditions, readouts((0, c), (1, c), (2, c)), dtype=torch.float32)[1]
        for c in (0, 1, -1)
    ]
    assert all(torch.equal(states[0], other) for other in states[1:])
    fresh = model.encode_images(pixels, conditions, readouts((0, 0), (0, 1)))
    full = FocalLens(clip.model, visibility="full").encode_images(pixels, conditions, readouts((0, 0), (0, 1)))
    assert (full - fresh).abs().max() > 1e-3


@pytest.mark.parametrize("condition_layer", [0, 1, 2])
@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_an_embedding_is_what_the_masked_tower_computes_with_all_tokens_in_one_sequence(
    clip: ClipModel, pixels: Tensor, visibility: Visibility, condition_layer: int
) -> None:
    model = FocalLens(clip.model, visibility=visibility, condition_layer=condition_layer)
    conditions = model.encode_conditions(clip.tokenizer(["a color", "its shape", "where it is"]))
    visual, (cls, last) = clip.model.visual, (0, 17)
    patches = visual.conv1(pixels).flatten(2).transpose(1, 2)
    x = torch.cat([visual.class_embedding.expand(3, 1, -1), patches], dim=1)
    x = visual.ln_pre(x + visual.positional_embedding)
    x = torch.cat([x, conditions[:, None]], dim=1)
    for depth, block in enumerate(visual.transformer.resblocks):
        is_seen = torch.ones(18, 18, dtype=torch.bool)  # by the token of the row
        if depth < condition_layer:
            is_seen[:last, last] = False
        if visibility == "readout":
            is_seen[1:last, [cls, last]] = False
        x = block(x, attn_mask=torch.zeros(18, 18).masked_fill(~is_seen, float("-inf")))
        if depth < condition_layer:
            x[:, last] = conditions  # it has not joined yet
    expected = torch.nn.functional.normalize(visual.ln_post(x[:, cls]) @ visual.proj, dim=-1)
    torch.testing.assert_close(model.encode_images(pixels, conditions), expected, atol=1e-6, rtol=0)


KEPT: list[tuple[Visibility, int]] = [("readout", 0), ("readout", 1), ("readout", 2), ("full", 1), ("full", 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("visibility", "condition_layer"), KEPT)
def test_what_is_read_from_states_is_what_the_pixels_give(
    clip: ClipModel, pixels: Tensor, visibility: Visibility, condition_layer: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model = FocalLens(clip.model, visibility=visibility, condition_layer=condition_layer)
    conditions = model.encode_conditions(clip.tokenizer(["a color", "its shape", "where it is"]))
    alone, states = model.encode_images_and_states(pixels, conditions, dtype=dtype)
    torch.testing.assert_close(alone, model.encode_images(pixels, conditions), atol=1e-6, rtol=0)
    assert states.shape == (3, model.state_size)
    assert states.dtype == dtype
    tolerance = 1e-6 if dtype == torch.float32 else 3e-4
    everyone = torch.arange(3)
    for asked in (
        readouts((2, 1), (0, -1), (0, 0), (1, 2), (0, 2), (2, 1)),
        readouts((1, -1), (2, -1)),
        Readouts(None, torch.tensor([2, -1, 0])),
        Readouts(everyone, everyone),
        None,
    ):
        read = model.read_states(states, conditions, asked)
        torch.testing.assert_close(read, model.encode_images(pixels, conditions, asked), atol=tolerance, rtol=0)
    unconditional = model.encode_images(pixels)
    torch.testing.assert_close(model.read_states(states), unconditional, atol=tolerance, rtol=0)
    assert (alone - unconditional).abs().max() > 10 * tolerance  # a condition that were lost would show


@pytest.mark.parametrize(("visibility", "condition_layer"), KEPT)
def test_a_state_belongs_to_its_image_whatever_conditions_it_was_read_under(
    clip: ClipModel, pixels: Tensor, visibility: Visibility, condition_layer: int
) -> None:
    model = FocalLens(clip.model, visibility=visibility, condition_layer=condition_layer)
    conditions = model.encode_conditions(clip.tokenizer(["a color", "its shape"]))
    _, together = model.encode_images_and_states(
        pixels, conditions, readouts((0, 0), (1, 1), (1, 0), (2, -1)), dtype=torch.float32
    )
    for state, image in zip(together, pixels, strict=True):
        _, (alone,) = model.encode_images_and_states(image[None], dtype=torch.float32)
        torch.testing.assert_close(state, alone, atol=1e-5, rtol=0)


def test_where_a_condition_touches_everything_there_is_no_state(clip: ClipModel, pixels: Tensor) -> None:
    model = FocalLens(clip.model, visibility="full", condition_layer=0)
    assert model.state_size is None
    with pytest.raises(ValueError, match="no state of an image"):
        model.encode_images_and_states(pixels, dtype=torch.float32)
    with pytest.raises(ValueError, match="not this model's"):
        model.read_states(torch.zeros(1, 1))


@pytest.mark.parametrize("shape", [(2, 3), (0,)])
def test_states_of_another_model_are_refused(clip: ClipModel, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not this model's"):
        FocalLens(clip.model, visibility="readout").read_states(torch.zeros(shape))


@pytest.mark.parametrize(
    ("visibility", "condition_layer", "size"),
    [
        ("readout", 0, 3 * 2 * 16 * 64),  # 3 blocks, keys and values, 16 patches, width 64
        ("readout", 2, 2 * 16 * 64 + 64),
        ("full", 2, 17 * 64),
    ],
)
def test_a_state_holds_no_more_than_a_new_condition_needs(
    clip: ClipModel, visibility: Visibility, condition_layer: int, size: int
) -> None:
    assert FocalLens(clip.model, visibility=visibility, condition_layer=condition_layer).state_size == size


def test_states_serve_towers_that_average_their_patches(clip: ClipModel, pixels: Tensor) -> None:
    model = FocalLens(tiny_clip(pool_type="avg").model, visibility="full", condition_layer=1)
    conditions = model.encode_conditions(clip.tokenizer(["a color"] * 3))
    conditional, states = model.encode_images_and_states(pixels, conditions, dtype=torch.float32)
    torch.testing.assert_close(model.read_states(states, conditions), conditional, atol=1e-6, rtol=0)


def test_embeddings_have_norm_one(clip: ClipModel, pixels: Tensor) -> None:
    model = FocalLens(clip.model)
    conditions = model.encode_conditions(clip.tokenizer(["a color"] * 3))
    for features in (model.encode_images(pixels, conditions), model.encode_texts(clip.tokenizer(["a", "b"]))):
        torch.testing.assert_close(features.norm(dim=-1), torch.ones(len(features)))


@pytest.mark.parametrize(
    "vision",
    [
        {},
        {"patch_size": 16, "layers": 2},
        {"pool_type": "avg"},
        {"ls_init_value": 0.1},
        {"no_ln_pre": True},
        {"final_ln_after_pool": True, "pool_type": "avg"},
        {"mlp_ratio": 2.0, "head_width": 16},
    ],
)
def test_every_plain_vit_configuration_of_open_clip_is_followed(vision: dict[str, Any], pixels: Tensor) -> None:
    clip = tiny_clip(**vision)
    own = clip.model.encode_image(pixels, normalize=True)
    torch.testing.assert_close(FocalLens(clip.model).encode_images(pixels), own, atol=1e-6, rtol=0)


def test_texts_without_their_padding_encode_as_open_clip_does(clip: ClipModel) -> None:
    input_ids = clip.tokenizer(["a", "a red circle on a white background", "the end, and a long one it is !!"])
    torch.testing.assert_close(encode_text(clip.model, input_ids), clip.model.encode_text(input_ids), atol=1e-5, rtol=0)


def test_the_text_tower_is_frozen_and_the_condition_tower_is_not(clip: ClipModel, pixels: Tensor) -> None:
    model = FocalLens(tiny_clip().model)
    conditions = model.encode_conditions(clip.tokenizer(["a color"] * 3))
    answers = model.encode_texts(clip.tokenizer(["red", "green", "blue"]))
    torch.autograd.backward(contrastive_loss(model.encode_images(pixels, conditions), answers, 10.0))
    trained = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert "condition_projection.weight" in trained
    assert "condition_tower.token_embedding.weight" in trained
    assert "clip.visual.conv1.weight" in trained
    assert not any(name.startswith("clip.") and not name.startswith("clip.visual.") for name in trained)


@pytest.mark.parametrize(
    ("vision", "options", "message"),
    [
        ({}, {"condition_layer": 3}, "blocks 0 to 2"),
        ({}, {"condition_layer": -1}, "blocks 0 to 2"),
        ({"pool_type": "avg"}, {"visibility": "readout"}, "class token pooling"),
        ({"attentional_pool": True, "attn_pooler_heads": 4}, {}, "plain ViT"),
        ({}, {"visibility": "half"}, "'full' or 'readout'"),
    ],
)
def test_a_tower_without_a_place_for_the_condition_is_refused(
    vision: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FocalLens(tiny_clip(**vision).model, **options)


@pytest.mark.parametrize("case", [0, 1, 2])
def test_the_contrastive_loss_equals_the_reference(case: int) -> None:
    golden = json.loads((GOLDENS / "retrieval_metrics.json").read_text())["focallens_contrastive"][case]
    arrays = np.load(GOLDENS / "retrieval_metrics.npz")
    phi, text = (torch.from_numpy(arrays[f"fl{case}/{name}"]) for name in ("phi", "T"))
    phi, text = (torch.nn.functional.normalize(x, dim=-1) for x in (phi, text))
    rows = contrastive_loss(phi, text, golden["scale"])
    both = contrastive_loss(phi, text, golden["scale"], symmetric=True)
    assert float(rows) == pytest.approx(golden["row_loss"], abs=1e-6)
    assert float(both) == pytest.approx(golden["symmetric"], abs=1e-6)
    ids = torch.arange(len(phi))[:, None]
    for symmetric, merges in itertools.product([False, True], repeat=2):  # its answers are distinct
        loss = Contrast(symmetric, merges)(phi, ids, lambda ids: text[ids[:, 0]], golden["scale"])
        assert float(loss) == pytest.approx(golden["symmetric" if symmetric else "row_loss"], abs=1e-6)


@pytest.mark.parametrize("symmetric", [False, True])
def test_with_distinct_answers_the_unique_answer_loss_is_the_contrastive_one(symmetric: bool) -> None:
    phi = torch.nn.functional.normalize(torch.randn(5, 8), dim=-1)
    text = torch.nn.functional.normalize(torch.randn(5, 8), dim=-1)
    order = torch.randperm(5)
    expected = contrastive_loss(phi, text, 7.0, symmetric=symmetric)
    loss = unique_answer_loss(phi, text[order], order.argsort(), 7.0, symmetric=symmetric)
    torch.testing.assert_close(loss, expected)


def test_rows_with_the_same_answer_are_no_negatives_of_one_another() -> None:
    answers = torch.eye(2)
    perfect = unique_answer_loss(answers[[0, 0, 0, 1]], answers, torch.tensor([0, 0, 0, 1]), 100.0, symmetric=True)
    # the answers' side spreads over the three rows of answer 0: only its entropy, ln 3, remains
    assert float(perfect) == pytest.approx(np.log(3) / 2 / 2, abs=1e-4)
    rows_only = unique_answer_loss(answers[[0, 0, 0, 1]], answers, torch.tensor([0, 0, 0, 1]), 100.0)
    assert float(rows_only) == pytest.approx(0, abs=1e-6)


def test_answers_of_a_bank_that_no_row_gave_are_negatives_of_the_rows_alone() -> None:
    phi = torch.nn.functional.normalize(torch.randn(4, 8), dim=-1)
    bank = torch.nn.functional.normalize(torch.randn(9, 8), dim=-1)
    index = torch.tensor([1, 4, 4, 7])
    logits = 5.0 * phi @ bank.T
    rows = torch.nn.functional.cross_entropy(logits, index)
    torch.testing.assert_close(unique_answer_loss(phi, bank, index, 5.0), rows)
    assert torch.isfinite(unique_answer_loss(phi, bank, index, 5.0, symmetric=True))
