"""Generated word problems: texts, equations and reasons that agree."""

import random
import re
from collections import Counter

import pytest

from services.predict.arithmetic import evaluate
from services.predict.data.rows import Row
from starters.predict.drawing import draw_distinct
from starters.predict.problem_scenes import SCENES
from starters.predict.problems import WORD_PROBLEMS, draw_problem


def draw_problems(num_rows: int, seed: int) -> list[Row]:
    return draw_distinct(draw_problem, num_rows, random.Random(f"word problems {seed}"), set())


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return draw_problems(1500, seed=3)


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)


def test_a_problem_is_a_body_a_question_an_equation_and_its_reasons() -> None:
    (row,) = draw_problems(1, seed=0)
    assert row.output is not None
    assert row.input == (
        "Julia has 61 bottles. Carl filled 5 boxes. Each box holds 6 coins and 8 tickets.\n"
        "How many coins and tickets are there together?"
    )
    assert row.label == row.output.label == "( 5 * ( 6 + 8 ) )"
    assert row.output.rationale == (
        "The 61 bottles are not asked for. In each box are 6 coins and 8 tickets, which is 6 + 8 = 14. There are 5"
        " boxes, so there are 5 * 14 = 70 in all."
    )
    assert row.output.text == f"{row.output.rationale} The answer is {row.label}."


def test_the_value_of_every_equation_is_what_its_reasons_arrive_at(rows: list[Row]) -> None:
    for row in rows:
        assert row.output is not None
        steps = re.findall(r"([\d+*/ -]+) = (\d+)", row.output.rationale)
        assert all(evaluate(step.strip()) == int(value) for step, value in steps), row
        assert evaluate(row.label) == int(steps[-1][1]) > 0, row
        assert len(steps) == row.label.count("("), row


def test_equations_and_reasons_hold_only_numbers_of_the_problem_or_of_earlier_steps(rows: list[Row]) -> None:
    for row in rows:
        assert row.output is not None
        given = numbers(row.input)
        assert set(numbers(row.label)) <= set(given), row
        assert len(set(given)) == len(given), row
        known = {*given, *re.findall(r"= (\d+)", row.output.rationale)}
        assert set(numbers(row.output.rationale)) <= known, row


def test_every_text_is_whole_and_no_input_occurs_twice(rows: list[Row]) -> None:
    assert len({row.input for row in rows}) == len(rows)
    for row in rows:
        assert row.output is not None
        body, question = row.input.split("\n")
        assert question.startswith("How ")
        assert question.endswith("?")
        assert body.endswith(".")
        assert not re.search(r"[\[\]{}<>|]", row.input + row.output.rationale), row


def test_problems_take_one_step_or_two_and_hold_numbers_that_are_not_needed(rows: list[Row]) -> None:
    shapes = Counter(re.sub(r"\d+", "n", row.label) for row in rows)
    assert len(shapes) >= 12
    num_two_steps = sum(count for shape, count in shapes.items() if shape.count("(") == 2)
    assert 0.3 < num_two_steps / len(rows) < 0.5
    with_more_numbers = sum(len(numbers(row.input)) > len(set(numbers(row.label))) for row in rows)
    assert 0.6 < with_more_numbers / len(rows) < 0.95


def test_one_body_asks_for_different_equations() -> None:
    assert sum(len(scene.asks) > 1 for scene in SCENES) >= 12
    for scene in SCENES:
        assert len({ask.equation for ask in scene.asks}) == len(scene.asks), scene.name


def test_a_draw_is_the_same_for_its_seed_and_the_beginning_of_a_longer_one(rows: list[Row]) -> None:
    assert draw_problems(100, seed=3) == rows[:100]
    assert draw_problems(100, seed=4) != rows[:100]


def test_an_equation_of_the_same_value_is_right() -> None:
    assert WORD_PROBLEMS.is_right("( ( 6 + 8 ) * 5 )", "( 5 * ( 6 + 8 ) )")
    assert not WORD_PROBLEMS.is_right("( 5 * 6 )", "( 5 * ( 6 + 8 ) )")
