"""Everyday word problems: whole texts, equations of their numbers, and scenes that are held out."""

import random
import re

import pytest

from services.predict.arithmetic import evaluate
from services.predict.data.rows import Row
from services.predict.number_slots import hide_numbers
from starters.predict.everyday.problems import draw_everyday_problem, scenes


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    generator = random.Random("everyday")
    return [draw_everyday_problem(generator) for _ in range(800)]


def test_a_problem_is_a_body_and_a_question_without_placeholders(rows: list[Row]) -> None:
    for row in rows:
        body, question = row.input.split("\n")
        assert question  # a body may be empty: "How many days are there in 6 weeks?"
        assert body == "" or body[-1] in ".,?" or body[-1].isalnum()
        assert not re.search(r"[\[\]{}|]|  | [.,?]", row.input), row


def test_every_equation_has_a_value_above_0_that_its_reasons_arrive_at(rows: list[Row]) -> None:
    for row in rows:
        value = evaluate(row.label)
        assert value is not None and value > 0, row
        assert row.output is not None
        assert float(re.findall(r"= ([\d.]+\d|\d)", row.output.rationale)[-1]) == pytest.approx(value), row


def test_equations_hold_numbers_of_the_problem_and_a_few_constants(rows: list[Row]) -> None:
    constants = {"2", "3", "4", "5", "6", "7", "8", "10", "12", "25", "60", "100"}
    for row in rows:
        left = re.findall(r"[0-9.]+", hide_numbers(row.input).hide_in(row.label))
        assert set(left) <= constants, row


def test_parts_and_multiples_are_written_as_words(rows: list[Row]) -> None:
    words = ("half", "a third", "a quarter", "twice", "double", "dozen")
    assert all(sum(word in row.input.lower() for row in rows) > 1 for word in words)


def test_there_are_hundreds_of_scenes_of_one_step_and_of_more() -> None:
    one, more = scenes()
    assert len(one) > 300 and len(more) > 80
    assert sum(scene.is_held_out for scene in (*one, *more)) >= 10


def test_held_out_questions_occur_in_no_other_row() -> None:
    one, more = scenes()
    held = [scene for scene in (*one, *more) if scene.is_held_out]
    others = [scene for scene in (*one, *more) if not scene.is_held_out]
    assert not {(scene.body, scene.question) for scene in held} & {(scene.body, scene.question) for scene in others}
    assert draw_everyday_problem(random.Random(0), is_held_out=True) != draw_everyday_problem(random.Random(0))


def test_a_draw_is_the_same_for_its_seed() -> None:
    first, second = (draw_everyday_problem(random.Random(7)) for _ in range(2))
    assert first == second
