"""Number slots: numbers become signs in ascending order, and signs become numbers again."""

import random

import pytest

from services.predict.arithmetic import evaluate
from services.predict.number_slots import hide_numbers, in_canonical_order
from services.predict.written_numbers import SLOTS, in_plain_form
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
        ("½ cup, 1⁄2 cup, 1/2 cup and half a cup", "① cup, ① cup, ① cup and ① cup"),
        ("1½ or 1 ½ or 1 1/2 or 1-1/2 or one and a half cups", "① or ① or ① or ① or ① cups"),
        ("a quarter of an hour and three-quarters of a mile", "① hour and ② mile"),
        ("３ and ٣ and ३ and three", "① and ① and ① and ①"),
        ("1,200 or 1 200 or 1\u00a0200 or 1\u202f200 or 1'200 or 1’200", "① or ① or ① or ① or ① or ①"),
        ("1.200,5 and 1,200.5 and 1 200,5", "① and ① and ①"),
        ("1.200.000 and 1,200,000 and 1,20,000", "② and ② and ①"),
        ("2,5 and 2.5 and ２．５", "① and ① and ①"),
        ("The numbers are 3,5,7 and 0,125.", "The numbers are ②, ③, ④ and ①."),
        ("5 boxes of 500-ml bottles, 2 500-ml bottles", "② boxes of ③-ml bottles, ① ③-ml bottles"),
        ("25%, 25 %, 25％ and 25 per cent", "①%, ①%, ①% and ①%"),
        ("from -5 to −3, 10-12 eggs, 24 - 3", "from ① to ②, ④- ⑤ eggs, ⑥ - ③"),
        ("1.5 million and two billion", "① and ②"),
        ("One-fifth of it, two thirds of them, a third of us", "① fifth of it, ② thirds of them, a third of us"),
        ("1/4 of them, ½ of them, 3/4 of them", "a quarter of them, half of them, ① quarters of them"),
        ("half a trip, half of a number, 4 hundred", "half a trip, half of a number, ① hundred"),
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


@pytest.mark.parametrize(
    ("text", "equation"),
    [
        ("Mia has 1/2 cup and 3 cups.", "( ( 1 / 2 ) + 3 )"),
        ("Mia has ½ cup and 3 cups.", "( 0.5 + 3 )"),
        ("Mia has 1½ cups and 3 cups.", "( ( 1 + ( 1 / 2 ) ) + 3 )"),
        ("25% of 80 eggs broke.", "( ( 25 * 80 ) / 100 )"),
        ("25% of 80 eggs broke.", "( 80 * 0.25 )"),
        ("25% of 80 eggs broke.", "( 80 / 4 )"),
        ("25 percent of 80 eggs broke. How many are left?", "( ( 80 * 75 ) / 100 )"),
        ("A price of 80 rises by 25%.", "( 80 * 1.25 )"),
        ("Tom ate ⅓ of 30 nuts. How many are left?", "( ( 30 * 2 ) / 3 )"),
        ("12 figs for 3 times 2 people, or 1/2 of 8", "12/3/2+8/2"),
        ("There are 24 figs, and 12 more than 20.", "(24-12)*20"),
        ("It was -5 degrees and is 8 degrees warmer.", "( 8 - 5 )"),
        ("A third of 30 nuts, and 0.1 of 20", "( ( 30 / 3 ) + ( 20 * .1 ) )"),
    ],
)
def test_a_right_equation_lacks_no_number_whatever_its_form(text: str, equation: str) -> None:
    assert hide_numbers(text).unused_in(equation) == ()


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("Dora came 3rd of 20, Tom fifteenth.", ("3rd", "fifteenth")),
        ("at 7:30 on 2024-05-03, 3/4/2024 or 3.4.24", ("7:30", "2024-05-03", "3/4/2024", "3.4.24")),
        ("5k, 5e3, 10², 2^3, 3x5, 4‰ and 1/0", ("5k", "5e3", "10²", "2^3", "3x5", "4‰", "1/0")),
        ("Ⅳ, IV, 三, ㉑ and the twenty-first", ("Ⅳ", "IV", "三", "㉑", "twenty-first")),
        ("9" * 301, ("9" * 301,)),
        ("First she ate a third of 20 m² in room B12 within one second.", ()),
    ],
)
def test_what_is_not_read_as_a_number_is_listed(text: str, unread: tuple[str, ...]) -> None:
    hidden = hide_numbers(text)
    assert hidden.unread == unread
    assert all(one in hidden.text for one in unread)


def test_students_of_written_numbers_read_those_in_ascii_as_they_are() -> None:
    given = "1½ cups, ６３ or ٦٣ of 1,200 or 1\u202f200 or 1 200 or 1.200,5 g, ½ g, 1 1/2 g, two, −5 and 25 %"
    plain = "3/2 cups, 63 or 63 of 1,200 or 1200 or 1 200 or 1.200,5 g, 1/2 g, 1 1/2 g, two, -5 and 25 %"
    assert in_plain_form(given) == plain


def test_reading_numbers_takes_no_longer_than_the_text_is_long() -> None:
    for part in ("1,1", "111,", "1 200 ", "1.", "1/", "a-third", "-1", "1-"):
        assert hide_numbers(part * 2_000).text


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
