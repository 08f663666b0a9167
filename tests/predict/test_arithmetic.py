"""Equations have Python's values, whatever else a model writes has none, and nothing that it writes is run."""

import json
import math
import re
import warnings
from pathlib import Path

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from services.predict.arithmetic import LARGEST, MAX_DEPTH, MAX_LENGTH, equal_values, evaluate

GOLDENS = json.loads((Path(__file__).parents[1] / "goldens" / "distill_text.json").read_text())


def value_in_python(text: str) -> int | float | None:
    """Python's own value of a short text that cannot be more than arithmetic; None where it is no finite number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, over literals that run into words
        try:
            value = eval(text, {"__builtins__": {}})
        except (SyntaxError, NameError, TypeError, AttributeError, ArithmeticError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value


@pytest.mark.parametrize("case", GOLDENS["eval_equation"], ids=lambda case: repr(case["expr"]))
def test_an_equation_has_the_published_value_and_what_is_no_number_has_none(case: dict[str, object]) -> None:
    is_number = case["type"] in ("int", "float") and case["value"] != "nan"
    value = evaluate(str(case["expr"]))
    assert value == (case["value"] if is_number else None)
    assert type(value).__name__ == (case["type"] if is_number else "NoneType")


@pytest.mark.parametrize(
    "case",
    [case for case in GOLDENS["compute_equation_acc"] if case["label"] != "True"],
    ids=lambda case: f"{case['pred']} is {case['label']}",
)
def test_a_prediction_is_right_where_the_published_metric_says_so(case: dict[str, object]) -> None:
    assert equal_values(str(case["pred"]), str(case["label"])) is bool(case["acc"])


@pytest.mark.parametrize(
    ("prediction", "label"), [("1", "True"), ("True", "True"), ("(14, 21)", "(14, 21)"), ("None", "None"), ("", "")]
)
def test_nothing_equals_what_has_no_value(prediction: str, label: str) -> None:
    assert not equal_values(prediction, label)


def binary(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds("{} {} {}".format, parts, st.sampled_from(["+", "-", "*", "/", "//", "%"]), parts)


# Signs, powers and parentheses in every order, of numbers so small that no step leaves the range of a float.
equations = st.recursive(
    st.sampled_from(["0", "1", "2", "7", "9", "0.5", "3.", ".25", "10.0", "1e1", "1_0"]),
    lambda parts: st.one_of(
        binary(parts),
        st.builds("({})".format, parts),
        st.builds("{}{}".format, st.sampled_from(["-", "+", "- "]), parts),
        st.builds("{}**{}".format, parts, st.sampled_from(["0", "1", "2", "-1", "0.5", "-2**2"])),
    ),
    max_leaves=6,
)


@given(equations)
def test_an_equation_has_the_value_that_python_gives_it(equation: str) -> None:
    expected = value_in_python(equation)
    value = evaluate(equation)
    assert value == expected
    assert type(value) is type(expected)


@given(st.text("0123.e+-/%() _", max_size=14))
@example("08 ")
@example("(1)(2)")
@example("1_000.5")
@example("()")
@example("1 + ")
@example("1.2.3")
def test_a_text_that_python_does_not_read_as_an_equation_has_no_value(text: str) -> None:
    assume(not re.search(r"e\+?[0-9_]{3}", text))  # infinities are refused even where they would cancel
    assert evaluate(text) == value_in_python(text)


@given(st.one_of(st.text(), st.text("0123456789.+-*/%() eE_", max_size=60)))
@example("１２")
@example("1\x002")
@example("\ud800")
def test_whatever_the_text_is_the_value_is_finite_or_none(text: str) -> None:
    value = evaluate(text)
    assert value is None or -LARGEST <= value <= LARGEST


@pytest.mark.parametrize(
    "equation",
    [
        "9**9**9",
        "9**9**9**9**9",
        "2**1024",
        "(2**1000)**2",
        "2**1000 * 2**1000",
        "1.5**100000",
        "10**400 / 10**399",
        "1e400",
        "-1e400",
        "1e308 * 10",
        "1e400 / 1e400",
        "9" * 310,
        "1 / 0",
        "1 // 0",
        "1.0 % 0",
        "0 ** -1",
        "(-8) ** 0.5",
    ],
)
def test_what_is_too_large_or_undefined_has_no_value(equation: str) -> None:
    assert evaluate(equation) is None


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 400, 10_000, 1_000_000])
def test_what_is_too_deep_has_no_value(depth: int) -> None:
    assert evaluate("(" * depth + "1" + ")" * depth) is None


def test_equations_up_to_the_limits_have_values() -> None:
    assert evaluate("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH) == 1
    assert evaluate("1" + "+1" * ((MAX_LENGTH - 1) // 2)) == (MAX_LENGTH + 1) // 2
    assert evaluate("-" * (MAX_LENGTH - 1) + "1") == (-1) ** (MAX_LENGTH - 1)
    assert evaluate("1" * (MAX_LENGTH + 1)) is None
    assert evaluate(" " * MAX_LENGTH + "1") is None
    assert evaluate("2**1023") == 2**1023
    assert evaluate("(-1)**" + "9" * 300) == -1
    assert evaluate("2**-" + "9" * 300) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "open('{path}', 'w')",
        "__import__('pathlib').Path('{path}').touch()",
        "[x for x in (1,)]",
        "(lambda: 1)()",
        "().__class__",
        "(1).real",
        "1 if 1 else 2",
        "x := 1",
        "'1' * 9",
        "1 == 1",
        "1 < 2",
        "not 1",
        "~1",
        "1 << 9",
        "2j",
        "0x10",
        "1 and 2",
        "f'{{1}}'",
        "1 # one",
        "1; 2",
        "1\n2",
    ],
)
def test_no_code_is_run(tmp_path: Path, text: str) -> None:
    assert evaluate(text.format(path=tmp_path / "made")) is None
    assert not list(tmp_path.iterdir())
