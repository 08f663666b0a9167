"""Number slots: numbers become signs in ascending order, and signs become numbers again."""

import random

import pytest

from services.predict.arithmetic import evaluate
from services.predict.number_slots import SLOTS, hide_numbers, in_canonical_order
from starters.predict.problems import draw_problem


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Ann had 24 figs. She ate three.", "Ann had ② figs. She ate ①."),
        ("3 and 3.0 and three", "① and ① and ①"),
        ("It costs $2.50, or 1,200 cents.", "It costs $ ①, or ② cents."),
        ("two hundred and fifty-three people", "① people"),
        ("three and four cats", "① and ② cats"),
        ("a hundred, one thousand two hundred", "①, ②"),
        ("an 8-year-old and a nine-year-old", "an ①-year-old and a ②-year-old"),
        ("5kg of it", "① kg of it"),
        ("1/2 cup and 3/4 cup", "① cup and ② cup"),
        ("room B12, the 2nd floor, the third door", "room B12, the 2nd floor, the third door"),
        ("each one, the one who sings, no one", "each one, the one who sings, no one"),
        ("She has one cat.", "She has ① cat."),
        ("sixteenth, teen, often", "sixteenth, teen, often"),
        ("no numbers", "no numbers"),
        ("", ""),
    ],
)
def test_numbers_become_signs_in_ascending_order(text: str, hidden: str) -> None:
    assert hide_numbers(text).text == hidden


def test_an_equation_has_the_numbers_of_the_text_whatever_their_form() -> None:
    hidden = hide_numbers("Two boxes hold 1,200 pens each at $0.50, and half of them 1/4 each.")
    assert hidden.restore_equation("( ③ * ④ )") == "( 2 * 1200 )"
    assert hidden.restore_equation("( ② + ① )") == "( 0.50 + ( 1 / 4 ) )"
    assert hidden.restore_equation("( ③ * 60 )") == "( 2 * 60 )"
    assert evaluate(hidden.restore_equation("( ⑤ + ③ )")) is None


def test_rationales_keep_the_text_s_words_and_their_steps_are_computed() -> None:
    hidden = hide_numbers("Ann had twenty-four figs and ate 3. Bob has 7.")
    rationale = "twenty-four figs less 3 are 24 - 3 = 21. With 7 that is 21 + 7 = 28."
    assert hidden.hide_in(rationale) == "③ figs less ① are ③ - ① = ❶. With ② that is ❶ + ② = ❷."
    assert (
        hidden.restore_rationale("③ figs less ① are ③ - ① = ❶. With ② that is ❶ + ② = ❷.")
        == "twenty-four figs less 3 are 24 - 3 = 21. With 7 that is 21 + 7 = 28."
    )
    assert hidden.restore_rationale("① / ❷ = ❶ and ⑨") == "3 / ? = ? and ?"


def test_any_number_of_digits_is_copied() -> None:
    hidden = hide_numbers("A city has 12345678901 people and 987654321 leave.")
    assert evaluate(hidden.restore_equation("( ② - ① )")) == 12345678901 - 987654321


def test_numbers_beyond_the_last_sign_stay() -> None:
    numbers = " ".join(str(number) for number in range(10, 13 + len(SLOTS)))
    assert hide_numbers(numbers).text == " ".join([*SLOTS, "30", "31", "32"])


def test_a_sign_that_somebody_types_is_the_number_that_it_shows() -> None:
    hidden = hide_numbers("① pen and 5 pens, ❷ more")
    assert hidden.text == "① pen and ③ pens, ② more"
    assert hidden.restore_equation("( ③ - ② )") == "( 5 - 2 )"


def test_unused_numbers_are_those_that_an_equation_lacks() -> None:
    hidden = hide_numbers("Dora split 63 spoons into nine bags. Gina has 19 bags. Which one is hers?")
    assert hidden.unused_in("( 63 / 9 )") == (19,)
    assert hidden.unused_in("not an equation") == (9, 19, 63)
    assert hide_numbers("It costs $2.50.").unused_in("( 1 + 1 )") == (2.5,)


def test_labels_and_rationales_of_problems_come_back_as_they_were() -> None:
    generator = random.Random("slots")
    for _ in range(300):
        row = draw_problem(generator)
        hidden = hide_numbers(row.input)
        assert row.output is not None
        assert not any(character.isdigit() and character not in SLOTS for character in hidden.hide_in(row.label))
        assert hidden.restore_equation(hidden.hide_in(row.label)) == row.label
        assert hidden.restore_rationale(hidden.hide_in(row.output.rationale)) == row.output.rationale


@pytest.mark.parametrize(
    ("equation", "ordered"),
    [
        ("( ③ + ① )", "( ① + ③ )"),
        ("( ③ - ① )", "( ③ - ① )"),
        ("( 60 * ② )", "( ② * 60 )"),
        ("( ③ + ( ② * ① ) )", "( ( ① * ② ) + ③ )"),
        ("( ( ③ - ① ) / ( ② + ① ) )", "( ( ③ - ① ) / ( ① + ② ) )"),
        ("③", "③"),
        ("not an equation (", "not an equation ("),
    ],
)
def test_sums_and_products_are_written_in_one_order(equation: str, ordered: str) -> None:
    assert in_canonical_order(equation) == ordered
