"""Equations of scenes: their steps, their values, and their text with numbers for letters."""

import ast
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

_SIGNS: Mapping[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.Mod: "%",
}


@dataclass(frozen=True)
class Step:
    """A step of a calculation, as texts."""

    left: str
    sign: str
    right: str
    value: str


class EquationText:
    """An equation over letters and constants, with + - * / % and the greater or smaller of two letters."""

    def __init__(self, text: str) -> None:
        self.root = ast.parse(text, mode="eval").body
        self.letters = {node.id for node in ast.walk(self.root) if isinstance(node, ast.Name) and len(node.id) == 1}
        self.constants = {
            Fraction(node.value)
            for node in ast.walk(self.root)
            if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value != 2
        }

    def write(self, numbers: Mapping[str, Fraction]) -> str:
        """Write the equation with numbers and all parentheses, such as `( ( 5 - 2 ) + 4 )`."""
        return _text(self.root, numbers)

    def make_divisible(self, numbers: dict[str, Fraction], generator: random.Random) -> None:
        """Change the dividend of each quotient of a letter so that it is whole."""
        for node in ast.walk(self.root):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                below = _value(node.right, numbers)
                dividend = node.left
                while isinstance(dividend, ast.BinOp) and isinstance(dividend.op, ast.Mult | ast.Div):
                    dividend = dividend.left
                if isinstance(dividend, ast.Name) and below:
                    top = max(2, min(60, int(numbers[dividend.id] / below) + 2))
                    numbers[dividend.id] = below * generator.randint(2, max(3, top))
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Name):
                below = _value(node.right, numbers)
                if below > 1:
                    rest = generator.randint(1, int(below) - 1)
                    numbers[node.left.id] = below * generator.randint(2, 12) + rest


def step_values(equation: EquationText, numbers: Mapping[str, Fraction]) -> list[Fraction]:
    """Compute the value of each step; none if one is a division by 0."""
    try:
        return [_value(node, numbers) for node in _operations(equation.root)]
    except ZeroDivisionError:
        return []


def steps_of(equation: EquationText, numbers: Mapping[str, Fraction]) -> list[Step]:
    """List the steps in the order in which they are computed."""
    return [
        Step(_shown(node.left, numbers), _SIGNS[type(node.op)], _shown(node.right, numbers), _shown(node, numbers))
        for node in _operations(equation.root)
    ]


def _operations(node: ast.expr) -> Iterator[ast.BinOp]:
    if isinstance(node, ast.BinOp):
        yield from _operations(node.left)
        yield from _operations(node.right)
        yield node


def _value(node: ast.expr, numbers: Mapping[str, Fraction]) -> Fraction:
    match node:
        case ast.Constant(int() as value):
            return Fraction(value)
        case ast.Name(letter):
            return numbers[letter]
        case ast.Call(ast.Name(name), operands):
            return (max if name == "max" else min)(_value(operand, numbers) for operand in operands)
        case ast.BinOp(left, sign, right):
            above, below = _value(left, numbers), _value(right, numbers)
            match sign:
                case ast.Add():
                    return above + below
                case ast.Sub():
                    return above - below
                case ast.Mult():
                    return above * below
                case ast.Div():
                    return above / below
                case ast.Mod():
                    return above % below
    raise ValueError(f"an equation of a scene does not hold {ast.unparse(node)}")


def _text(node: ast.expr, numbers: Mapping[str, Fraction]) -> str:
    if isinstance(node, ast.BinOp):
        return f"( {_text(node.left, numbers)} {_SIGNS[type(node.op)]} {_text(node.right, numbers)} )"
    return _shown(node, numbers)


def _shown(node: ast.expr, numbers: Mapping[str, Fraction]) -> str:
    value = _value(node, numbers)
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"
