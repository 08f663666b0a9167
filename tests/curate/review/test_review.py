"""Agreement beyond chance, against published examples and another implementation."""

import random

import pytest
from sklearn.metrics import cohen_kappa_score

from services.curate.review.review import Agreement, UndefinedKappa, agreement, cohen_kappa, fleiss_kappa

NAMES = ("valid", "false_negative", "unclear")


def test_cohens_kappa_is_that_of_another_implementation() -> None:
    drawn = random.Random(3)
    for num_pairs in (2, 9, 400):
        pairs = [(drawn.choice(NAMES), drawn.choice(NAMES)) for _ in range(num_pairs)]
        first, second = zip(*pairs, strict=True)
        assert cohen_kappa(pairs) == pytest.approx(cohen_kappa_score(first, second))


def test_cohens_kappa_of_a_worked_example() -> None:
    pairs = [("yes", "yes")] * 20 + [("yes", "no")] * 5 + [("no", "yes")] * 10 + [("no", "no")] * 15
    assert cohen_kappa(pairs) == pytest.approx(0.4)  # p_o 0.7, p_e 0.5


def test_fleiss_kappa_of_a_table_that_was_computed_by_hand() -> None:
    # Four pairs of three reviewers: P = (1 + 1/3 + 0 + 1/3) / 4, and P_e = (6² + 4² + 2²) / 12².
    counts = [(3, 0, 0), (2, 1, 0), (1, 1, 1), (0, 2, 1)]
    table = [[name for name, count in zip(NAMES, row, strict=True) for _ in range(count)] for row in counts]
    assert fleiss_kappa(table) == pytest.approx((5 / 12 - 56 / 144) / (1 - 56 / 144))


def test_agreement_in_everything_is_one_and_in_nothing_below_zero() -> None:
    assert cohen_kappa([("valid", "valid"), ("unclear", "unclear")]) == 1
    assert cohen_kappa([("valid", "unclear"), ("unclear", "valid")]) == -1
    assert fleiss_kappa([["valid"] * 3, ["unclear"] * 3]) == 1
    assert fleiss_kappa([["valid", "unclear"], ["unclear", "valid"]]) == -1


@pytest.mark.parametrize(
    ("kappa", "table", "reason"),
    [
        (cohen_kappa, [], "no pair has all of its verdicts yet"),
        (fleiss_kappa, [], "no pair has all of its verdicts yet"),
        (cohen_kappa, [("valid", "valid")] * 4, "all verdicts are the same"),
        (fleiss_kappa, [["valid"] * 3] * 4, "all verdicts are the same"),
        (fleiss_kappa, [["valid"], ["unclear"]], "each pair has a single verdict"),
    ],
)
def test_an_undefined_kappa_says_why(kappa: object, table: object, reason: str) -> None:
    assert callable(kappa)
    with pytest.raises(UndefinedKappa, match=reason):
        kappa(table)


def test_two_reviewers_have_cohens_kappa_over_the_pairs_of_both() -> None:
    verdicts = {
        "a": {"anna": "valid", "ben": "valid"},
        "b": {"ben": "unclear", "anna": "false_negative"},
        "c": {"anna": "unclear"},
    }
    # p_o = 1/2; both said valid of one of the two pairs, and nothing else that is the same: p_e = 1/4.
    measured = agreement(verdicts, 2)
    assert measured == Agreement("Cohen's kappa", measured.kappa, 0.5, 2)
    assert measured.kappa == pytest.approx(1 / 3)


def test_more_reviewers_have_fleiss_kappa_over_the_pairs_with_all_verdicts_whoever_gave_them() -> None:
    verdicts = {
        "a": {"anna": "valid", "ben": "valid"},
        "b": {"ben": "unclear", "carl": "unclear"},
        "c": {"carl": "valid"},
        # of more verdicts than asked, the first count
        "d": {"anna": "valid", "carl": "valid", "ben": "unclear"},
    }
    assert agreement(verdicts, 2) == Agreement("Fleiss' kappa", 1.0, 1.0, 3)


@pytest.mark.parametrize(
    ("verdicts", "num_reviewers", "reason"),
    [
        ({}, 2, "fewer than two reviewers have given verdicts"),
        ({"a": {"anna": "valid"}}, 2, "fewer than two reviewers have given verdicts"),
        ({"a": {"anna": "valid"}, "b": {"ben": "valid"}}, 2, "no pair has all of its verdicts yet"),
        ({"a": {"anna": "x"}, "b": {"ben": "x"}, "c": {"carl": "x"}}, 1, "each pair is judged by one reviewer"),
        ({"a": {"anna": "valid", "ben": "valid"}}, 2, "all verdicts are the same, so that chance would agree as well"),
    ],
)
def test_without_a_value_the_reason_is_said(
    verdicts: dict[str, dict[str, str]], num_reviewers: int, reason: str
) -> None:
    measured = agreement(verdicts, num_reviewers)
    assert (measured.kappa, measured.reason) == (None, reason)
