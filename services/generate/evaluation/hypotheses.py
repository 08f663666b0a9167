"""Tests of found-in-the-middle's assumptions about attention (dissertation, section 3.3 and appendix B.3).

The assumption is Attn(doc, k) = f(rel(doc), bias(k)), increasing in both: with relevance for every position, and with
the position's bias for every document. It is tested on matrices of attention: one example's documents, each measured
at every position.

    condition 1   two positions are in the same order for every document
    condition 2   two documents are in the same order at every position
    linear        Attn = rel + bias + ε (Eq. 3.2), so the difference of two documents is the same at every position
    log-linear    log Attn = rel + bias + ε (Eq. B.1), the same of their logarithms

The agreement of the differences is their Spearman rank correlation over quadruplets of two documents and two positions.
The dissertation does not say whether a quadruplet counts once or in every order; unordered ones are the default here.

Shapes: D documents, K positions, P pairs. Attention is the mean weight per token, float of any precision, unitless.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

WORD = re.compile(r"\b\w\w+\b")


def similarities(response: str, documents: Sequence[str]) -> list[float]:
    """Cosines in 0 … 1 of the response to each of K documents; 0 if either has no word of two letters or more.

    The dissertation names no vectoriser (Figure 3.3 and Table 3.1). This one counts and weights terms like
    scikit-learn's default, fitted on the documents and the response together.
    """
    counts = [Counter(WORD.findall(text.lower())) for text in (*documents, response)]
    occurrences = Counter(word for count in counts for word in count)
    # as if one more text contained every word once, so that no weight is 0 or infinite
    weights = {word: math.log((1 + len(counts)) / (1 + number)) + 1 for word, number in occurrences.items()}
    *vectors, asked = [_unit({word: number * weights[word] for word, number in count.items()}) for count in counts]
    return [math.fsum(weight * vector.get(word, 0.0) for word, weight in asked.items()) for vector in vectors]


def _unit(vector: Mapping[str, float]) -> Mapping[str, float]:
    length = math.hypot(*vector.values())
    return {word: weight / length for word, weight in vector.items()}


Array = NDArray[np.float64]
Form = Literal["linear", "log-linear"]


def condition_1(examples: Sequence[Array]) -> float:
    """The share of (two documents, two positions) where both documents order the positions alike, 0 to 1.

    `examples` are matrices (D, K), pooled. A tie counts against the condition, also if both documents tie. Raises
    ValueError if no example has two documents and two positions.
    """
    return _agreement([np.asarray(attention).T for attention in examples])


def condition_2(examples: Sequence[Array]) -> float:
    """The share of (two documents, two positions) where the documents' order is the same at both; as `condition_1`."""
    return _agreement(list(examples))


def rank_correlation(examples: Sequence[Array], form: Form, *, is_ordered: bool = False) -> float:
    """Spearman's ρ of the documents' difference at one position with that at another (Table B.1), −1 to 1.

    Over quadruplets of all `examples` (D, K) together. With `is_ordered`, each counts in all four orders of its two
    documents and its two positions. NaN if all differences of one side are equal. Raises ValueError if there is no
    quadruplet and, with `log-linear`, for attention without a logarithm.
    """
    sides = [_differences(_values(attention, form)) for attention in examples]
    one, other = (np.concatenate([side[i].ravel() for side in sides] or [np.empty(0)]) for i in (0, 1))
    if one.size == 0:
        raise ValueError("two documents at two positions are needed")
    if is_ordered:
        one, other = np.concatenate([one, other, -one, -other]), np.concatenate([other, one, -other, -one])
    return spearman(one, other)


def spearman(one: Array, other: Array) -> float:
    """Spearman's rank correlation of two vectors of equal length; ties take their mean rank. NaN if one is constant."""
    first, second = (ranks - ranks.mean() for ranks in (_ranks(one), _ranks(other)))
    scale = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / scale if scale else float("nan")


def is_in_attended_half(attention: Sequence[float], document: int) -> bool:
    """Whether a document is among the ⌈K/2⌉ most attended (Table 3.1); of equal ones, the earlier come first."""
    order = sorted(range(len(attention)), key=lambda k: (-attention[k], k))
    return document in order[: (len(order) + 1) // 2]


def _agreement(examples: Sequence[Array]) -> float:
    differences = [_differences(np.asarray(attention, dtype=np.float64)) for attention in examples]
    agree = [np.sign(one) * np.sign(other) > 0 for one, other in differences]
    total = sum(a.size for a in agree)
    if total == 0:
        raise ValueError("two documents at two positions are needed")
    return float(sum(int(a.sum()) for a in agree) / total)


def _differences(values: Array) -> tuple[Array, Array]:
    """Compute the differences of each pair of rows at the first and second of each pair of columns, (P, P') both."""
    first, second = np.triu_indices(values.shape[0], k=1)
    left, right = np.triu_indices(values.shape[1], k=1)
    difference = values[first] - values[second]
    return difference[:, left], difference[:, right]


def _values(attention: Array, form: Form) -> Array:
    values = np.asarray(attention, dtype=np.float64)
    if form == "linear":
        return values
    if not (values > 0).all():
        raise ValueError("a document that is not attended at all has no log attention")
    return np.log(values)


def _ranks(values: Array) -> Array:
    """Rank values from 1; equal values have the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    mean: Array = (last - (count - 1) / 2)[place]
    return mean
