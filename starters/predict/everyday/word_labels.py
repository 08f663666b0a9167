"""Labels of the words of a word problem, which follow from its equation.

`role` is what a number does in the equation: its side of an operation and whether this is the first or a later one;
`shared`, whether a word of the question is in the body, and one of the body in the question; `operation`, the last
operation of the equation, at the end of the input.
"""

from collections.abc import Iterator

from services.predict.data.rows import Row
from services.predict.written_numbers import SLOTS
from starters.predict.problems import WORD_PROBLEMS
from starters.predict.spans import Probe, WordLabel, words_of

_SIGNS = ("+", "-", "*", "/", "%")
# The sides of + and * are not told apart.
_SIDES = {"+": ("", ""), "*": ("", ""), "-": ("left ", "right "), "/": ("left ", "right "), "%": ("left ", "right ")}
_ROLES = tuple(
    dict.fromkeys(f"{order} {side}{sign}" for order in ("first", "later") for sign in _SIGNS for side in _SIDES[sign])
)
PROBES = (
    Probe("shared", 2, ("alone", "same")),
    Probe("role", 3, ("unused", "several", *_ROLES)),
    Probe("operation", 3, _SIGNS),
)


def label_words(example: Row) -> Iterator[WordLabel]:
    """Label the words of a problem whose numbers are slots."""
    text = example.input
    middle = text.index(WORD_PROBLEMS.separator)
    body, question = list(words_of(text, 0, middle)), list(words_of(text, middle))
    roles, last = _roles(example.label)
    for words, others in ((body, question), (question, body)):
        texts = {word.text for word in others}
        for word in words:
            if word.text in SLOTS:
                yield WordLabel(word.start, word.end, "role", roles.get(word.text, "unused"))
            else:
                yield WordLabel(word.start, word.end, "shared", "same" if word.text in texts else "alone")
    if last is not None:
        yield WordLabel(len(text), len(text), "operation", last)


def _roles(equation: str) -> tuple[dict[str, str], str | None]:
    """The role of each number of an equation with all parentheses, and its last operation."""
    roles: dict[str, str] = {}
    stack: list[list[str]] = [[]]
    last = None
    for part in equation.split():
        if part == "(":
            stack.append([])
        elif part == ")" and len(stack) > 1 and len(stack[-1]) == 3 and stack[-1][1] in _SIDES:
            left, last, right = stack.pop()
            order = "later" if "" in (left, right) else "first"
            for side, operand in zip(_SIDES[last], (left, right), strict=True):
                if operand in SLOTS and operand:
                    roles[operand] = "several" if operand in roles else f"{order} {side}{last}"
            stack[-1].append("")
        else:
            stack[-1].append(part)
    return roles, last
