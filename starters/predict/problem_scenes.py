"""Scenes of the generated word problems, in words.

Templates are those of `drawing`. `{name}` and `{other}` are people, `{he}` is the first of them, `{things}` and
`{extras}` are kinds of things, `{one}` and `{two}` two qualities, `{boxes}` hold things; single letters are numbers,
`{m}` is the value of a first step. In rationales, `<a + b>` becomes `a + b = ` and its value.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ask:
    """A question about a scene, the equation that answers it, and the rationale; `first` is its first step."""

    question: str
    equation: str
    reason: str
    first: str | None = None


@dataclass(frozen=True)
class Scene:
    """A problem's body, the ranges of its random numbers, the numbers derived from them, and the possible questions."""

    name: str
    body: str
    numbers: Mapping[str, tuple[int, int]]
    asks: tuple[Ask, ...]
    derived: Mapping[str, str]


def _scene(name: str, body: str, numbers: Mapping[str, tuple[int, int]], *asks: Ask, **derived: str) -> Scene:
    return Scene(name, body, numbers, asks, derived)


SMALL, TENS, LARGE = (2, 9), (11, 29), (40, 89)

PEOPLE = (
    *(("Ada", "she"), ("Bea", "she"), ("Clara", "she"), ("Dora", "she"), ("Emma", "she"), ("Faye", "she")),
    *(("Gina", "she"), ("Hanna", "she"), ("Julia", "she"), ("Mary", "she"), ("Olga", "she"), ("Rosa", "she")),
    *(("Adam", "he"), ("Bruno", "he"), ("Carl", "he"), ("Dave", "he"), ("Ed", "he"), ("Frank", "he")),
    *(("Hugo", "he"), ("Ivan", "he"), ("Luke", "he"), ("Paco", "he"), ("Tom", "he"), ("Victor", "he")),
)
THINGS = tuple(
    (f"{thing}s", thing)
    for words in (
        "melon pear plum lemon cookie muffin pencil crayon marker ruler book card stamp coin marble button shell stone",
        "bead ribbon sticker ticket balloon candle flower rose tulip seed nut walnut bottle cup plate spoon ball kite",
        "doll block puzzle whistle",
    )
    for thing in words.split()
)
BOXES = (("boxes", "box"), ("bags", "bag"), ("jars", "jar"), ("baskets", "basket"), ("drawers", "drawer"))
QUALITIES = ("red", "blue", "green", "small", "large", "old", "new", "plain", "white", "black")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

# A sentence before or after a problem, and why its number is not needed; `{spare}` and `{stranger}` occur nowhere else
# in the problem.
IRRELEVANT = (
    ("{stranger} [has|owns|counted] {z} {spare}.", "The {z} {spare} [do not matter|are not asked for]."),
    (
        "There are {z} {spare} [on the table|in the garden].",
        "The {z} {spare} [do not matter|are not asked for].",
    ),
    ("{stranger} [is|will soon be] {z} years old.", "The age of {stranger} does not matter."),
    ("{stranger} [came|left|called] {z} minutes ago.", "The {z} minutes do not matter."),
)

SCENES = (
    _scene(
        "give and find",
        "{name} had {a} {things}. {He} [gave {b} of them to {other}|lost {b} of them|sold {b} of them]. Then {he}"
        " [found|bought|was given] {c} more.",
        {"a": LARGE, "b": TENS, "c": SMALL},
        Ask(
            "How many {things} does {name} have [now|in the end]?",
            "( ( {a} - {b} ) + {c} )",
            "{name} had {a} {things} and {b} went away, so <{a} - {b}> were left. Then {c} came, and <{m} + {c}>.",
            "{a} - {b}",
        ),
        Ask(
            "How many {things} were left [before {he} got more|when the others were gone]?",
            "( {a} - {b} )",
            "{name} had {a} {things} and {b} went away. The {c} came later. So <{a} - {b}> were left.",
        ),
    ),
    _scene(
        "two kinds",
        "{name} [had|picked|made] {a} {one} {things} and {b} {two} {things}. {He} [gave away|lost|used up] {c} of the"
        " {one} {things}.",
        {"a": (30, 59), "b": TENS, "c": SMALL},
        Ask(
            "How many {one} {things} [are left|does {name} still have]?",
            "( {a} - {c} )",
            "There were {a} {one} {things} and {c} are gone. The {two} ones are not asked for. So"
            " <{a} - {c}> are left.",
        ),
        Ask(
            "How many {things} does {name} [have left in all|still have altogether]?",
            "( ( {a} + {b} ) - {c} )",
            "There were {a} {one} and {b} {two} {things}, which is <{a} + {b}>. {c} are gone, so <{m} - {c}> are left.",
            "{a} + {b}",
        ),
        Ask(
            "How many more {one} than {two} {things} were there [at first|in the beginning]?",
            "( {a} - {b} )",
            "At first there were {a} {one} and {b} {two} {things}. What was gone later is not asked for. So there were"
            " <{a} - {b}> more {one} ones.",
        ),
    ),
    _scene(
        "boxes",
        "{name} [has|filled|packed] {a} {boxes}. [Each {box} holds|In each {box} are|There are in each {box}] {b}"
        " {things} and {c} {extras}.",
        {"a": SMALL, "b": (3, 12), "c": (3, 12)},
        Ask(
            "How many {things} [are there|does {name} have]?",
            "( {a} * {b} )",
            "There are {a} {boxes} with {b} {things} each. The {extras} are not asked for. So there are <{a} * {b}>"
            " {things}.",
        ),
        Ask(
            "How many {extras} [are there|does {name} have]?",
            "( {a} * {c} )",
            "There are {a} {boxes} with {c} {extras} each. The {things} are not asked for. So there are <{a} * {c}>"
            " {extras}.",
        ),
        Ask(
            "How many {things} and {extras} [are there together|does {name} have in all]?",
            "( {a} * ( {b} + {c} ) )",
            "In each {box} are {b} {things} and {c} {extras}, which is <{b} + {c}>. There are {a} {boxes}, so there are"
            " <{a} * {m}> in all.",
            "{b} + {c}",
        ),
    ),
    _scene(
        "loose ones",
        "{name} [has|bought|found] {a} {boxes} of {things} with {b} {things} in each, and {c} {things} [lie loose|are"
        " loose|are in no {box}].",
        {"a": SMALL, "b": (3, 12), "c": TENS},
        Ask(
            "How many {things} are there [in all|altogether]?",
            "( ( {a} * {b} ) + {c} )",
            "{a} {boxes} with {b} {things} each hold <{a} * {b}>. The {c} loose ones come to them, so there are"
            " <{m} + {c}>.",
            "{a} * {b}",
        ),
        Ask(
            "How many {things} are in the {boxes}?",
            "( {a} * {b} )",
            "There are {a} {boxes} with {b} {things} each. The loose ones are not asked for. So there are <{a} * {b}>.",
        ),
    ),
    _scene(
        "more than",
        "{name} has {a} {things}. {other} has {b} more {things} than {name}.",
        {"a": TENS, "b": SMALL},
        Ask(
            "How many {things} does {other} have?",
            "( {a} + {b} )",
            "{name} has {a} {things} and {other} has {b} more than that. So {other} has <{a} + {b}>.",
        ),
        Ask(
            "How many {things} do [they|{name} and {other}] have together?",
            "( {a} + ( {a} + {b} ) )",
            "{name} has {a} {things} and {other} has {b} more, which is <{a} + {b}>. Together they have <{a} + {m}>.",
            "{a} + {b}",
        ),
    ),
    _scene(
        "fewer than",
        "{name} has {a} {things}. {other} has {b} [fewer|less] {things} than {name}.",
        {"a": TENS, "b": SMALL},
        Ask(
            "How many {things} does {other} have?",
            "( {a} - {b} )",
            "{name} has {a} {things} and {other} has {b} fewer than that. So {other} has <{a} - {b}>.",
        ),
        Ask(
            "How many {things} do [they|{name} and {other}] have together?",
            "( {a} + ( {a} - {b} ) )",
            "{name} has {a} {things} and {other} has {b} fewer, which is <{a} - {b}>. Together they have <{a} + {m}>.",
            "{a} - {b}",
        ),
    ),
    _scene(
        "which is more than",
        "{name} has {a} {things}, which is {b} more than {other} has.",
        {"a": TENS, "b": SMALL},
        Ask(
            "How many {things} does {other} have?",
            "( {a} - {b} )",
            "{name} has {b} more {things} than {other}, so {other} has {b} fewer than {a}. So {other} has <{a} - {b}>.",
        ),
    ),
    _scene(
        "which is fewer than",
        "{name} has {a} {things}, which is {b} [fewer|less] than {other} has.",
        {"a": TENS, "b": SMALL},
        Ask(
            "How many {things} does {other} have?",
            "( {a} + {b} )",
            "{name} has {b} fewer {things} than {other}, so {other} has {b} more than {a}. So {other} has <{a} + {b}>.",
        ),
    ),
    _scene(
        "unknown start",
        "{name} gave {a} {things} to {other} and [kept|still has] {b} {things}. {other} already had {c} {things}.",
        {"a": TENS, "b": (30, 59), "c": SMALL},
        Ask(
            "How many {things} did {name} have [at first|in the beginning]?",
            "( {b} + {a} )",
            "{name} has {b} {things} left after {a} went to {other}, so {name} had <{b} + {a}> at first.",
        ),
        Ask(
            "How many {things} does {other} have [now|in the end]?",
            "( {c} + {a} )",
            "{other} had {c} {things} and got {a} from {name}, so {other} has <{c} + {a}> now.",
        ),
    ),
    _scene(
        "unknown change",
        "There were {a} {things} in the shop in the morning. [Some|A few] were sold to {name} and [the others|the rest]"
        " to {other}. In the evening {b} {things} were left. {name} had bought {c} {things}.",
        {"a": LARGE, "b": TENS, "c": SMALL},
        Ask(
            "How many {things} were sold [that day|in all]?",
            "( {a} - {b} )",
            "There were {a} {things} and {b} were left. Who bought them is not asked for. So <{a} - {b}> were sold.",
        ),
        Ask(
            "How many {things} did {other} buy?",
            "( ( {a} - {b} ) - {c} )",
            "There were {a} {things} and {b} were left, so <{a} - {b}> were sold. {name} bought {c} of them, so {other}"
            " bought <{m} - {c}>.",
            "{a} - {b}",
        ),
    ),
    _scene(
        "share",
        "{name} had {t} {things}. {l} of them [broke|got lost|were no good]. {He} [put the others into|shared the"
        " others out among] {k} {boxes}, [as many in each|the same number in each].",
        {"k": SMALL, "q": (3, 9), "l": TENS},
        Ask(
            "How many {things} are in each {box}?",
            "( ( {t} - {l} ) / {k} )",
            "Of {t} {things} {l} are gone, so <{t} - {l}> are left. They go into {k} {boxes}, so there are <{m} / {k}>"
            " in each.",
            "{t} - {l}",
        ),
        Ask(
            "How many {things} are in the {boxes} [together|in all]?",
            "( {t} - {l} )",
            "Of {t} {things} {l} are gone. The number of {boxes} is not asked for. So <{t} - {l}> are in them.",
        ),
        t="{k} * {q} + {l}",
    ),
    _scene(
        "divide",
        "{name} [split|divided] {t} {things} evenly into {k} {boxes}. {other} [has|owns] {l} {boxes}.",
        {"k": SMALL, "q": (3, 9), "l": TENS},
        Ask(
            "How many {things} are in each {box} of {name}?",
            "( {t} / {k} )",
            "{t} {things} go into {k} {boxes}. The {boxes} of {other} are not asked for. So there are <{t} / {k}> in"
            " each.",
        ),
        Ask(
            "How many {boxes} do {name} and {other} have together?",
            "( {k} + {l} )",
            "{name} has {k} {boxes} and {other} has {l}. What is in them is not asked for. So they have <{k} + {l}>.",
        ),
        t="{k} * {q}",
    ),
    _scene(
        "shopping",
        "A {thing} costs {p} dollars and a {extra} costs {q} dollars. {name} bought {n} {things} and paid with"
        " {d} dollars.",
        {"p": (3, 12), "q": (13, 19), "n": (2, 7), "d": (90, 99)},
        Ask(
            "How [much do|many dollars do] the {things} of {name} cost?",
            "( {n} * {p} )",
            "{name} bought {n} {things} for {p} dollars each. The {extra} is not asked for. So they cost <{n} * {p}>.",
        ),
        Ask(
            "How [much does|many dollars does] {name} get back?",
            "( {d} - ( {n} * {p} ) )",
            "{n} {things} for {p} dollars each cost <{n} * {p}>. {name} paid with {d}, so {he} gets back <{d} - {m}>.",
            "{n} * {p}",
        ),
        Ask(
            "How [much does it|many dollars does it] cost to buy one {thing} and one {extra}?",
            "( {p} + {q} )",
            "A {thing} costs {p} and a {extra} costs {q}. What {name} bought is not asked for. So both cost"
            " <{p} + {q}>.",
        ),
        Ask(
            "How much more does a {extra} cost than a {thing}?",
            "( {q} - {p} )",
            "A {extra} costs {q} and a {thing} costs {p}. What {name} bought is not asked for. So the difference is"
            " <{q} - {p}>.",
        ),
    ),
    _scene(
        "days",
        "{name} [sold|counted|collected] {a} {things} on {first}, {b} {things} on {second} and {c} {things} on"
        " {third}.",
        {"a": (30, 49), "b": TENS, "c": SMALL},
        Ask(
            "How many {things} were there on {first} and {third} [together|in all]?",
            "( {a} + {c} )",
            "There were {a} on {first} and {c} on {third}. {second} is not asked for. So there were <{a} + {c}>.",
        ),
        Ask(
            "How many more {things} were there on {second} than on {third}?",
            "( {b} - {c} )",
            "There were {b} on {second} and {c} on {third}. {first} is not asked for. So there were <{b} - {c}> more.",
        ),
        Ask(
            "How many more {things} were there on {first} than on {second}?",
            "( {a} - {b} )",
            "There were {a} on {first} and {b} on {second}. {third} is not asked for. So there were <{a} - {b}> more.",
        ),
        Ask(
            "How many {things} were there on [the three days|all three days together]?",
            "( ( {a} + {b} ) + {c} )",
            "There were {a} on {first} and {b} on {second}, which is <{a} + {b}>. With {c} on {third} there were"
            " <{m} + {c}>.",
            "{a} + {b}",
        ),
    ),
    _scene(
        "times as many",
        "{name} has {k} times as many {things} as {other}. {other} has {a} {things} and {b} {extras}.",
        {"k": (3, 7), "a": (8, 12), "b": TENS},
        Ask(
            "How many {things} does {name} have?",
            "( {k} * {a} )",
            "{other} has {a} {things} and {name} has {k} times as many. The {extras} are not asked for. So {name} has"
            " <{k} * {a}>.",
        ),
        Ask(
            "How many {things} and {extras} does {other} have [together|in all]?",
            "( {a} + {b} )",
            "{other} has {a} {things} and {b} {extras}. What {name} has is not asked for. So {other} has <{a} + {b}>.",
        ),
        Ask(
            "How many more {things} does {name} have than {other}?",
            "( ( {k} * {a} ) - {a} )",
            "{other} has {a} {things} and {name} has {k} times as many, which is <{k} * {a}>. So {name} has <{m} - {a}>"
            " more.",
            "{k} * {a}",
        ),
    ),
    _scene(
        "bus",
        "{a} people were on a [bus|train|ship]. At the first stop {b} people got off and {c} people got on.",
        {"a": LARGE, "b": TENS, "c": SMALL},
        Ask(
            "How many people are on it now?",
            "( ( {a} - {b} ) + {c} )",
            "{a} people were on it and {b} got off, so <{a} - {b}> stayed. Then {c} got on, and <{m} + {c}>.",
            "{a} - {b}",
        ),
        Ask(
            "How many more people got off than on?",
            "( {b} - {c} )",
            "{b} people got off and {c} got on. Who was on it is not asked for. So <{b} - {c}> more got off.",
        ),
        Ask(
            "How many people stayed on it when the others got off?",
            "( {a} - {b} )",
            "{a} people were on it and {b} got off. Who got on is not asked for. So <{a} - {b}> stayed.",
        ),
    ),
)
