"""Labels of words say what an answer follows from: relations and denials of two sentences, roles of numbers."""

import random

import pytest

from services.predict.data.rows import Row
from starters.predict.generated import GENERATED_TASKS, generated_splits
from starters.predict.word_labels import WORD_LABELS


def labels(task: str, text: str, label: str, probe: str) -> dict[str, str]:
    """Label the words of an example for a probe, by the words; the end is the empty one."""
    example = Row(text, label)
    found = WORD_LABELS[task]().label(example)
    return {text[one.start : one.end]: one.value for one in found if one.probe == probe}


def related(premise: str, hypothesis: str) -> dict[str, str]:
    return labels("inferences", f"{premise}</s>{hypothesis}", "neutral", "relation")


def test_a_word_is_related_to_the_word_of_its_group_in_the_other_sentence() -> None:
    assert related("The car is red.", "The car is blue.") == {
        **{"The": "same", "car": "same", "is": "same"},
        **{"red": "exclusive", "blue": "exclusive"},
    }
    assert related("It is a poodle.", "It is a dog.")["dog"] == "wider"
    assert related("It is a dog.", "It is a poodle.")["poodle"] == "narrower"
    assert related("The door is open.", "The door is shut.")["shut"] == "opposite"
    assert related("She is asleep.", "She is sleeping.")["sleeping"] == "same"
    assert related("The car is red.", "The car is old.")["old"] == "alone"
    assert related("He is in the park.", "He is outside.")["outside"] == "wider"
    assert related("They saw ② cats.", "They saw ① cats.")["①"] == "smaller"


def test_words_have_the_group_of_what_they_tell_unless_they_may_be_of_several() -> None:
    groups = labels("inferences", "A red apple is near.</s>A violet orange is on the table.", "neutral", "group")
    assert (groups["red"], groups["violet"]) == ("red", "red")
    assert (groups["apple"], groups["on the table"]) == ("food", "positions")
    assert "orange" not in groups


def test_the_ends_of_sentences_tell_denials_and_the_answer() -> None:
    text = "It isn't red.</s>It is red."
    assert labels("inferences", text, "contradiction", "denial") == {"</s>": "denied", "": "affirmed"}
    assert labels("inferences", text, "contradiction", "label") == {"": "contradiction", ".": "contradiction"}


def test_numbers_have_the_roles_that_the_equation_gives_them() -> None:
    text = "Ann had ③ figs and ate ①. Bo is ②. She bought ④.\nHow many figs has she?"
    assert labels("word-problems", text, "( ④ + ( ③ - ① ) )", "role") == {
        **{"③": "first left -", "①": "first right -"},
        **{"②": "unused", "④": "later +"},
    }
    assert labels("word-problems", text, "( ④ + ( ③ - ① ) )", "operation") == {"": "+"}
    assert labels("word-problems", text, "( ③ - ( ③ / 2 ) )", "role")["③"] == "several"
    shared = labels("word-problems", text, "( ③ - ① )", "shared")
    assert (shared["figs"], shared["Ann"]) == ("same", "alone")


@pytest.mark.parametrize("task", ["everyday-inferences", "everyday-problems", "inferences"])
def test_every_label_is_a_class_of_a_probe_and_lies_within_the_text(task: str) -> None:
    words = WORD_LABELS[GENERATED_TASKS[task].name]()
    classes = {probe.name: probe.classes for probe in words.probes}
    rows = generated_splits(task, num_train=200, num_valid=0, num_test=0).train
    random.Random(0).shuffle(rows)
    for row in rows:
        for one in words.label(Row(row.input, row.label)):
            assert one.value in classes[one.probe]
            assert 0 <= one.start <= one.end <= len(row.input)
