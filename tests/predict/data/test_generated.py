"""Splits of generated data."""

import pytest

from services.predict.data.generated import GENERATED_TASKS, generated_splits


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
