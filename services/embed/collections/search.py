"""Search for the nearest stored images under a condition, also while the condition's index is being built.

A complete index answers alone. Otherwise the images that it lacks are short-listed by the existing indexes, read under
the condition at once, and merged with the results of the index. The other indexes rank images under conditions of their
own; what they miss is learned from a sample that is read under the new condition: a linear map from the images'
embeddings in these indexes to those under the condition. CLAY (https://arxiv.org/abs/2604.11539) projects embeddings
into a subspace of texts instead, which needs texts about the condition's possible values.

Shapes: N candidates, S of them read as a sample, G width of all guiding indexes' embeddings together, E width of one.
"""

import asyncio
import functools
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import accumulate, chain, takewhile, zip_longest

import numpy as np
from numpy.typing import NDArray

from services.core.errors import DeadlineExceeded
from services.core.exchange import RequestContext
from services.core.images.inputs import ImageInput
from services.embed.call import EmbedCall, ServedEmbed, TextInput
from services.embed.collections import answers
from services.embed.collections.indexes import AnyIndexes, OpenIndex, key_of
from services.embed.collections.reader import ImageReader, Read, Wanted
from services.embed.collections.storage.image_store import ImageStore
from services.embed.model.items import Embeddings
from services.embed.service import Embedder
from services.nn.clip_texts import Text

# The share of a search's budget that is read as a sample, half of it the candidates ranked first, half any others.
SAMPLE_SHARE = 4
# With fewer images than this, there is nothing to learn from.
MIN_SAMPLE = 16
# Strength of the ridge regression; at a tenth or ten times of it, short lists hold as many of the nearest images.
RIDGE = 0.01
Rows = NDArray[np.int64]
# An image without a stored state costs about as much as this many with one, which shortens the short list.
ENCODING_COST = 8
# The query is embedded under the condition of each: the unconditional one and those requested recently.
MAX_SHORTLISTING_INDEXES = 8
# The other indexes name this many candidates for each place on the short list.
CANDIDATES = 8
# Images over the budget are read until this long before the deadline, at which no response could be sent.
FINISHING_S = 2.0


@dataclass(frozen=True, eq=False)
class Candidates:
    """Images that a search may read: `rows` in the order in which `guides` rank them, and what reading each `cost`s.

    `num_guided` of the rows come from the guides; those after them are in no index.
    """

    rows: Sequence[int]
    cost: Mapping[int, int]
    guides: Sequence[OpenIndex] = ()
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


@dataclass(frozen=True, eq=False)
class Question:
    """One search: the query, the condition, the number of results, and the rows to search (None: all)."""

    input: ImageInput | TextInput
    text: Text | None
    k: int
    among: Rows | None
    context: RequestContext


@dataclass(frozen=True, eq=False)
class Nearest:
    """Rows and their cosines, best first; `is_exact` if every image was compared exactly."""

    rows: Sequence[int]
    scores: Sequence[float]
    is_exact: bool
    index: OpenIndex | None


@dataclass(frozen=True, eq=False)
class Searcher:
    """Searches one collection."""

    store: ImageStore
    embedder: Embedder
    reader: ImageReader
    threads: Executor
    shortlist_size: int

    async def search(self, served: ServedEmbed, indexes: AnyIndexes, question: Question, *, last_row: int) -> Nearest:
        """Raises the errors of an invalid query, Overloaded, DeadlineExceeded."""
        index = indexes.get(question.text)
        if index is not None:
            index.used = time.time()
        (query,) = await self._embed(served, question, [question.text])
        if index is not None and index.vectors.through >= last_row:
            rows, scores = await self._among_indexed(index, query, question)
            return Nearest(rows, scores, index.vectors.is_exact, index)
        lacking = await asyncio.to_thread(self._lacking, index, question.among)
        rows, held = await self._among_indexed(index, query, question) if index is not None else ([], [])
        scores_of = dict(zip(rows, held, strict=True))
        candidates = await self._candidates(served, indexes, question, lacking, question.k - len(rows))
        reads, left = await self._read_shortlist(served, indexes, question, query, candidates)
        wanted = Wanted(left[: max(0, question.k - len(rows) - len(reads))], [question.text], indexes.sources)
        further, is_whole = await self._read_in_time(served, wanted, until=question.context.deadline - FINISHING_S)
        scores_of |= {read.row: float(read.vectors[0] @ query) for read in (*reads, *further)}
        best = sorted(scores_of, key=lambda row: (-scores_of[row], row))[: question.k]
        is_exact = is_whole and len(wanted.rows) == len(left) and (index is None or index.vectors.is_exact)
        return Nearest(best, [scores_of[row] for row in best], is_exact, index)

    async def _candidates(
        self, served: ServedEmbed, indexes: AnyIndexes, question: Question, lacking: Rows, num_wanted: int
    ) -> Candidates:
        """Order the images that are lacking: all as they are if the search can read them all, else those that the other
        indexes rank first, alternating between indexes, and then the newest."""
        states = indexes.states
        kept = states.has(lacking.tolist()) if states is not None and indexes.pace.states_pay else set()
        cost = {row: 1 if row in kept else ENCODING_COST for row in lacking.tolist()}
        if sum(cost.values()) <= self.shortlist_size:
            return Candidates(lacking.tolist(), cost)
        others = [
            other for other in indexes if other.vectors.num_vectors and key_of(other.text) != key_of(question.text)
        ]
        others = sorted(others, key=lambda other: (other.text is not None, -other.used))[:MAX_SHORTLISTING_INDEXES]
        queries = await self._embed(served, question, [other.text for other in others])
        num_candidates = max(CANDIDATES * self.shortlist_size, num_wanted)
        among = replace(question, k=min(num_candidates, len(lacking)), among=lacking)
        found = [await self._among_indexed(o, q, among) for o, q in zip(others, queries, strict=True)]
        in_turns = chain.from_iterable(zip_longest(*[rows for rows, _ in found]))
        guided = list(dict.fromkeys(row for row in in_turns if row is not None))[:num_candidates]
        in_order = list(dict.fromkeys([*guided, *lacking[::-1].tolist()]))
        return Candidates(in_order, cost, others, len(guided))

    async def _read_shortlist(
        self, served: ServedEmbed, indexes: AnyIndexes, question: Question, query: Embeddings, candidates: Candidates
    ) -> tuple[list[Read], Sequence[int]]:
        """Read the candidates that the budget pays for; also return those left, in order."""
        budget, deadline = self.shortlist_size, question.context.deadline
        wanted = Wanted(candidates.sample(budget), [question.text], indexes.sources)
        reads = await self.reader.read(served, wanted, deadline=deadline)
        if len(reads) >= MIN_SAMPLE:
            candidates = await asyncio.to_thread(candidates.after, reads, query)
            budget -= sum(candidates.cost[row] for row in wanted.rows)
        size = candidates.within(budget)
        wanted = replace(wanted, rows=sorted(candidates.rows[:size]))
        return [*reads, *await self.reader.read(served, wanted, deadline=deadline)], candidates.rows[size:]

    async def _read_in_time(self, served: ServedEmbed, wanted: Wanted, *, until: float) -> tuple[list[Read], bool]:
        """Read as much of `wanted` as possible before `until` (`time.monotonic()`); also return whether it was all."""
        reads: list[Read] = []
        async with aclosing(self.reader.in_pieces(served.engine, wanted)) as prepared:
            try:
                async for piece in prepared:
                    reads += await self.reader.run(served, piece, deadline=until)
            except DeadlineExceeded:
                return reads, False
        return reads, True

    def _lacking(self, index: OpenIndex | None, among: Rows | None) -> Rows:
        rows = self.store.rows(after=index.vectors.through if index is not None else 0)
        return rows if among is None else np.intersect1d(rows, among, assume_unique=True)

    async def _among_indexed(
        self, index: OpenIndex, query: Embeddings, question: Question
    ) -> tuple[list[int], list[float]]:
        began = time.perf_counter()
        search = functools.partial(index.vectors.search, query[None], question.k, among=question.among)
        found = await asyncio.get_running_loop().run_in_executor(self.threads, search)
        question.context.timing.add("search", time.perf_counter() - began)
        is_found = found.rows[0] >= 0
        return found.rows[0][is_found].tolist(), found.scores[0][is_found].tolist()

    async def _embed(
        self, served: ServedEmbed, question: Question, texts: Sequence[Text | None]
    ) -> Sequence[Embeddings]:
        """Embed the query under each condition; a text's embedding is the same under all."""

        async def embed(conditions: Sequence[str]) -> list[Embeddings]:
            call = EmbedCall([question.input], conditions)
            embedded = await self.embedder.embed(served, call, question.context)
            return list(embedded.rows)

        if isinstance(question.input, TextInput):
            return await embed([]) * len(texts)
        conditions = [text.text for text in texts if text is not None]
        conditional = iter(await embed(conditions) if conditions else [])
        plain = await embed([]) if len(conditions) < len(texts) else []
        return [plain[0] if text is None else next(conditional) for text in texts]


def status_of(index: OpenIndex, num_images: int, last_row: int) -> answers.ConditionIndex:
    """Describe an index of a collection of so many images, of which `last_row` is the newest."""
    vectors = index.vectors
    is_ready = vectors.through >= last_row
    return answers.ConditionIndex(
        condition=index.condition,
        kind=vectors.kind,
        indexed=vectors.num_vectors,
        exact=vectors.is_exact,
        state="ready" if is_ready else "building",
        waiting=0 if is_ready else max(0, num_images - vectors.num_vectors),
        bytes=vectors.num_bytes,
        recall_at_10=vectors.recall_at_10,
        pinned=index.is_pinned,
    )


def not_indexed(
    condition: str | None, *, exact: bool = True, waiting: int = 0, pinned: bool = False
) -> answers.ConditionIndex:
    """Describe the index of a condition that has no image yet, or of which nothing is known."""
    return answers.ConditionIndex(
        condition=condition, state="building", kind="flat", indexed=0, waiting=waiting, bytes=0, exact=exact,
        recall_at_10=None, pinned=pinned,
    )  # fmt: skip


def answered_by(nearest: Nearest, text: Text | None, last_row: int) -> answers.SearchIndex:
    """Describe the index that has answered a search, as far as there is one."""
    condition, index = text.text if text is not None else None, nearest.index
    status = not_indexed(condition) if index is None else status_of(index, 0, last_row)
    shared = status.model_dump(include={"condition", "kind", "state", "recall_at_10"})
    return answers.SearchIndex(size=status.indexed, exact=nearest.is_exact, **shared)


def kind_of(nearest: Nearest) -> str:
    """Name the way in which a search was answered, for the metrics."""
    if nearest.is_exact:
        return "exact"
    return "shortlist" if nearest.index is None or nearest.index.vectors.is_exact else "approximate"
