"""Cosines of TF-IDF vectors, between a response and each document (dissertation, Figure 3.3 and Table 3.1).

The dissertation names no vectoriser. This one counts and weights terms like scikit-learn's default, fitted on the
documents and the response together. K documents.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

WORD = re.compile(r"\b\w\w+\b")


def similarities(response: str, documents: Sequence[str]) -> list[float]:
    """Cosines in 0 … 1 of the response to each of K documents; 0 if either has no word of two letters or more."""
    counts = [Counter(WORD.findall(text.lower())) for text in (*documents, response)]
    occurrences = Counter(word for count in counts for word in count)
    # as if one more text contained every word once, so that no weight is 0 or infinite
    weights = {word: math.log((1 + len(counts)) / (1 + number)) + 1 for word, number in occurrences.items()}
    *vectors, asked = [_unit({word: number * weights[word] for word, number in count.items()}) for count in counts]
    return [math.fsum(weight * vector.get(word, 0.0) for word, weight in asked.items()) for vector in vectors]


def _unit(vector: Mapping[str, float]) -> Mapping[str, float]:
    length = math.hypot(*vector.values())
    return {word: weight / length for word, weight in vector.items()}
