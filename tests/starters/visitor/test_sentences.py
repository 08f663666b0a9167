"""The hand-written problems and inferences are what they are said to be."""

import re
from collections import Counter
from itertools import permutations

from starters.visitor.sentences import LABELS, README_PROBLEM, read_sentences
from tests.imports import ROOT

WORDS = {
    **{
        word: number
        for number, word in enumerate(("zero", "one", "two", "three", "four", "five", "six", "seven", "eight"))
    },
    **{"half": 2, "third": 3, "quarter": 4, "fifth": 5, "double": 2, "twice": 2, "times": 1, "equally": 2, "week": 7},
}


def numbers_in(text: str) -> list[float]:
    words = re.findall(r"\d+|[a-z]+", text.lower())
    return [float(word) if word.isdigit() else WORDS[word] for word in words if word.isdigit() or word in WORDS]


def results(first: float, second: float) -> set[float]:
    return {first + second, first - second, first * second, *({first / second} if second else ())}


def test_each_one_step_problem_is_solved_by_one_step_with_its_numbers() -> None:
    for row in [*read_sentences("problems"), README_PROBLEM]:
        numbers = numbers_in(f"{row['body']} {row['question']}")
        assert any(row["right"] in results(a, b) for a, b in permutations(numbers, 2)), row


def test_each_two_step_problem_is_solved_by_two_or_three_steps_with_its_numbers() -> None:
    for row in read_sentences("two_step_problems"):
        numbers = numbers_in(f"{row['body']} {row['question']}")
        # "twice as many" uses a number again
        assert is_reached(row["right"], numbers * 2 if len(numbers) == 2 else numbers, steps=3), row


def is_reached(wanted: float, numbers: list[float], *, steps: int) -> bool:
    """Whether the number is the last of some steps, each of which replaces two numbers by their result."""
    for a, b in permutations(range(len(numbers)), 2):
        rest = [number for place, number in enumerate(numbers) if place not in (a, b)]
        found = results(numbers[a], numbers[b])
        if steps < 3 and wanted in found:
            return True
        if steps > 1 and any(is_reached(wanted, [*rest, one], steps=steps - 1) for one in found):
            return True
    return False


def test_there_are_enough_problems_and_none_twice() -> None:
    one, two = read_sentences("problems"), read_sentences("two_step_problems")
    assert (len(one) >= 60, len(two) >= 30) == (True, True)
    assert max(Counter(row["body"] + row["question"] for row in [*one, *two]).values()) == 1
    assert max(row["right"] for row in one) > 5000


def test_inferences_are_many_and_their_labels_balanced_in_each_group() -> None:
    rows = read_sentences("inferences")
    assert len(rows) >= 60
    counts = Counter((row["group"], row["right"]) for row in rows)
    assert set(counts.values()) == {3}
    assert {label for _, label in counts} == set(LABELS)
    assert {row["hypothesis"] for row in rows if row["premise"] == "The car is red."} >= {"The car is blue."}


def test_the_problem_of_the_readme_is_the_guides_without_its_second_sentence() -> None:
    guide = (ROOT / "docs" / "guide" / "predict.md").read_text()
    assert f'"body": "{README_PROBLEM["body"]} ' in guide
    assert f'"question": "{README_PROBLEM["question"]}"' in guide
