"""Agreement of reviewers beyond chance: Cohen's kappa of two, Fleiss' of more.

J. Cohen, "A coefficient of agreement for nominal scales", Educational and Psychological Measurement 20 (1960).
J. L. Fleiss, "Measuring nominal scale agreement among many raters", Psychological Bulletin 76 (1971).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Statistic = Literal["Cohen's kappa", "Fleiss' kappa"]


class UndefinedKappa(ValueError):
    """A kappa that has no value; the message says why."""


@dataclass(frozen=True)
class Agreement:
    """Agreement over `num_pairs` pairs. Where `kappa` is None, `reason` says why it is undefined.

    `observed` is the share of agreeing pairs of verdicts, which chance alone makes high where most are the same.
    """

    statistic: Statistic | None
    kappa: float | None
    observed: float | None
    num_pairs: int
    reason: str | None = None


def agreement(verdicts: Mapping[str, Mapping[str, str]], num_reviewers: int) -> Agreement:
    """Return the agreement of verdicts by pair and reviewer, of whom each pair has `num_reviewers`.

    With two reviewers in all it is Cohen's kappa over the pairs of both. With more it is Fleiss' kappa over the pairs
    that have all of their verdicts; who gave them may differ from pair to pair, and only the first `num_reviewers`
    count.
    """
    reviewers = sorted({reviewer for given in verdicts.values() for reviewer in given})
    if len(reviewers) < 2:
        return Agreement(None, None, None, 0, "fewer than two reviewers have given verdicts")
    if len(reviewers) == 2:
        of_both = [[given[name] for name in reviewers] for given in verdicts.values() if len(given) == 2]
        return _measured("Cohen's kappa", of_both)
    if num_reviewers < 2:
        return Agreement(None, None, None, 0, "each pair is judged by one reviewer")
    complete = [list(given.values())[:num_reviewers] for given in verdicts.values() if len(given) >= num_reviewers]
    return _measured("Fleiss' kappa", complete)


def cohen_kappa(verdicts: Sequence[tuple[str, str]]) -> float:
    r"""Return :math:`(p_o - p_e) / (1 - p_e)` of two reviewers' verdicts on the same pairs, at most 1.

    :math:`p_o` is the share of pairs on which they agree, and :math:`p_e` what two reviewers with their shares of each
    verdict would agree on by chance. Raises UndefinedKappa for no pairs, and where :math:`p_e` is 1.
    """
    _check_any(verdicts)
    num_pairs = len(verdicts)
    first, second = (Counter(both[place] for both in verdicts) for place in (0, 1))
    expected = sum(first[name] * second[name] for name in first) / num_pairs**2
    return _beyond_chance(_observed(verdicts), expected)


def fleiss_kappa(verdicts: Sequence[Sequence[str]]) -> float:
    r"""Return :math:`(\bar P - \bar P_e) / (1 - \bar P_e)` of equally many verdicts on each pair, at most 1.

    :math:`\bar P` is the mean share of agreeing pairs of verdicts, and :math:`\bar P_e` the sum of the squared shares
    of each verdict. Raises UndefinedKappa for no pairs, for a single verdict on each, and where :math:`\bar P_e` is 1.
    """
    _check_any(verdicts)
    if len(verdicts[0]) < 2:
        raise UndefinedKappa("each pair has a single verdict")
    counts = Counter(name for given in verdicts for name in given)
    expected = sum(count**2 for count in counts.values()) / counts.total() ** 2
    return _beyond_chance(_observed(verdicts), expected)


def _measured(statistic: Statistic, table: Sequence[Sequence[str]]) -> Agreement:
    observed = _observed(table) if table else None
    try:
        is_cohens = statistic == "Cohen's kappa"
        kappa = cohen_kappa([(first, second) for first, second in table]) if is_cohens else fleiss_kappa(table)
    except UndefinedKappa as undefined:
        return Agreement(statistic, None, observed, len(table), str(undefined))
    return Agreement(statistic, kappa, observed, len(table))


def _observed(verdicts: Sequence[Sequence[str]]) -> float:
    """Return the mean share of agreeing pairs of verdicts."""
    shares = []
    for given in verdicts:
        num = len(given)
        shares.append(sum(count * (count - 1) for count in Counter(given).values()) / (num * (num - 1)))
    return sum(shares) / len(shares)


def _beyond_chance(observed: float, expected: float) -> float:
    if expected == 1:
        raise UndefinedKappa("all verdicts are the same, so that chance would agree as well")
    return (observed - expected) / (1 - expected)


def _check_any(verdicts: Sequence[Sequence[str]]) -> None:
    if not verdicts:
        raise UndefinedKappa("no pair has all of its verdicts yet")
