"""Everyday word problems: the scenes of this folder with open classes of words and numbers to 10,000.

A problem takes one to three steps. A sentence or a number that is not needed may come before it or after it, and some
problems are written in lower case, with number words or without their last full stop. The rationale names the numbers
with the words that follow them and works the equation out step by step.

Questions about scenes are held out by rule, `is_held_out`: by a digest of a scene's body and the question.
"""

import random
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache

from services.predict.data.rows import Row, TeacherOutput
from starters.predict.everyday import change_scenes, fraction_scenes, group_scenes, two_step_scenes, world_scenes
from starters.predict.everyday.equations import EquationText, step_values, steps_of
from starters.predict.everyday.naming import Names, draw_names, first_person, number_words
from starters.predict.problems import WORD_PROBLEMS

HELD_OUT_SHARE = 23  # one question about a scene of so many
IRRELEVANT_RATE = 0.12
FILLER_RATE = 0.06
LOWER_CASE_RATE = 0.06
TWO_STEP_RATE = 0.35
_ONE_STEP = change_scenes, group_scenes, fraction_scenes, world_scenes
_ALTERNATIVES = re.compile(r"\[([^\[\]]*)\]")
_ORDER = re.compile(r"([a-z])>([a-z])")
_NAME = re.compile(r"\{([^{}]+)\}")
_MONEY = "pqd"
_IRRELEVANT = (
    "{stranger} has {z} {spares}",
    "There are {z} {spares} [on the table|in the garden|nearby|in the room]",
    "{stranger} is {z} years old",
    "[It is|The shop is] {z} minutes away",
    "{stranger} [bought|found|saw|lost] {z} {spares} [yesterday|last week|]",
    "The {spare} costs ${z}",
    "{stranger} called {z} minutes ago",
)


@dataclass(frozen=True)
class Scene:
    """A body, a question and its equation; `orders` are pairs of letters, the greater first."""

    body: str
    question: str
    equation: str
    orders: tuple[tuple[str, str], ...] = ()
    is_large: bool = False
    is_held_out: bool = field(default=False, compare=False)


def is_held_out(text: str, share: int = HELD_OUT_SHARE) -> bool:
    """Whether a text is one of those, one in `share`, that no student learns from."""
    return zlib.crc32(text.encode()) % share == 0


@cache
def scenes() -> tuple[tuple[Scene, ...], tuple[Scene, ...]]:
    """Return all scenes of one step, and those of two or three."""
    one = [scene for module in _ONE_STEP for scene in _parsed(module.SCENES)]
    return tuple(one), tuple(_parsed(two_step_scenes.SCENES))


def _parsed(text: str) -> Iterator[Scene]:
    joined = re.sub(r"\n +(?=\S)", " ", text.strip())
    for line in joined.splitlines():
        if line.startswith("#"):
            continue
        head, *asks = line.split(" ? ")
        body, _, flags = head.partition(" | ")
        for ask in asks:
            question, equation = re.split(r"\s= (?=[^=]*$)", ask.strip())
            pairs = tuple((more, less) for more, less in _ORDER.findall(flags))
            held = is_held_out(f"{body} {question}")
            yield Scene(body, f"{question.strip()}", equation.strip(), pairs, "L" in flags.split(), held)


def draw_everyday_problem(generator: random.Random, *, is_held_out: bool = False) -> Row:
    """Draw a problem of a scene that is held out, or of one that is not."""
    one, more = scenes()
    some = more if generator.random() < TWO_STEP_RATE else one
    while True:
        scene = generator.choice(some)
        if scene.is_held_out == is_held_out:
            row = _written(scene, generator)
            if row is not None:
                return row


def _written(scene: Scene, generator: random.Random) -> Row | None:
    """Write a problem; None if no numbers were found that fit."""
    names = draw_names(generator)
    equation = _expand(scene.equation, generator).replace("{fracn}", names.fixed["fracn"])
    tree = EquationText(equation)
    body, question = (_expand(text, generator) for text in (scene.body, scene.question))
    if question in ("{left}", "{now}"):
        question = _expand(names.word(question[1:-1], generator), generator)
    letters = [name.rstrip("$") for name in _NAME.findall(f"{body} {question}") if len(name.rstrip("$")) == 1]
    if not tree.letters <= set(letters):
        return None
    numbers = _draw_numbers(tree, sorted({one for one in letters if one.islower()}), scene, generator)
    if numbers is None:
        return None
    written = _Writing(numbers, names, generator)
    parts = [written.fill(body)]
    has_number = generator.random() < IRRELEVANT_RATE
    if has_number or generator.random() < FILLER_RATE:
        extra = generator.choice(_IRRELEVANT) if has_number else names.word("filler", generator)
        parts.insert(generator.choice((0, 0, 1)), written.fill(_expand(extra, generator)))
    text = " ".join(_sentences(part) for part in parts if part)
    asked = _sentences(written.fill(question))
    if parts[-1].endswith(","):
        text, asked = f"{text}", asked[:1].lower() + asked[1:]
    label = tree.write(numbers)
    rationale = _rationale(tree, numbers, f"{text} {asked}")
    if generator.random() < LOWER_CASE_RATE:
        text, asked = text.lower(), asked.lower()
    if text.endswith(".") and generator.random() < 0.04:
        text = text[:-1]
    if asked.endswith("?") and generator.random() < 0.03:
        asked = asked[:-1]
    output = TeacherOutput(f"{rationale} The answer is {label}.", rationale, label)
    return Row(WORD_PROBLEMS.input_text({"body": text, "question": asked}), label, output)


def _expand(template: str, generator: random.Random) -> str:
    """Choose the alternatives, the inner ones first."""
    while True:
        chosen = _ALTERNATIVES.sub(lambda found: generator.choice(found[1].split("|")).strip(), template)
        if chosen == template:
            return re.sub(r" +([.,?])", r"\1", re.sub(r"  +", " ", chosen)).strip()
        template = chosen


class _Writing:
    """The words and numbers of one problem."""

    def __init__(self, numbers: Mapping[str, Fraction], names: Names, generator: random.Random) -> None:
        self._numbers = numbers
        self._names = names
        self._generator = generator
        self._has_words = generator.random() < 0.2
        self._has_commas = generator.random() < 0.5
        self._currency = generator.choice(("${}", "${}", "${}", "{} dollars", "{} dollars", "£{}", "€{}", "{} euros"))

    def fill(self, template: str) -> str:
        """Fill in names, words and numbers; words may hold further names."""
        for _ in range(3):
            template = _NAME.sub(lambda found: self._value(found[1]), _expand(template, self._generator))
        return first_person(template) if self._names.fixed["N"] == "I" else template

    def _value(self, name: str) -> str:
        letter = name.rstrip("$")
        if letter not in self._numbers:
            return self._names.word(name, self._generator)
        value = self._numbers[letter]
        if name.endswith("$"):
            shown = f"{float(value):.2f}" if value.denominator > 1 else self._digits(int(value))
            return self._currency.format(shown)
        if value.denominator > 1:
            return f"{float(value):g}"
        if self._has_words and value <= 20 and letter not in "yz":
            return number_words(int(value))
        return str(int(value)) if letter in "yz" and 1800 < value < 2100 else self._digits(int(value))

    def _digits(self, value: int) -> str:
        return f"{value:,}" if self._has_commas else str(value)


def _sentences(text: str) -> str:
    """Begin sentences with capitals, and end the last one."""
    text = re.sub(r"(^|[.?!] )([a-z])", lambda found: found[1] + found[2].upper(), text)
    text = re.sub(r"\b(Mr|Mrs|Ms|Dr)\. +", r"\1. ", text)
    return text if text.endswith((".", "?", ",", "!")) else f"{text}."


def _draw_numbers(
    tree: EquationText, letters: list[str], scene: Scene, generator: random.Random
) -> dict[str, Fraction] | None:
    """Draw distinct numbers for which every step's value is above 0 and whole, or an amount of money."""
    top = 9_999 if scene.is_large else generator.choice((20, 30, 60, 100, 100, 300, 1_000, 10_000))
    has_cents = generator.random() < 0.3
    for _ in range(60):
        numbers = {letter: _draw_number(letter, top, generator, has_cents=has_cents) for letter in letters}
        tree.make_divisible(numbers, generator)
        numbers["z"] = numbers.get("z", Fraction(generator.randint(2, 60)))
        values = step_values(tree, numbers)
        is_distinct = len(set(numbers.values()) | tree.constants) == len(numbers) + len(tree.constants)
        in_order = all(numbers[more] > numbers[less] for more, less in scene.orders if {more, less} <= set(letters))
        is_money = any(letter in _MONEY for letter in letters)
        is_exact = all(value.denominator == 1 or (is_money and 100 % value.denominator == 0) for value in values)
        if is_distinct and in_order and is_exact and values and all(0 < value < 10**8 for value in values):
            return numbers
    return None


def _draw_number(letter: str, top: int, generator: random.Random, *, has_cents: bool) -> Fraction:
    if letter in "yz":
        return Fraction(generator.randint(1850, 2060))
    if letter in "kn":
        return Fraction(
            generator.choice((generator.randint(2, 12), generator.randint(2, 12), generator.randint(2, 60)))
        )
    if letter == "b" and top > 100 and generator.random() < 0.5:
        top = 100
    value = Fraction(generator.randint(2, top))
    if letter in _MONEY and has_cents and top <= 100:
        return value + Fraction(generator.choice((5, 10, 25, 50, 50, 75, 95, 99, 20, 40)), 100)
    return value


_WORDS = {
    "+": ("{0} and {1}: add them, <>.", "Together that is <>.", "{1} come to {0}, so <>."),
    "-": ("Take {1} from {0}: <>.", "The difference of {0} and {1} is <>.", "{0} less {1} is <>."),
    "*": ("{0} times {1} is <>.", "Multiply {0} by {1}: <>."),
    "/": ("Divide {0} by {1}: <>.", "{0} shared by {1} is <>."),
    "%": ("What is left of {0} after groups of {1} is <>.",),
}


def _rationale(tree: EquationText, numbers: Mapping[str, Fraction], text: str) -> str:
    """Work out an equation, naming its numbers with the words that follow them in the text."""
    parts = []
    for number, step in enumerate(steps_of(tree, numbers)):
        ways = _WORDS[step.sign]
        way = ways[zlib.crc32(text.encode()) % len(ways)]
        named = [_named(operand, text) for operand in (step.left, step.right)]
        sentence = way.format(*named).replace("<>", f"{step.left} {step.sign} {step.right} = {step.value}")
        parts.append(sentence if number == 0 or not sentence[0].islower() else sentence.capitalize())
    return " ".join(parts)


def _named(number: str, text: str) -> str:
    found = re.search(rf"(?<![\d.,]){re.escape(number)} ([a-z]+)", text)
    skipped = (
        "and",
        "in",
        "on",
        "to",
        "for",
        "of",
        "is",
        "are",
        "each",
        "per",
        "more",
        "from",
        "with",
        "has",
        "a",
        "or",
    )
    return f"{number} {found[1]}" if found and found[1] not in skipped else number
