"""Unlabelled texts with words missing."""

import random

from services.predict.data.rows import Row
from services.predict.tasks import EOS
from starters.predict.denoising import MISSING, denoising_of, with_gaps
from starters.predict.generated import generated_splits
from starters.predict.problems import draw_problem


def test_a_text_keeps_its_words_but_for_the_missing_ones() -> None:
    text = "Each of the words of this text is one of its own."
    for seed in range(50):
        kept = with_gaps(text, random.Random(seed)).split(" ")
        assert f"{MISSING} {MISSING}" not in " ".join(kept)
        words = iter(text.split(" "))
        assert all(word == MISSING or word in words for word in kept)


def test_about_a_quarter_of_the_words_is_missing() -> None:
    text = " ".join(map(str, range(4000)))
    left = [word for word in with_gaps(text, random.Random(0)).split(" ") if word != MISSING]
    assert 2850 < len(left) < 3150


def test_rows_ask_for_texts_without_labels_or_reasons() -> None:
    rows = generated_splits("denoising", num_train=200, num_valid=1, num_test=1).train
    assert all(EOS not in row.input + row.label for row in rows)
    assert any("How " in row.label for row in rows)
    assert any("How " not in row.label for row in rows)
    drawn = Row("a b\nc", "( 1 + 1 )")
    assert denoising_of([lambda generator: drawn])(random.Random(3)).label == "a b\nc"
    draw = denoising_of([draw_problem])
    row = draw(random.Random(0))
    assert row.output is not None
    assert "The answer is" not in row.input + row.label
    assert "The answer is" in row.output.rationale
