"""FSC-CLIP's equations: equal to the released code's numbers, and safe where that code is not.

In the goldens of `fsc_clip_losses` the gradient of the local loss alone is that of the total to the tokens, which
nothing else touches.
"""

import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from services.score.fsc_clip import (
    FscClipLosses,
    FscClipWeights,
    ImageFeatures,
    TextFeatures,
    clip_loss,
    fsc_clip_losses,
    hard_negative_loss,
    interpolate,
    log_local_similarity,
    mean_local_similarity,
    negclip_loss,
    patch_weights,
    token_cosines,
)
from tests.score.aligned_patches import aligned_patches

GOLDENS = Path(__file__).parents[1] / "goldens"
DOCUMENT = json.loads((GOLDENS / "fsc_clip_losses.json").read_text())
CASES = {case["config"]["name"]: case for case in DOCUMENT["cases"]}
TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-6}
DTYPES = list(TOLERANCE)


class Case:
    """A batch of the goldens, whose four kinds of features and scale want gradients."""

    def __init__(self, arrays: dict[str, Any], name: str, dtype: torch.dtype = torch.float64) -> None:
        self.config: dict[str, Any] = CASES[name]["config"]
        self._arrays, self._name = arrays, name
        self.leaves = {
            leaf: self.array(leaf).to(dtype).requires_grad_()
            for leaf in ("image_features", "text_features", "image_tokens", "text_tokens")
        }
        self.leaves["logit_scale"] = torch.tensor(self.config["logit_scale"], dtype=dtype, requires_grad=True)
        self.images = ImageFeatures(self.leaves["image_features"], self.leaves["image_tokens"])
        mask = self.array("attn_mask").bool()
        self.texts = TextFeatures(self.leaves["text_features"], self.leaves["text_tokens"], mask)
        self.exists = self.array("neg_text_masks").bool().view(self.config["K"], self.config["B"])

    def array(self, key: str) -> Tensor:
        return torch.from_numpy(self._arrays[f"{self._name}/{key}"])

    def weights(self, missing: Literal["exclude", "zero"]) -> FscClipWeights:
        config = self.config
        return FscClipWeights(
            lambda_global=config["lambda_g"],
            lambda_local=config["lambda_l"],
            gamma=config["gamma"] if config["neg_loss"] == "focal_loss" else 0.0,
            beta=config["beta"],
            missing=missing,
            normalizer=config.get("sim_normalizer", "minmax"),
            sparsify=config.get("sim_sparsify", False),
        )

    def losses(self, missing: Literal["exclude", "zero"] = "zero") -> FscClipLosses:
        return fsc_clip_losses(self.images, self.texts, self.exists, self.leaves["logit_scale"], self.weights(missing))


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    with np.load(GOLDENS / "fsc_clip_losses.npz") as archive:
        return dict(archive)


def values(losses: FscClipLosses) -> dict[str, float]:
    return {
        "clip_loss": losses.clip.item(),
        "clip_neg_loss": losses.global_negatives.item(),
        "local_neg_loss": losses.local_negatives.item(),
        "total": losses.total.item(),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_the_losses_and_all_their_gradients_are_those_of_the_released_code(
    arrays: dict[str, Any], name: str, dtype: torch.dtype
) -> None:
    case = Case(arrays, name, dtype)
    losses = case.losses()
    tolerance = TOLERANCE[dtype]
    assert values(losses) == pytest.approx(CASES[name]["loss_float64"], abs=tolerance, rel=0)
    if dtype == torch.float32:
        assert values(losses) == pytest.approx(CASES[name]["loss_float32"], abs=tolerance, rel=0)
    # float32 rounds a logit of 100 to 8e-6
    of_gradients = tolerance * max(1.0, case.config["logit_scale"] / 4 if dtype == torch.float32 else 0.0)
    gradients = torch.autograd.grad(losses.total, list(case.leaves.values()))
    for leaf, gradient in zip(case.leaves, gradients, strict=True):
        golden = case.array(f"grad_total/{leaf}")
        torch.testing.assert_close(gradient.double(), golden, atol=of_gradients, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_a_missing_negative_may_be_left_out_of_the_softmax(arrays: dict[str, Any], name: str) -> None:
    expected = CASES[name]["loss_float64_missing_excluded"]
    assert values(Case(arrays, name).losses("exclude")) == pytest.approx(expected, abs=1e-7, rel=0)


@pytest.mark.parametrize("name", CASES)
def test_each_token_is_aligned_with_the_patches_that_the_released_code_gives_it(
    arrays: dict[str, Any], name: str
) -> None:
    case = Case(arrays, name)
    weights = case.weights("zero")
    form = {"normalizer": weights.normalizer, "sparsify": weights.sparsify}
    patches = case.images.tokens.detach()
    words = case.texts.tokens.detach()[: len(patches)]
    mask = case.texts.mask[: len(patches)]
    aligned = aligned_patches(patches, words, **form)
    torch.testing.assert_close(aligned[mask], case.array("v_hat_pos")[mask], atol=1e-9, rtol=0)
    cosines = token_cosines(patches, words, **form)  # type: ignore[arg-type]
    torch.testing.assert_close(cosines, (aligned * F.normalize(words, dim=-1)).sum(dim=-1), atol=1e-9, rtol=0)
    log_local = log_local_similarity(cosines, mask, case.config["logit_scale"])
    torch.testing.assert_close(log_local, case.array("local_logits")[:, 0], atol=1e-7, rtol=0)


def test_texts_of_one_image_stand_end_to_end_as_well_as_in_pairs() -> None:
    patches, words = torch.randn(2, 9, 8), torch.randn(2, 3, 5, 8)
    together = token_cosines(patches, words.flatten(1, 2)).view(2, 3, 5)
    pairs = token_cosines(patches.repeat_interleave(3, dim=0), words.flatten(0, 1)).view(2, 3, 5)
    torch.testing.assert_close(together, pairs, atol=1e-6, rtol=0)


@pytest.mark.parametrize("case", DOCUMENT["negclip_clip_loss"], ids=lambda case: case["key"])
def test_negclip_is_the_released_loss(case: dict[str, Any]) -> None:
    images, captions, negatives, num_missing = negclip_features(case)
    texts = torch.cat([captions, negatives])
    assert clip_loss(images, captions, case["logit_scale"]).item() == pytest.approx(case["clip_loss_plain"], abs=1e-7)
    loss = negclip_loss(images, texts, case["logit_scale"], num_zeros=num_missing).item()
    assert loss == pytest.approx(case["clip_loss_with_negatives"], abs=1e-7)


def test_a_text_that_is_no_rival_is_left_out_of_both_softmaxes() -> None:
    images, texts = (F.normalize(torch.randn(3, 8, dtype=torch.float64), dim=1) for _ in range(2))
    rivals = torch.tensor([[False, False, True], [True, False, True], [True, True, False]])
    logits = 5 * images @ texts.T
    rows = [logits[0, [0, 2]], logits[1, [1, 0, 2]], logits[2, [2, 0, 1]]]
    columns = [logits[[0, 1, 2], 0], logits[[1, 2], 1], logits[[2, 0, 1], 2]]
    expected = sum(-choices.log_softmax(dim=0)[0] for choices in (*rows, *columns)) / 6
    assert clip_loss(images, texts, 5.0, rivals).item() == pytest.approx(float(expected), abs=1e-12)
    every = ~torch.eye(3, dtype=torch.bool)
    assert clip_loss(images, texts, 5.0, every).item() == pytest.approx(clip_loss(images, texts, 5.0).item(), abs=1e-12)


def negclip_features(case: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor, int]:
    """The features that these goldens were made of, and how many negatives the captions lack."""
    rng = np.random.default_rng(case["seed"])
    size, width = case["B"], case["D"]
    images = torch.from_numpy(rng.standard_normal((size, width)))
    num_kinds = 1 if case["key"] == "n204" else 3
    exists = np.ones((num_kinds, size), dtype=bool)
    if case["key"] != "n203":
        exists = rng.random((num_kinds, size)) < 0.6
        exists[0, 0] = True
    if case["key"] == "n204":
        exists[:, 1] = False
    images = F.normalize(images, dim=-1)
    captions = images + 2.1 / math.sqrt(width) * torch.from_numpy(rng.standard_normal((size, width)))
    own = np.nonzero(exists)[1]
    noise = torch.from_numpy(rng.standard_normal((len(own), width)))
    negatives = F.normalize(captions[own] + 0.9 / math.sqrt(width) * noise, dim=-1)
    return images, F.normalize(captions, dim=-1), negatives, exists.size - len(own)


@pytest.mark.parametrize("case", DOCUMENT["unit_focal_ls"], ids=lambda case: f"gamma{case['gamma']}-beta{case['beta']}")
def test_the_focal_loss_with_smoothed_labels_is_the_released_one_row_by_row(case: dict[str, Any]) -> None:
    exists = torch.tensor(case["valid_neg_mask"]).bool()
    logits = torch.tensor(case["logits"], dtype=torch.float64)
    for variant, gamma, beta in (
        ("focal_ls_none", case["gamma"], case["beta"]),
        ("ce_ls_none", 0.0, case["beta"]),
        ("focal_none", case["gamma"], None),
        ("ce_none", 0.0, None),
    ):
        for row, row_exists, expected in zip(logits, exists, case[variant], strict=True):
            if row_exists.any():
                loss = hard_negative_loss(
                    as_zeros(row, row_exists)[None], row_exists[None], gamma=gamma, beta=beta, missing="zero"
                )
                assert loss.item() == pytest.approx(expected, abs=1e-6, rel=1e-6)


def as_zeros(row: Tensor, exists: Tensor) -> Tensor:
    """The row, moved so that its missing logits may be zeros without a change to any probability."""
    missing = row[1:][~exists]
    return row if len(missing) == 0 else row - missing.logsumexp(dim=0) + math.log(len(missing))


def test_the_loss_is_the_mean_over_rows_that_have_a_negative() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5], [3.0, 9.0, 9.0], [0.2, 0.1, 4.0]])
    exists = torch.tensor([[True, True], [False, False], [True, False]])
    options: dict[str, Any] = {"gamma": 2.0, "beta": 0.02}
    of_rows = [hard_negative_loss(logits[[i]], exists[[i]], **options) for i in (0, 2)]
    torch.testing.assert_close(hard_negative_loss(logits, exists, **options), sum(of_rows) / 2)


@pytest.mark.parametrize("missing", ["exclude", "zero"])
@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_a_batch_without_any_negative_has_no_loss_and_no_gradient(
    gamma: float, missing: Literal["exclude", "zero"]
) -> None:
    logits = torch.randn(3, 3, requires_grad=True)
    loss = hard_negative_loss(logits, torch.zeros(3, 2, dtype=torch.bool), gamma=gamma, beta=0.02, missing=missing)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("gamma", [0.0, 0.1, 0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("beta", [None, 0.02])
@pytest.mark.parametrize("margin", [0.0, 30.0, 200.0, -200.0, 1e4])
def test_no_margin_between_caption_and_negative_makes_a_gradient_infinite(
    gamma: float, beta: float | None, margin: float
) -> None:
    logits = torch.tensor([[margin, 0.0, 7.0]], requires_grad=True)
    loss = hard_negative_loss(logits, torch.tensor([[True, False]]), gamma=gamma, beta=beta)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_patches_that_are_all_alike_are_taken_evenly_and_have_finite_gradients() -> None:
    patch = torch.randn(1, 1, 8)
    patches = patch.expand(1, 5, 8).clone().requires_grad_()
    words = torch.randn(1, 3, 8, requires_grad=True)
    assert patch_weights(patches, words).tolist() == [[[1.0] * 5] * 3]
    cosines = token_cosines(patches, words)
    torch.testing.assert_close(cosines, F.cosine_similarity(words, patch, dim=-1))
    for gradient in torch.autograd.grad(cosines.sum(), (patches, words)):
        assert gradient.isfinite().all()


def test_a_token_or_an_image_of_zeros_is_unlike_everything_and_has_finite_gradients() -> None:
    patches = torch.randn(2, 5, 8)
    patches[1] = 0.0
    words = torch.randn(2, 3, 8)
    words[0, 1] = 0.0
    patches.requires_grad_()
    words.requires_grad_()
    cosines = token_cosines(patches, words)
    assert cosines[0, 1].item() == 0.0
    assert cosines[1].tolist() == [0.0, 0.0, 0.0]
    for gradient in torch.autograd.grad(cosines.sum(), (patches, words)):
        assert gradient.isfinite().all()


def test_weights_of_patches_run_from_none_to_all_and_ask_for_no_gradient() -> None:
    patches, words = torch.randn(2, 7, 8, requires_grad=True), torch.randn(2, 4, 8, requires_grad=True)
    weights = patch_weights(patches, words)
    assert not weights.requires_grad
    assert weights.amin(dim=-1).tolist() == [[0.0] * 4] * 2
    assert weights.amax(dim=-1).tolist() == [[1.0] * 4] * 2


@pytest.mark.parametrize("normalizer", ["minmax", "softmax"])
def test_sparse_weights_drop_what_is_below_an_even_share_and_never_everything(
    normalizer: Literal["minmax", "softmax"],
) -> None:
    patches = torch.randn(2, 7, 8)
    patches[1] = 0.5  # all alike
    words = torch.randn(2, 4, 8)
    weights = patch_weights(patches, words, normalizer=normalizer, sparsify=True)
    full = patch_weights(patches, words, normalizer=normalizer)
    assert weights[0][weights[0] > 0].min() >= 1 / 7
    assert torch.equal(weights[0] > 0, full[0] >= 1 / 7)
    assert (weights[1] > 0).all()


def test_the_mean_local_similarity_does_not_grow_with_the_number_of_tokens() -> None:
    cosines = torch.tensor([[0.9, 0.5, 0.3, 0.0], [0.9, 0.5, 0.5, 0.3]])
    mask = torch.tensor([[False, True, True, False], [False, True, True, True]])
    torch.testing.assert_close(mean_local_similarity(cosines, mask), torch.tensor([0.4, 1.3 / 3]))
    assert mean_local_similarity(cosines, torch.zeros_like(mask)).tolist() == [0.0, 0.0]


def test_half_precision_features_are_computed_with_in_single_precision(arrays: dict[str, Any]) -> None:
    case = Case(arrays, "c05_scale100")
    half = {leaf: tensor.detach().bfloat16() for leaf, tensor in case.leaves.items()}
    results = []
    for is_half in (True, False):
        given = {leaf: tensor if is_half else tensor.float() for leaf, tensor in half.items()}
        given = {leaf: tensor.detach().clone().requires_grad_() for leaf, tensor in given.items()}
        images = ImageFeatures(given["image_features"], given["image_tokens"])
        texts = TextFeatures(given["text_features"], given["text_tokens"], case.texts.mask)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
            losses = fsc_clip_losses(images, texts, case.exists, given["logit_scale"], FscClipWeights())
            contrast = negclip_loss(images.pooled, texts.pooled, given["logit_scale"])
        gradients = torch.autograd.grad(losses.total + contrast, list(given.values()))
        results.append((values(losses), contrast.item(), gradients))
    (narrow, narrow_contrast, narrow_grads), (wide, wide_contrast, wide_grads) = results
    assert narrow == pytest.approx(wide, rel=1e-5)
    assert narrow_contrast == pytest.approx(wide_contrast, rel=1e-5)
    for rounded, gradient in zip(narrow_grads, wide_grads, strict=True):
        # bfloat16 has 8 bits
        tolerance = 0.01 * gradient.abs().max().item()
        torch.testing.assert_close(rounded.float(), gradient, atol=tolerance, rtol=0.01)


def test_a_term_without_weight_is_nothing_and_the_others_stay(arrays: dict[str, Any]) -> None:
    case = Case(arrays, "c01_small_rand")
    scale = case.leaves["logit_scale"]
    whole = values(case.losses("exclude"))
    plain = FscClipWeights(lambda_global=0.0, lambda_local=0.0)
    bare = values(fsc_clip_losses(case.images, case.texts, case.exists, scale, plain))
    assert bare == {**whole, "clip_neg_loss": 0.0, "local_neg_loss": 0.0, "total": whole["clip_loss"]}
    only_global = FscClipWeights(lambda_local=0.0)
    losses = values(fsc_clip_losses(case.images, case.texts, case.exists, scale, only_global))
    assert (losses["clip_neg_loss"], losses["local_neg_loss"]) == (whole["clip_neg_loss"], 0.0)


def test_a_term_without_weight_looks_at_no_features(arrays: dict[str, Any]) -> None:
    case = Case(arrays, "c01_small_rand")
    images = ImageFeatures(case.images.pooled, torch.full_like(case.images.tokens, math.nan))
    losses = fsc_clip_losses(images, case.texts, case.exists, 10.0, FscClipWeights(lambda_local=0.0))
    assert losses.total.isfinite()


def test_captions_without_any_negative_are_contrasted_with_each_other_alone(arrays: dict[str, Any]) -> None:
    case = Case(arrays, "c01_small_rand")
    captions = TextFeatures(case.texts.pooled[:4], case.texts.tokens[:4], case.texts.mask[:4])
    losses = fsc_clip_losses(case.images, captions, torch.zeros(3, 4, dtype=torch.bool), 10.0, FscClipWeights())
    assert losses.total.item() == losses.clip.item() > 0
    for gradient in torch.autograd.grad(losses.total, (captions.pooled, case.images.tokens)):
        assert gradient.isfinite().all()


def test_texts_that_are_not_as_many_as_the_negatives_that_exist_are_refused(arrays: dict[str, Any]) -> None:
    case = Case(arrays, "c01_small_rand")
    fewer = TextFeatures(case.texts.pooled[:-1], case.texts.tokens[:-1], case.texts.mask[:-1])
    with pytest.raises(ValueError, match="9 texts for 4 captions and 6 negatives"):
        fsc_clip_losses(case.images, fewer, case.exists, 10.0, FscClipWeights())


def test_weights_between_two_models_are_those_of_the_released_code() -> None:
    with np.load(GOLDENS / "fsc_clip_wiseft.npz") as archive:
        golden = {key: torch.from_numpy(archive[key]) for key in archive.files}
    before, after = ({key.split("/")[1]: golden[key] for key in golden if key.startswith(f"theta{i}")} for i in (0, 1))
    for alpha in [round(0.1 * step, 1) for step in range(11)]:
        between = interpolate(before, after, alpha)
        assert set(between) == {"w", "b", "positional_embedding"}
        for name, tensor in between.items():
            torch.testing.assert_close(tensor, golden[f"merged/{alpha}/{name}"], atol=1e-12, rtol=0)


def test_half_precision_weights_are_interpolated_in_single_precision_and_counts_are_the_later_ones() -> None:
    before = {"w": torch.tensor([1.0], dtype=torch.float16), "num_batches_tracked": torch.tensor(3)}
    after = {"w": torch.tensor([1.0 + 2**-10], dtype=torch.float16), "num_batches_tracked": torch.tensor(8)}
    between = interpolate(before, after, 0.9)
    assert between["w"].dtype == torch.float16
    assert between["w"].item() == 1.0 + 2**-10
    assert between["num_batches_tracked"].item() == 8


def test_models_of_different_weights_are_not_interpolated() -> None:
    with pytest.raises(ValueError, match="differ in their weights: extra"):
        interpolate({"w": torch.ones(1)}, {"w": torch.ones(1), "extra": torch.ones(1)}, 0.5)
    with pytest.raises(RuntimeError):
        interpolate(
            {"visual.positional_embedding": torch.ones(7, 2)}, {"visual.positional_embedding": torch.ones(5, 2)}, 0.5
        )
