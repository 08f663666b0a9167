"""The pairs that confidences of inferences are fitted to."""

from collections import Counter

from starters.predict.generated import generated_splits
from starters.predict.inferences import INFERENCES

NUMBERS = {"num_train": 30, "num_valid": 5, "num_test": 5}


def test_written_pairs_have_every_label_equally_often_and_no_pair_twice() -> None:
    pairs = generated_splits("everyday-inferences", **NUMBERS).confided
    assert INFERENCES.labels is not None
    assert Counter(pair.label for pair in pairs) == dict.fromkeys(INFERENCES.labels, len(pairs) // 3)
    assert len({pair.input for pair in pairs}) == len(pairs) >= 60


def test_no_student_learns_written_pairs() -> None:
    splits = generated_splits("everyday-inferences", num_train=500, num_valid=5, num_test=5)
    others = {row.input for row in (*splits.train, *splits.valid, *splits.test)}
    assert not {row.input for row in splits.confided} & others


def test_other_sets_have_none_so_that_validation_rows_serve() -> None:
    assert generated_splits("everyday-problems", **NUMBERS).confided == []
