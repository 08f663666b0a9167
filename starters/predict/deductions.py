"""Generated deductions: inferences that need several sentences of the premise, with the steps as rationales.

Four kinds: orders (who is taller, who came before whom), places (what is in what), groups (all painters are singers, no
singer is a sailor) and amounts (23 coins are more than 14). Several sentences of the premise imply the hypothesis, its
opposite, or neither. The three labels are equally likely in every kind, and their premises are drawn in the same way,
so that only reasoning distinguishes them.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from services.predict.data.rows import Row, TeacherOutput
from services.predict.tasks import EOS, ESNLI, Task
from starters.predict.drawing import capitalised, write
from starters.predict.problem_scenes import PEOPLE, THINGS

DEDUCTIONS = Task("deductions", ("premise", "hypothesis"), EOS, labels=ESNLI.labels)

Label = Literal["entailment", "neutral", "contradiction"]
_LABELS: tuple[Label, ...] = ("entailment", "neutral", "contradiction")

NAMES = tuple(name for name, _ in PEOPLE)
ORDERS = (
    ("is taller than", "is shorter than"),
    ("is older than", "is younger than"),
    ("is faster than", "is slower than"),
    ("is stronger than", "is weaker than"),
    ("came before", "came after"),
    ("lives north of", "lives south of"),
)
OBJECTS = ("key", "ring", "coin", "pen", "stone", "letter", "button", "watch", "ball", "stamp")
PLACES = ("box", "bag", "drawer", "basket", "chest", "jar", "case", "car", "shed", "cellar", "tent", "wagon")
TRADES = ("painter", "singer", "baker", "sailor", "teacher", "farmer", "doctor", "miner", "poet", "hunter", "judge")


# Indices among four trades in a row: the trade in the premise and the trade in the hypothesis.
_QUESTIONS = ((0, 1), (0, 2), (1, 3), (0, 3), (3, 2), (3, 1), (2, 0), (3, 0))


@dataclass(frozen=True)
class _Deduction:
    premise: list[str]
    hypothesis: str
    label: Label
    reasons: list[str]


def draw_deduction(generator: random.Random) -> Row:
    """Draw a deduction from the generator."""
    draw, label = generator.choice(_KINDS), generator.choice(_LABELS)
    while (drawn := draw(generator)).label != label:
        pass
    generator.shuffle(drawn.premise)
    values = {"premise": " ".join(map(_sentence, drawn.premise)), "hypothesis": _sentence(drawn.hypothesis)}
    rationale = " ".join(map(_sentence, [*drawn.reasons, write(_ENDS[label], {}, generator)]))
    output = TeacherOutput(f"{rationale} So the answer is {label}.", rationale, label)
    return Row(DEDUCTIONS.input_text(values), label, output)


_ENDS: Mapping[Label, str] = {
    "entailment": "[that is what is said|so it is true|it follows]",
    "neutral": "[so it may be true or not|so it is left open|nobody can tell]",
    "contradiction": "[that is not what is said|so it is false|it cannot be true]",
}


def _sentence(words: str) -> str:
    return f"{capitalised(words)}."


def _label(is_true: bool | None) -> Label:
    if is_true is None:
        return "neutral"
    return "entailment" if is_true else "contradiction"


def _orders(generator: random.Random) -> _Deduction:
    """Draw four people in a row, each compared with the next in either direction; the hypothesis compares two."""
    more, less = generator.choice(ORDERS)
    people = generator.sample(NAMES, 4)
    is_down = [generator.random() < 0.5 for _ in range(3)]  # whether each is more than the next
    pairs = [(a, b) if down else (b, a) for a, b, down in zip(people, people[1:], is_down, strict=False)]
    start, stop = generator.choice([(0, 2), (1, 3), (0, 3)])
    used = pairs[start:stop]
    ends = (people[start], people[stop])
    order = None  # the two people of the hypothesis, the higher one first
    if len(set(is_down[start:stop])) == 1:
        order = ends if is_down[start] else ends[::-1]
        used = used if is_down[start] else used[::-1]
    asked = ends if generator.random() < 0.5 else ends[::-1]
    says_more = generator.random() < 0.5
    reasons = [f"{a} {more} {b}" for a, b in used]
    if order is None:
        reasons.append(f"that does not compare {ends[0]} with {ends[1]}")
    else:
        reasons.append(f"so {order[0]} {more} {order[1]}")
    return _Deduction(
        [f"{a} {more} {b}" if generator.random() < 0.5 else f"{b} {less} {a}" for a, b in pairs],
        f"{asked[0]} {more if says_more else less} {asked[1]}",
        _label(None if order is None else (asked == order) == says_more),
        reasons,
    )


def _places(generator: random.Random) -> _Deduction:
    """Draw two things in nested places, three and two; the hypothesis says that one is, or is not, in one of these."""
    thing, other = generator.sample(OBJECTS, 2)
    places = generator.sample(PLACES, 5)
    around = {thing: places[:3], other: places[3:]}  # the places of each thing, the innermost first
    asked = generator.choice([thing, other])
    place = generator.choice([*around[thing][1:], *around[other][1:]])
    is_denied = generator.random() < 0.5
    chain = [asked, *around[asked]]
    is_in = place in chain
    steps = list(zip(chain, chain[1 : chain.index(place) + 1] if is_in else chain[1:], strict=False))
    reasons = [f"the {inner} is in the {outer}" for inner, outer in steps]
    if is_in:
        reasons.append(f"so the {asked} is in the {place}")
    else:
        reasons.append(f"where the {chain[-1]} is and what is in the {place} besides is not told")
    return _Deduction(
        [f"the {inner} is in the {outer}" for whole in around for inner, outer in _links([whole, *around[whole]])],
        f"the {asked} is {'not ' if is_denied else ''}in the {place}",
        _label(not is_denied if is_in else None),
        reasons,
    )


def _links(chain: list[str]) -> list[tuple[str, str]]:
    return list(pairwise(chain))


def _groups(generator: random.Random) -> _Deduction:
    """Draw four trades linked by rules; the premise assigns a person one trade, or not, the hypothesis another."""
    name = generator.choice(NAMES)
    trades = generator.sample(TRADES, 4)
    rules = []
    for pair in _links(trades):
        first, second = pair if generator.random() < 0.5 else pair[::-1]
        rules.append(_Rule(first, second, is_positive=generator.random() < 0.7))
    start, stop = generator.choice(_QUESTIONS)
    way = 1 if start < stop else -1
    is_told, says = generator.random() < 0.8, generator.random() < 0.5
    reasons = [f"{name} {_is(is_told)} a {trades[start]}"]
    known: bool | None = is_told
    for at in range(start, stop, way):
        rule = rules[min(at, at + way)]
        trade, following = trades[at], trades[at + way]
        now = rule.follow(trade, is_true=bool(known))
        if now is None:
            reasons.append(f"{rule.text}, but that tells nothing of one who {_is(bool(known))} a {trade}")
            known = None
            break
        reasons.append(f"{rule.text}, so {name} {_is(now)} a {following}")
        known = now
    return _Deduction(
        [*(rule.text for rule in rules), reasons[0]],
        f"{name} {_is(says)} a {trades[stop]}",
        _label(None if known is None else known == says),
        reasons,
    )


def _is(is_true: bool) -> str:
    return "is" if is_true else "is not"


@dataclass(frozen=True)
class _Rule:
    """Rule that all members of the first trade are members of the second, or that none are."""

    first: str
    second: str
    is_positive: bool

    @property
    def text(self) -> str:
        return f"all {self.first}s are {self.second}s" if self.is_positive else f"no {self.first} is a {self.second}"

    def follow(self, trade: str, *, is_true: bool) -> bool | None:
        """Conclude from membership of one trade whether the other applies; None if nothing follows."""
        if not self.is_positive:
            return False if is_true else None
        if (trade == self.first) == is_true:
            return is_true
        return None


def _amounts(generator: random.Random) -> _Deduction:
    """Draw two people with counts, and two others with more, fewer or as many as one of them; two are compared."""
    first, second, *others = generator.sample(NAMES, 4)
    things, _ = generator.choice(THINGS)
    few = generator.randint(11, 90)
    counts = dict(zip((first, second), generator.sample([few, generator.randint(few + 2, 99)], 2), strict=True))
    signs = {other: generator.choice((1, 0, -1)) for other in others}
    likes = {other: generator.choice((first, second)) for other in others}

    def compared(sign: int, one: str, another: str) -> str:
        return f"{one} has {('as many', 'more', 'fewer')[sign]} {things} {'than' if sign else 'as'} {another}"

    asked = generator.choice(others)
    like = likes[asked]
    rival = second if like == first else first
    known = 1 if counts[like] > counts[rival] else -1
    is_open = signs[asked] == -known
    reasons = [
        f"{like} has {counts[like]} {things} and {rival} has {counts[rival]}, and {counts[like]} is"
        f" {'more' if known > 0 else 'fewer'} than {counts[rival]}",
        compared(signs[asked], asked, like),
        f"that may be more or fewer than {rival} has" if is_open else f"so {compared(known, asked, rival)}",
    ]
    said = generator.choice((1, -1))
    pair = (asked, rival) if generator.random() < 0.5 else (rival, asked)
    is_so = said == (known if pair[0] == asked else -known)
    return _Deduction(
        [
            *(f"{person} has {count} {things}" for person, count in counts.items()),
            *(compared(signs[other], other, likes[other]) for other in others),
        ],
        compared(said, *pair),
        _label(None if is_open else is_so),
        reasons,
    )


_KINDS: tuple[Callable[[random.Random], _Deduction], ...] = (_orders, _places, _groups, _amounts)
