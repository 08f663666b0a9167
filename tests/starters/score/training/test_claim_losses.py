"""Losses of claims are lowest for a model that tells true claims from false ones."""

import math

import pytest
import torch
import torch.nn.functional as F

from services.score.fsc_clip import ImageFeatures, TextFeatures
from starters.score.data.claimed_pictures import ClaimedPictures, Pictures
from starters.score.training.claim_losses import (
    ALL,
    FOUND,
    LOCAL,
    OWN,
    CenteredThings,
    SaidThings,
    SeenThings,
    claim_loss,
)
from tests.score.tiny import tiny_clip

SCALE = torch.tensor(20.0)


def features(agreement: torch.Tensor) -> tuple[ImageFeatures, TextFeatures]:
    """Pictures along the axes, and texts (A, B) with these agreements with each of them."""
    num_texts, num_pictures = agreement.shape
    rest = (1 - agreement.square().sum(dim=1, keepdim=True)).clamp(min=0).sqrt()
    texts = F.normalize(torch.cat([agreement, rest], dim=1), dim=1)
    images = F.pad(torch.eye(num_pictures), (0, 1))
    tokens = images[:, None].expand(-1, 4, -1)
    words = texts[:, None].expand(-1, 3, -1)
    return ImageFeatures(images, tokens), TextFeatures(texts, words, torch.ones(num_texts, 3, dtype=torch.bool))


def test_true_claims_that_are_similar_to_their_pictures_have_a_small_loss() -> None:
    is_true = torch.zeros(8, 4, dtype=torch.bool)
    is_true[0, 0] = is_true[4, 1] = is_true[5, 2] = True
    agreeing = claim_loss(*features(is_true * 0.9 - ~is_true * 0.1), is_true, SCALE)
    disagreeing = claim_loss(*features(~is_true * 0.4 - is_true * 0.4), is_true, SCALE)
    assert agreeing < 0.1
    assert disagreeing > 5


def test_a_model_without_knowledge_has_the_loss_of_a_guess() -> None:
    is_true = torch.zeros(8, 4, dtype=torch.bool)
    is_true[0, 0] = is_true[4, 1] = True
    loss = claim_loss(*features(torch.zeros(8, 4)), is_true, SCALE)
    assert float(loss) == pytest.approx((OWN + LOCAL + ALL) * math.log(4) + FOUND * math.log(4), rel=1e-4)


def test_claims_that_are_true_or_false_of_all_teach_nothing() -> None:
    is_true = torch.ones(4, 3, dtype=torch.bool)
    assert claim_loss(*features(torch.rand(4, 3) / 4), is_true, SCALE) == 0
    assert claim_loss(*features(torch.rand(4, 3) / 4), ~is_true, SCALE) == 0


def test_heads_learn_the_facts_of_a_batch() -> None:
    torch.manual_seed(0)
    batch = ClaimedPictures(tiny_clip().tokenizer, Pictures(1, 6, 32), 6)(0)
    vectors, patches, texts = torch.randn(6, 64), torch.randn(6, 16, 64), torch.randn(24, 64)
    centered, seen, said = CenteredThings(64), SeenThings(64), SaidThings(64)
    optimizer = torch.optim.Adam([*centered.parameters(), *seen.parameters(), *said.parameters()], lr=0.05)
    losses = []
    for _ in range(60):
        parts = [centered(patches, batch.pictures), seen(vectors, batch.pictures), said(texts, batch.said)]
        optimizer.zero_grad()
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append([part.item() for part in parts])
    assert all(last < 0.2 * first for first, last in zip(losses[0], losses[-1], strict=True))
