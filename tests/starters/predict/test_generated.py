"""Splits of generated data."""

from typing import Any

import pytest

from services.predict.training.recipe import Recipe
from starters.predict.generated import GENERATED_TASKS, GeneratedSource, generated_splits


@pytest.mark.parametrize("task", list(GENERATED_TASKS))
def test_splits_share_no_input_and_have_the_sizes_asked_for(task: str) -> None:
    splits = generated_splits(task, num_train=300, num_valid=50, num_test=100)
    assert [len(rows) for rows in (splits.train, splits.valid, splits.test)] == [300, 50, 100]
    assert len({row.input for rows in (splits.train, splits.valid, splits.test) for row in rows}) == 450


@pytest.mark.parametrize("task", list(GENERATED_TASKS))
def test_test_rows_stay_whatever_else_is_drawn_and_depend_on_the_seed(task: str) -> None:
    few = generated_splits(task, num_train=20, num_valid=5, num_test=30)
    many = generated_splits(task, num_train=60, num_valid=5, num_test=30)
    assert many.test == few.test
    assert many.train[:20] == few.train
    other = generated_splits(task, num_train=20, num_valid=5, num_test=30, seed=1)
    assert not {row.input for row in other.test} & {row.input for row in few.test}


def test_another_task_is_refused() -> None:
    with pytest.raises(KeyError):
        generated_splits("cqa", num_train=1, num_valid=1, num_test=1)


def test_a_source_has_rationales_and_the_numbers_asked_for() -> None:
    source = GeneratedSource("inferences", num_train=20, num_valid=5, num_test=6, fraction=0.5)
    data = source.read(Recipe())
    assert (len(data.train), len(data.valid), len(data.test)) == (10, 5, 6)
    assert all(one.rationale for one in data.train + data.valid + data.test)
    assert source.read(Recipe(seed=1)).test == data.test
    assert source.read(Recipe(seed=1)).train != data.train


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"task": "cqa"}, "the data is one of word-problems"), ({"fraction": 0.0}, "above 0 and at most 1")],
)
def test_a_source_without_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GeneratedSource(**{"task": "inferences", **changes})
