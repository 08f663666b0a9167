"""Claims are evaluated by the fact in which they differ, and probabilities get the temperature that fits them."""

import pytest
import torch

from starters.score.data.claims import Claim, Noun
from starters.score.evaluation.claim_protocol import ClaimProtocol, ClaimScores, kind_of_change
from tests.score.tiny import tiny_clip

RED_CIRCLE, BLUE_SQUARE = Noun(color="red", shape="circle"), Noun(color="blue", shape="square")
BOTH = Claim(RED_CIRCLE, BLUE_SQUARE)


@pytest.mark.parametrize(
    ("claim", "other", "kind"),
    [
        (BOTH, Claim(Noun(color="blue", shape="circle"), Noun(color="red", shape="square")), "exchanged"),
        (BOTH, Claim(Noun(color="green", shape="circle"), BLUE_SQUARE), "color"),
        (BOTH, Claim(RED_CIRCLE, Noun(color="blue", shape="star")), "shape"),
        (BOTH, Claim(RED_CIRCLE, BLUE_SQUARE, second_number=0), "denied"),
        (Claim(RED_CIRCLE, BLUE_SQUARE, "left"), Claim(RED_CIRCLE, BLUE_SQUARE, "right"), "relation"),
        (Claim(RED_CIRCLE, BLUE_SQUARE, "left"), Claim(BLUE_SQUARE, RED_CIRCLE, "left"), "relation"),
        (Claim(RED_CIRCLE, number=2), Claim(RED_CIRCLE, number=3), "number"),
        (Claim(RED_CIRCLE, background="white"), Claim(RED_CIRCLE, background="black"), "background"),
        (BOTH, BOTH, None),
    ],
)
def test_a_change_is_named_by_its_fact(claim: Claim, other: Claim, kind: str | None) -> None:
    assert kind_of_change(claim, other) == kind


def test_a_model_without_training_is_measured_for_every_kind() -> None:
    scores = ClaimProtocol(60).evaluate(tiny_clip())
    metrics = scores.metrics(0.1)
    assert {"claims", "claims_color", "claims_shape", "claims_relation"} <= metrics.keys()
    assert all(0 <= value <= 100 for value in metrics.values())


def test_the_fitted_scale_makes_probabilities_as_large_as_the_accuracy() -> None:
    """Fit a scale to 100 equal margins of 0.1 of which 80 are right: σ(s · 0.1) = 0.8."""
    margins = torch.tensor([0.1] * 80 + [-0.1] * 20)
    similarity = torch.stack([torch.stack([margins, torch.zeros(100)], dim=1)] * 2, dim=1)
    scores = ClaimScores(("color",) * 100, similarity)
    assert torch.sigmoid(torch.tensor(0.1 * scores.best_scale(0.0))) == pytest.approx(0.8, abs=1e-3)


def test_a_model_that_is_never_right_gets_no_certainty() -> None:
    similarity = torch.tensor([[[0.0, 0.1], [0.0, 0.1]]] * 10)
    assert ClaimScores(("color",) * 10, similarity).best_scale(0.0) < 1e-6
