"""The value of an equation written by a model, such as `( 10.0 * 45.0 )`, without executing the text.

An equation consists of decimal numbers as Python writes them, + - * / // % **, the signs + and -, and parentheses; its
value is Python's. Anything else has no value, nor has what is too long, too deep or too large.

The work is bounded: an equation has at most MAX_LENGTH characters, and every intermediate and final value is within the
range of a float, so that an int has at most 1,024 bits.
"""

import ast
import operator
import re
import sys
from collections.abc import Callable, Mapping
from itertools import accumulate

MAX_LENGTH = 1_000  # characters
MAX_DEPTH = 100  # open parentheses
LARGEST = sys.float_info.max

_LARGEST_BITS = sys.float_info.max_exp
_CHARACTERS = re.compile(r"[-+*/%()0-9._eE \t\r\n]*")
_WHITE_SPACE = re.compile(r"[\t\r\n]")


class _NoValueError(Exception):
    """The text is not an equation, or its value is out of bounds."""


def evaluate(equation: str) -> int | float | None:
    """The value of an equation: an int or a finite float of magnitude at most LARGEST, or None if it has none.

    Never raises, and returns within milliseconds for any text.
    """
    return next(iter(reversed(_values(equation).values())), None)


def values_in(equation: str) -> frozenset[int | float]:
    """The values of an equation, its numbers and all of its parts; empty if it has no value."""
    return frozenset(_values(equation).values())


def equal_values(prediction: str, label: str) -> bool:
    """Whether both equations have values and these are equal, exactly, as in SVAMP: 0.1 + 0.2 is not 0.3.

    An equation without a value is never right, not even compared with itself.
    """
    value = evaluate(prediction)
    return value is not None and value == evaluate(label)


def _depth(equation: str) -> int:
    """The maximum number of parentheses open at once."""
    return max(accumulate((c == "(") - (c == ")") for c in equation), default=0)


def _values(equation: str) -> dict[ast.AST, int | float]:
    """The values of all parts of an equation, the whole one last; empty if it has none."""
    if len(equation) > MAX_LENGTH or not _CHARACTERS.fullmatch(equation) or _depth(equation) > MAX_DEPTH:
        return {}
    try:
        # Python ends an expression at a line break and reads leading white space as indentation
        parsed = ast.parse(_WHITE_SPACE.sub(" ", equation).strip(), mode="eval")
        return _values_of(parsed.body)
    # the parser recurses, so a caller deep in the stack may leave it too little stack
    except (_NoValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return {}


def _values_of(equation: ast.expr) -> dict[ast.AST, int | float]:
    values: dict[ast.AST, int | float] = {}
    for node in reversed(list(ast.walk(equation))):  # operands before their operations
        match node:
            case ast.Constant(int() | float() as number):
                values[node] = _bounded(number)
            case ast.UnaryOp(ast.UAdd() | ast.USub() as sign, operand):
                values[node] = -values[operand] if isinstance(sign, ast.USub) else values[operand]
            case ast.BinOp(left, symbol, right) if type(symbol) in _OPERATIONS:
                values[node] = _bounded(_OPERATIONS[type(symbol)](values[left], values[right]))
            case ast.expr():
                raise _NoValueError
    return values


def _power(base: float, exponent: float) -> float:
    """base ** exponent, refused before it is computed if an int would exceed LARGEST."""
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


_OPERATIONS: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
