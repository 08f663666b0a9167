"""The value of an equation that a model wrote, such as `( 10.0 * 45.0 )`, without running what it wrote.

An equation consists of decimal numbers as Python writes them, + - * / // % **, the signs + and -, and parentheses; its
value is Python's, with its precedence and its difference between int and float. Anything else has no value: names,
calls, comparisons, `and` and `or`, tuples, complex results, and whatever is too long, too deep or too large.

Work is bounded by construction: an equation has at most MAX_LENGTH characters and no step of it, the last one included,
leaves the range of a float, so that an int has at most 1,024 bits. Nothing here recurses.
"""

import re
import sys
from collections.abc import Callable

MAX_LENGTH = 1_000  # characters
MAX_DEPTH = 100  # open parentheses
LARGEST = sys.float_info.max

_LARGEST_BITS = sys.float_info.max_exp
_DIGITS = "[0-9](?:_?[0-9])*"
_TOKENS = re.compile(
    rf"""[ \t\r\n]*(?:
        (?P<float> (?:{_DIGITS}\.(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})? | {_DIGITS}[eE][+-]?{_DIGITS} )
      | (?P<int> [1-9](?:_?[0-9])* | 0(?:_?0)* )
      | (?P<symbol> \*\* | // | [-+*/%()] )
    )""",
    re.VERBOSE,
)

_UNARY = {"+": "positive", "-": "negative"}
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "positive": 3, "negative": 3, "**": 4}
_OPERATIONS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: _power(a, b),
}


class _NoValueError(Exception):
    """The text is not an equation, or its value is out of bounds."""


def evaluate(equation: str) -> int | float | None:
    """The value of an equation: an int or a finite float of a magnitude up to LARGEST, or None where it has none.

    Never raises, and answers within milliseconds whatever the text is.
    """
    if len(equation) > MAX_LENGTH:
        return None
    try:
        return _evaluate(equation)
    except (_NoValueError, ArithmeticError):
        return None


def equal_values(prediction: str, label: str) -> bool:
    """Whether both equations have values and these are equal, as SVAMP counts it: exactly, so 0.1 + 0.2 is not 0.3.

    An equation without a value is never right, not even next to an equal one.
    """
    value = evaluate(prediction)
    return value is not None and value == evaluate(label)


def _evaluate(equation: str) -> int | float:
    """Dijkstra's two stacks: of values, and of operators that wait for their right side."""
    values: list[float] = []
    operators: list[str] = []
    depth = 0
    is_operand_next = True
    for kind, token in _tokens(equation):
        if kind != "symbol":
            _require(is_operand_next)
            values.append(_bounded(int(token) if kind == "int" else float(token)))
            is_operand_next = False
        elif token == "(":
            depth += 1
            _require(is_operand_next and depth <= MAX_DEPTH)
            operators.append(token)
        elif token == ")":
            depth -= 1
            _require(not is_operand_next and depth >= 0)
            while operators[-1] != "(":
                _apply(operators.pop(), values)
            operators.pop()
        elif is_operand_next:
            _require(token in _UNARY)
            operators.append(_UNARY[token])
        else:
            while operators and _goes_first(operators[-1], token):
                _apply(operators.pop(), values)
            operators.append(token)
            is_operand_next = True
    _require(not is_operand_next and depth == 0)
    while operators:
        _apply(operators.pop(), values)
    return values[0]


def _tokens(equation: str) -> list[tuple[str, str]]:
    """Kind and text of each token; raises _NoValueError at what is none."""
    tokens = []
    end = len(equation.rstrip(" \t\r\n"))
    at = 0
    while at < end:
        match = _TOKENS.match(equation, at, end)
        if match is None or match.lastgroup is None:
            raise _NoValueError
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


def _goes_first(waiting: str, token: str) -> bool:
    """Whether a waiting operator is applied ahead of the one that comes after its right side."""
    if waiting == "(" or token == "**":  # powers group from the right, and before a sign on their left
        return False
    return _PRECEDENCE[waiting] >= _PRECEDENCE[token]


def _apply(operator: str, values: list[float]) -> None:
    right = values.pop()
    if operator == "positive":
        values.append(right)
    elif operator == "negative":
        values.append(-right)
    else:
        values.append(_bounded(_OPERATIONS[operator](values.pop(), right)))


def _power(base: float, exponent: float) -> float:
    """base ** exponent, refused before it is computed where an int would outgrow LARGEST."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent > 0:
        _require((abs(base).bit_length() - 1) * exponent <= _LARGEST_BITS)
    value = base**exponent
    _require(not isinstance(value, complex))
    return float(value) if isinstance(value, float) else int(value)


def _bounded(value: float) -> float:
    _require(-LARGEST <= value <= LARGEST)  # compares ints exactly, and is false for nan
    return value


def _require(is_met: bool) -> None:  # noqa: FBT001 - reads as a sentence where it is called
    if not is_met:
        raise _NoValueError
