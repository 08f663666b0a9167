"""The images that a search reads under a condition for which there is no complete index.

Other indexes rank the images first, but under a condition of their own. What they miss is learned from a sample that is
read under the new condition: a linear map from the images' embeddings in these indexes to those under the condition.
CLAY (https://arxiv.org/abs/2604.11539) projects embeddings into a subspace of texts instead, which needs texts about
the condition's possible values.

Shapes: N candidates, S of them read as a sample, G width of all guiding indexes' embeddings together, E width of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import numpy as np
from numpy.typing import NDArray

from services.embed.collections.checkpoint_indexes import ConditionIndex
from services.embed.collections.reader import Read
from services.embed.model.items import Embeddings

# The share of a search's budget that is read as a sample, half of it the candidates ranked first, half any others.
SAMPLE_SHARE = 4
# With fewer images than this, there is nothing to learn from.
MIN_SAMPLE = 16
# Strength of the ridge regression; at a tenth or ten times of it, short lists hold as many of the nearest images.
RIDGE = 0.01


@dataclass(frozen=True, eq=False)
class Candidates:
    """Images that a search may read: `rows` in the order in which `guides` rank them, and what reading each `cost`s.

    `num_guided` of the rows come from the guides; those after them are in no index.
    """

    rows: Sequence[int]
    cost: Mapping[int, int]
    guides: Sequence[ConditionIndex] = ()
    num_guided: int = 0

    def within(self, budget: int) -> int:
        """Return how many of the first rows a budget pays for."""
        spent = accumulate(self.cost[row] for row in self.rows)
        return sum(1 for _ in takewhile(lambda so_far: so_far <= budget, spent))

    def sample(self, budget: int) -> list[int]:
        """Choose the rows to learn from; none if the budget is too small or pays for all guided ones."""
        size = self.within(budget // SAMPLE_SHARE)
        if size < MIN_SAMPLE or self.within(budget) >= self.num_guided:
            return []
        first = size // 2
        others = np.random.default_rng(0).choice(np.arange(first, self.num_guided), size - first, replace=False)
        return [*self.rows[:first], *(self.rows[place] for place in np.sort(others))]

    def after(self, sample: Sequence[Read], query: Embeddings) -> "Candidates":
        """Return the candidates that are left when a sample has been read, in the order that it predicts. May block."""
        read = {one.row for one in sample}
        guided, others = sorted(self.rows[: self.num_guided]), self.rows[self.num_guided :]
        embeddings = np.concatenate([guide.vectors.vectors(np.array(guided))[0] for guide in self.guides], axis=1)
        place = {row: place for place, row in enumerate(guided)}
        sampled = embeddings[[place[one.row] for one in sample]]
        cosines = predict_cosines(embeddings, sampled, np.stack([one.vectors[0] for one in sample]), query)
        guided.sort(key=lambda row: (-cosines[place[row]], row))
        left = [row for row in guided if row not in read]
        return Candidates([*left, *others], self.cost, self.guides, len(left))


def predict_cosines(
    embeddings: Embeddings, sampled: Embeddings, read: Embeddings, query: Embeddings
) -> NDArray[np.float32]:
    """Predict the cosines of candidates (N, G) and a query (E,) under a condition → (N,).

    `sampled` (S, G) are the sample's embeddings in the guiding indexes, `read` (S, E) those under the condition, with
    means x̄ and ȳ. Ridge regression on the centred X and Y gives W = Xᵀ (X Xᵀ + λI)⁻¹ Y, and a candidate x the embedding
    Wᵀ(x − x̄) + ȳ, whose direction is compared with the query's. λ is `RIDGE` times the mean squared length of X's rows.
    """
    mean, mean_read = sampled.mean(axis=0), read.mean(axis=0)
    centred = (sampled - mean).astype(np.float64)
    products = centred @ centred.T
    ridge = RIDGE * float(np.trace(products)) / len(sampled) + float(np.finfo(np.float32).tiny)
    weights = np.linalg.solve(products + ridge * np.eye(len(sampled)), (read - mean_read).astype(np.float64))
    predicted = ((embeddings - mean) @ centred.T.astype(np.float32)) @ weights.astype(np.float32) + mean_read
    lengths = np.linalg.norm(predicted, axis=1) + np.finfo(np.float32).tiny
    cosines: NDArray[np.float32] = (predicted @ query / lengths).astype(np.float32)
    return cosines
