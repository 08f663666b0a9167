"""A short list holds the images that a sample predicts to be nearest under a condition that has no index."""

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from services.embed.collections.indexes import OpenIndex
from services.embed.collections.reader import Read
from services.embed.collections.search import MIN_SAMPLE, Candidates, predict_cosines

NUM_IMAGES, WIDTH = 2000, 32


def unit(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
    return unit


@dataclass
class Held:
    """The vectors of an index that holds every image; `rows` are 1, 2, …"""

    held: NDArray[np.float32]

    def vectors(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return self.held[np.asarray(rows) - 1], np.ones(len(rows), bool)


@pytest.fixture(scope="module")
def images() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Plain embeddings, whose greater part is what the condition does not ask for, and embeddings under it."""
    generator = np.random.default_rng(5)
    asked, other = generator.normal(size=(NUM_IMAGES, 4)), 3 * generator.normal(size=(NUM_IMAGES, 8))
    mixing = generator.normal(size=(12, WIDTH)) / 6
    plain = np.concatenate([asked, other], axis=1) @ mixing + 1
    under = asked @ generator.normal(size=(4, WIDTH)) + 0.5
    return unit(plain), unit(under)


def candidates_of(plain: NDArray[np.float32], query: int, num_guided: int | None = None) -> Candidates:
    in_order = (np.argsort(-plain @ plain[query]) + 1).tolist()
    guide = OpenIndex(None, Held(plain))  # type: ignore[arg-type] # only its vectors are asked for
    return Candidates(in_order, dict.fromkeys(in_order, 1), [guide], num_guided or len(in_order))


def read(rows: list[int], under: NDArray[np.float32]) -> list[Read]:
    return [Read(row, under[row - 1][None], None) for row in rows]


def test_a_sample_finds_what_the_unconditional_index_ranks_behind(
    images: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    plain, under = images
    by_plain, by_sample = [], []
    for query in range(0, 200, 10):
        nearest = set(np.argsort(-under @ under[query])[:10] + 1)
        candidates = candidates_of(plain, query)
        sample = candidates.sample(160)
        left = candidates.after(read(sample, under), under[query])
        by_plain.append(len(nearest & set(candidates.rows[:160])) / 10)
        by_sample.append(len(nearest & {*sample, *left.rows[: 160 - len(sample)]}) / 10)
    assert np.mean(by_plain) < 0.5
    assert np.mean(by_sample) > 0.95


def test_what_was_read_is_not_read_again_and_nothing_is_left_out(
    images: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    plain, under = images
    candidates = candidates_of(plain, 3, num_guided=500)
    sample = candidates.sample(200)
    assert len(sample) == len(set(sample)) == 50
    assert set(sample) <= set(candidates.rows[:500])
    left = candidates.after(read(sample, under), under[3])
    assert sorted([*sample, *left.rows]) == sorted(candidates.rows)
    assert left.rows[left.num_guided :] == candidates.rows[500:]


def test_an_image_that_was_deleted_meanwhile_does_not_hinder(
    images: tuple[NDArray[np.float32], NDArray[np.float32]],
) -> None:
    plain, under = images
    candidates = candidates_of(plain, 3)
    sample = candidates.sample(200)
    left = candidates.after(read(sample[1:], under), under[3])
    assert sample[0] in left.rows


@pytest.mark.parametrize("budget", [0, 4 * MIN_SAMPLE - 1, NUM_IMAGES])
def test_there_is_no_sample_where_it_would_be_too_small_or_everything_is_read(budget: int) -> None:
    rows = list(range(1, NUM_IMAGES + 1))
    assert Candidates(rows, dict.fromkeys(rows, 1), (), NUM_IMAGES).sample(budget) == []


def test_images_that_cost_more_leave_room_for_fewer() -> None:
    candidates = Candidates([4, 3, 2, 1], {4: 1, 3: 8, 2: 1, 1: 8})
    assert [candidates.within(budget) for budget in (0, 1, 8, 9, 10, 18)] == [0, 1, 1, 2, 3, 4]


def test_a_prediction_equals_ridge_regression_written_out() -> None:
    generator = np.random.default_rng(2)
    embeddings, read_vectors = generator.normal(size=(30, 6)), unit(generator.normal(size=(20, 4)))
    query = unit(generator.normal(size=4))
    sampled = embeddings[:20]
    x, y = sampled - sampled.mean(axis=0), read_vectors - read_vectors.mean(axis=0)
    strength = 0.01 * np.trace(x.T @ x) / 20
    weights = np.linalg.inv(x.T @ x + strength * np.eye(6)) @ x.T @ y
    expected = unit((embeddings - sampled.mean(axis=0)) @ weights + read_vectors.mean(axis=0)) @ query
    found = predict_cosines(*(array.astype(np.float32) for array in (embeddings, sampled, read_vectors, query)))
    assert found == pytest.approx(expected, abs=1e-4)


def test_images_that_all_look_the_same_are_all_predicted_alike() -> None:
    same = np.ones((30, 6), np.float32)
    read_vectors = unit(np.random.default_rng(2).normal(size=(20, 4)))
    found = predict_cosines(same, same[:20], read_vectors, read_vectors[0])
    assert np.isfinite(found).all()
    assert np.ptp(found) == pytest.approx(0, abs=1e-6)
