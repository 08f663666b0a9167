"""Number slots: the numbers of a text as signs that a student copies, so that it never computes with digits.

The distinct numbers of a text, in ascending order, become ①, ②, … and the results of a rationale's steps ❶, ❷, …:

    Ann had 24 figs. She ate three.       Ann had ② figs. She ate ①.
    ( 24 - 3 )                            ( ② - ① )
    24 figs less 3 are 24 - 3 = 21.       ② figs less ① are ② - ① = ❶.

The order tells a student which number is greater, and equal numbers share a sign. Numbers are digits, with thousands
separators and decimals, fractions of two integers, and English number words. An ordinal ("2nd", "third"), a number
within a name ("B12"), and "one" as a pronoun ("each one") are none. Numbers beyond the last sign stay as they are.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from services.predict.arithmetic import evaluate

SLOTS = "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳"
RESULTS = "❶❷❸❹❺❻❼❽❾❿"
BROKEN = "\N{REPLACEMENT CHARACTER}"  # a token that is only some bytes of a character decodes to this

_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_POWERS = {"hundred": 100, "thousand": 1_000, "million": 1_000_000}
_VALUES = {word: value for value, word in enumerate(_UNITS)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
_TO_19 = "|".join(sorted(_UNITS, key=len, reverse=True))
_TO_99 = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_UNITS[1:10])})\b)?|{_TO_19})"
_TO_999 = rf"(?:(?:{_TO_99}|a) hundred(?: (?:and )?{_TO_99}\b)?|{_TO_99})"
_WORDS = rf"(?:(?:{_TO_999}|a) (?:thousand|million)(?:,? (?:and )?{_TO_999}\b)?|{_TO_999})"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?"
_NUMBER = re.compile(
    rf"(?P<signs>[{SLOTS}{RESULTS}])"
    rf"|(?<![\w.])(?P<fraction>[0-9]{{1,3}}/[1-9][0-9]{{0,2}})(?![\w/])"
    rf"|(?<![\w.])(?P<digits>{_DIGITS})(?!st\b|nd\b|rd\b|th\b|[0-9])"
    rf"|\b(?P<words>{_WORDS})\b(?!-(?!year|day|hour|minute|week|month|mile|foot|page|dollar|pound))",
    re.IGNORECASE,
)
_NOT_NUMBERS = re.compile(
    r"(?:the|each|every|any|no|this|that|which|another|last|first|next|some|only)(?: (?:\w+))? $", re.IGNORECASE
)
_STEP = re.compile(rf"(?P<left>\S+) (?P<sign>[-+*/%]|//) (?P<right>\S+) = (?P<result>[{RESULTS}])")
_CALCULATION = re.compile(r"(?P<step>(?:[0-9.]+) (?:[-+*/%]|//) (?:[0-9.]+)) = (?P<result>[0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Number:
    """A number of a text: its `value`, as the text writes it, and as an equation writes it."""

    value: Fraction
    written: str
    equation: str

    @property
    def may_be_pronoun(self) -> bool:
        return self.written.lower() == "one"


@dataclass(frozen=True)
class HiddenNumbers:
    """A text whose numbers are signs, and the numbers by sign, in ascending order."""

    text: str
    numbers: Mapping[str, Number]

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
            results.setdefault(found["result"], "?" if value is None else _plain(Fraction(value)))
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
        """Return the numbers of the text that do not occur in an equation of real numbers, in ascending order."""
        used = {number.value for _, number in _found(equation)}
        unused = [number.value for number in self.numbers.values() if not number.may_be_pronoun]
        return tuple(int(value) if value.denominator == 1 else float(value) for value in unused if value not in used)


def hide_numbers(text: str) -> HiddenNumbers:
    """Replace the numbers of a text by signs."""
    distinct: dict[Fraction, Number] = {}
    for _, number in _found(text):
        distinct.setdefault(number.value, number)
    ascending = sorted(distinct.values(), key=lambda number: number.value)
    numbers = dict(zip(SLOTS, ascending, strict=False))
    signs = {number.value: sign for sign, number in numbers.items()}
    return HiddenNumbers(_substitute(text, lambda number: signs.get(number.value)), numbers)


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
    for found, number in _found(text):
        sign = sign_of(number)
        if sign is None:
            continue
        before, after = text[: found.start()], text[found.end() :]
        left = " " if before and not before[-1].isspace() else ""
        right = " " if after[:1].isalnum() else ""
        parts += [text[end : found.start()], f"{left}{sign}{right}"]
        end = found.end()
    return "".join([*parts, text[end:]])


def _found(text: str) -> list[tuple[re.Match[str], Number]]:
    """Find the numbers of a text. A sign that somebody typed is the number that it shows."""
    found = []
    for match in _NUMBER.finditer(text):
        number = _number(match)
        before = text[max(0, match.start() - 24) : match.start()]
        if not (number.may_be_pronoun and _NOT_NUMBERS.search(before)):
            found.append((match, number))
    return found


def _number(found: re.Match[str]) -> Number:
    written = found[0]
    if found["signs"]:
        value = Fraction((SLOTS.find(written) if written in SLOTS else RESULTS.find(written)) + 1)
    elif found["fraction"]:
        above, below = written.split("/")
        return Number(Fraction(int(above), int(below)), written, f"( {above} / {below} )")
    elif found["digits"]:
        value = Fraction(written.replace(",", ""))
        return Number(value, written, re.sub(r"^0+(?=[0-9])", "", written.replace(",", "")))
    else:
        value = Fraction(_value_of(written.lower()))
    return Number(value, written, _plain(value))


def _value_of(words: str) -> int:
    """The value of number words such as "two hundred and fifty-three"."""
    total = part = 0
    for word in re.findall(r"[a-z]+", words):
        if word in _POWERS:
            power = _POWERS[word]
            part = max(part, 1) * power
            if power > 100:
                total, part = total + part, 0
        elif word not in ("a", "and"):
            part += _VALUES[word]
    return total + part


def _plain(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.10g}"


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
