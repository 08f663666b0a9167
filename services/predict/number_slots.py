"""Number slots: the numbers of a text as signs that a student copies, so that it never computes with digits.

The distinct numbers of a text, in ascending order, become ①, ②, … and the results of a rationale's steps ❶, ❷, …:

    Ann had 24 figs. She ate three.       Ann had ② figs. She ate ①.
    ( 24 - 3 )                            ( ② - ① )
    24 figs less 3 are 24 - 3 = 21.       ② figs less ① are ② - ① = ❶.

The order tells a student which number is greater, and equal numbers share a sign. Numbers are those of
`written_numbers`; what is not read, and numbers beyond the last sign, stay as they are.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from services.predict.arithmetic import evaluate, values_in
from services.predict.written_numbers import RESULTS, SLOTS, Number, find_numbers, in_shares, plain_number

BROKEN = "\N{REPLACEMENT CHARACTER}"  # a token that is only some bytes of a character decodes to this

_STEP = re.compile(rf"(?P<left>\S+) (?P<sign>[-+*/%]|//) (?P<right>\S+) = (?P<result>[{RESULTS}])")
_CALCULATION = re.compile(r"(?P<step>(?:[0-9.]+) (?:[-+*/%]|//) (?:[0-9.]+)) = (?P<result>[0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class HiddenNumbers:
    """A text whose numbers are signs, the numbers by sign in ascending order, and what is not read as a number."""

    text: str
    numbers: Mapping[str, Number]
    unread: tuple[str, ...] = ()

    def hide_in(self, target: str) -> str:
        """Replace the numbers of a label or a rationale by their signs, and the results of its steps.

        A number that is neither of the text nor an earlier result stays, such as the 60 of minutes.
        """
        signs = {number.value: sign for sign, number in self.numbers.items()}
        results: dict[Fraction, str] = {}

        def hide_step(found: re.Match[str]) -> str:
            value = Fraction(found["result"])
            if len(results) == len(RESULTS) or value in results:
                return found[0]
            step = hide(found["step"])
            results[value] = RESULTS[len(results)]
            return f"{step} = {results[value]}"

        def hide(text: str) -> str:
            for sign, number in self.numbers.items():
                if number.value.denominator > 1:
                    text = text.replace(number.equation, sign)
            return _substitute(text, lambda number: signs.get(number.value) or results.get(number.value))

        parts, end = [], 0
        for found in _CALCULATION.finditer(target):
            parts += [hide(target[end : found.start()]), hide_step(found)]
            end = found.end()
        return "".join([*parts, hide(target[end:])])

    def restore_equation(self, equation: str) -> str:
        """Replace the signs of an equation by the numbers, as Python writes them; an unknown sign becomes `?`."""
        return _replace_signs(equation, {sign: number.equation for sign, number in self.numbers.items()})

    def restore_rationale(self, rationale: str) -> str:
        """Replace the signs of a rationale by the numbers as the text writes them, and compute its steps."""
        values = {sign: number.equation for sign, number in self.numbers.items()}
        results: dict[str, str] = {}
        for found in _STEP.finditer(rationale):
            operands = [_replace_signs(found[side], values | results) for side in ("left", "right")]
            value = evaluate(f"{operands[0]} {found['sign']} {operands[1]}")
            results.setdefault(found["result"], "?" if value is None else plain_number(Fraction(value)))
        within = _STEP.sub(
            lambda found: " ".join(
                [
                    _replace_signs(found["left"], values | results),
                    found["sign"],
                    _replace_signs(found["right"], values | results),
                    "=",
                    results[found["result"]],
                ]
            ),
            rationale,
        )
        written = {sign: number.written for sign, number in self.numbers.items()}
        return _replace_signs(within, written | results).replace("$ ", "$")

    def unused_in(self, equation: str) -> tuple[int | float, ...]:
        """Return the numbers of the text that do not occur in an equation, in ascending order.

        A part or a percentage also occurs as what is left of or added to a whole, as a quotient, and by the integers of
        its fraction: 25% in 80 / 4, 80 * 75 / 100 and 80 * 1.25.
        """
        apart = re.sub(r"[-+*/%()]", r" \g<0> ", equation)
        written = {abs(found.number.value) for found in find_numbers(apart)[0]}
        computed = values_in(equation)

        def is_used(number: Number) -> bool:
            if abs(number.value) in written:
                return True
            share = abs(number.value) / (100 if number.is_percentage else 1)
            return (number.is_percentage or share.denominator > 1) and any(
                float(one) in computed or 100 * one in written or {one.numerator, one.denominator} - {1} <= written
                for one in (share, 1 - share, 1 + share)
            )

        unused = [one for one in self.numbers.values() if not one.may_be_pronoun and not is_used(one)]
        return tuple(int(one.value) if one.value.denominator == 1 else float(one.value) for one in unused)


def hide_numbers(text: str) -> HiddenNumbers:
    """Replace the numbers of a text by signs."""
    text = in_shares(text)
    distinct: dict[Fraction, Number] = {}
    found, unread = find_numbers(text)
    for number in sorted((one.number for one in found), key=lambda number: not number.is_percentage):
        distinct.setdefault(number.value, number)
    ascending = sorted(distinct.values(), key=lambda number: number.value)
    numbers = dict(zip(SLOTS, ascending, strict=False))
    signs = {number.value: sign for sign, number in numbers.items()}
    return HiddenNumbers(_substitute(text, lambda number: signs.get(number.value)), numbers, tuple(unread))


def in_canonical_order(equation: str) -> str:
    """Put the operands of + and * in one order: calculations first, then signs in ascending order, then constants.

    `equation` has spaces between all parts, and parentheses around each operation; another text is unchanged. A student
    then learns one equation for each value instead of several.
    """
    stack: list[list[str]] = [[]]
    for part in equation.split():
        if part == "(":
            stack.append([])
        elif part == ")" and len(stack) > 1 and len(stack[-1]) == 3:
            left, sign, right = stack.pop()
            if sign in "+*":
                left, right = sorted((left, right), key=_rank)
            stack[-1].append(f"( {left} {sign} {right} )")
        else:
            stack[-1].append(part)
    return stack[0][0] if len(stack) == 1 and len(stack[0]) == 1 else equation


def _rank(operand: str) -> tuple[int, str]:
    return (0 if operand.startswith("(") else 1 if operand in SLOTS else 2), operand


def _substitute(text: str, sign_of: Callable[[Number], str | None]) -> str:
    """Replace numbers by signs, each between spaces or punctuation."""
    parts, end = [], 0
    for found in find_numbers(text)[0]:
        sign = sign_of(found.number)
        if sign is None:
            continue
        before, after = text[: found.start], text[found.end :]
        left = " " if before and not before[-1].isspace() else ""
        right = " " if after[:1].isalnum() else ""
        parts += [text[end : found.start], f"{left}{sign}{found.after or right}"]
        end = found.end
    return "".join([*parts, text[end:]])


def _replace_signs(text: str, values: Mapping[str, str]) -> str:
    return re.sub(f"[{SLOTS}{RESULTS}]", lambda found: values.get(found[0], "?"), text)


class SlotTokens:
    """The tokens of a vocabulary that write number slots.

    A student that names a slot without a number would leave a gap in its equation, so that such tokens are left out
    when an answer is decoded.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Find the tokens with signs, and those with parts of a character's bytes."""
        texts = {token: tokenizer.decode([token]) for token in range(len(tokenizer))}
        self._signs = {
            token: frozenset(text) & frozenset(SLOTS + RESULTS)
            for token, text in texts.items()
            if not frozenset(text).isdisjoint(SLOTS + RESULTS)
        }
        self._parts = tuple(token for token, text in texts.items() if BROKEN in text)

    def forbidden(self, input_ids: Iterable[int], *, is_label: bool) -> tuple[int, ...]:
        """Tokens that an answer to this input must not contain; a rationale, but no label, may hold results.

        None are forbidden if the input itself has no sign that is a token, as in a text without numbers or with a
        vocabulary that writes signs as bytes.
        """
        own: frozenset[str] = frozenset().union(*(self._signs.get(token, ()) for token in input_ids))
        if not own:
            return ()
        allowed = own if is_label else own | frozenset(RESULTS)
        return (*(token for token, signs in self._signs.items() if not signs <= allowed), *self._parts)
