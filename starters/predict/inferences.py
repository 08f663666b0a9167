"""Generated natural-language inferences about scenes, similar to e-SNLI, with the steps to each label as rationales.

A premise states who does what, and where, and what they wear. A hypothesis restates one or two of these aspects in
wider words (a park is outside), in words that exclude the premise's (a park is not a kitchen) or in narrower ones, or
it states an aspect that the premise leaves out. The rationale has one step for each statement, then combines them: an
excluded one makes a contradiction; otherwise an open one makes it neutral.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from services.predict.data.rows import Row, TeacherOutput
from services.predict.tasks import EOS, ESNLI, Task
from starters.predict.drawing import capitalised, write

INFERENCES = Task("inferences", ("premise", "hypothesis"), EOS, labels=ESNLI.labels)

Label = Literal["entailment", "neutral", "contradiction"]
_LABELS: tuple[Label, ...] = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class Aspect:
    """Words for one aspect of a scene: for exact things, and for wider ones, which include some of the exact things."""

    wider: Mapping[str, tuple[str, ...]]

    @property
    def exact(self) -> tuple[str, ...]:
        """Exact things in order, without duplicates."""
        return tuple(dict.fromkeys(thing for things in self.wider.values() for thing in things))

    def things(self, words: str) -> frozenset[str]:
        """Return the exact things that words may mean."""
        return frozenset(self.wider.get(words, (words,)))

    def relation(self, told: str, said: str) -> Label:
        """Relation of the premise's words to the hypothesis's."""
        told_things, said_things = self.things(told), self.things(said)
        if told_things <= said_things:
            return "entailment"
        return "neutral" if told_things & said_things else "contradiction"


COLOURS = ("red", "blue", "green", "white")
GARMENTS = ("hat", "coat", "scarf", "shirt")
ASPECTS: Mapping[str, Aspect] = {
    "who": Aspect(
        {
            "a child": ("a boy", "a girl"),
            "an adult": ("a man", "a woman"),
            "someone male": ("a boy", "a man"),
            "someone female": ("a girl", "a woman"),
        }
    ),
    "doing": Aspect(
        {
            "resting": ("sleeping", "sitting on a bench", "lying on the floor"),
            "moving about": ("running", "walking", "dancing", "climbing"),
            "eating fruit": ("eating an apple", "eating a pear"),
            "eating something": ("eating an apple", "eating a pear", "eating bread", "eating cheese"),
            "making music": ("playing the violin", "playing the flute", "beating a drum"),
            "reading": ("reading a letter", "reading a book"),
        }
    ),
    "where": Aspect(
        {
            "outside": ("in the park", "in the garden", "on the beach", "in a field", "in the forest"),
            "inside a building": ("in the kitchen", "in a museum", "in a school", "in a church", "in a shop"),
            "among trees": ("in the park", "in the garden", "in the forest"),
        }
    ),
    "wearing": Aspect(
        {
            **{f"a {garment}": tuple(f"a {colour} {garment}" for colour in COLOURS) for garment in GARMENTS},
            **{f"something {colour}": tuple(f"a {colour} {garment}" for garment in GARMENTS) for colour in COLOURS},
        }
    ),
}
# Templates of a hypothesis for each aspect; `{who}` is the person of the premise.
_SAYINGS: Mapping[str, str] = {
    "who": "[it is {said}|the one in the scene is {said}]",
    "doing": "[{who} is {said}|someone is {said}]",
    "where": "[{who} is {said}|this takes place {said}]",
    "wearing": "[{who} wears {said}|{who} is wearing {said}]",
}
_ENDS: Mapping[Label, str] = {
    "entailment": "[so it is true|so it follows]",
    "neutral": "[so it may be true or not|so it is left open]",
    "contradiction": "[so it is false|so it cannot be true]",
}


def draw_inference(generator: random.Random) -> Row:
    """Draw an inference from the generator."""
    label = generator.choice(_LABELS)
    while True:
        told = _draw_scene(generator)
        said = _draw_statements(generator)
        relations = [_relation(told, aspect, words) for aspect, words in said.items()]
        if conclude(relations) == label:
            break
    values = {"premise": _premise(told, generator), "hypothesis": _hypothesis(told, said, generator)}
    reasons = [_reason(told, aspect, words) for aspect, words in said.items()]
    rationale = " ".join(f"{capitalised(words)}." for words in [*reasons, write(_ENDS[label], {}, generator)])
    output = TeacherOutput(f"{rationale} So the answer is {label}.", rationale, label)
    return Row(INFERENCES.input_text(values), label, output)


def conclude(relations: Sequence[Label]) -> Label:
    """The label of a hypothesis with several statements."""
    for label in ("contradiction", "neutral"):
        if label in relations:
            return label
    return "entailment"


def _draw_scene(generator: random.Random) -> dict[str, str]:
    """Draw the words of a premise: always for person and activity, usually for place and clothing."""
    told = {}
    for name, aspect in ASPECTS.items():
        if name in ("where", "wearing") and generator.random() < 0.25:
            continue
        is_exact = generator.random() < 0.85
        told[name] = generator.choice(aspect.exact if is_exact else tuple(aspect.wider))
    return told


def _draw_statements(generator: random.Random) -> dict[str, str]:
    """Draw the words of one or two statements."""
    names = sorted(generator.sample(list(ASPECTS), generator.choice((1, 2))), key=list(ASPECTS).index)
    return {
        name: generator.choice((*ASPECTS[name].exact, *ASPECTS[name].wider, *ASPECTS[name].wider)) for name in names
    }


def _relation(told: Mapping[str, str], aspect: str, words: str) -> Label:
    return ASPECTS[aspect].relation(told[aspect], words) if aspect in told else "neutral"


def _premise(told: Mapping[str, str], generator: random.Random) -> str:
    wearing = f" in {told['wearing']}" if "wearing" in told else ""
    where = f" {told['where']}" if "where" in told else ""
    if where and generator.random() < 0.3:
        return f"{capitalised(where.strip())}, {told['who']}{wearing} is {told['doing']}."
    return f"{capitalised(told['who'])}{wearing} is {told['doing']}{where}."


def _hypothesis(told: Mapping[str, str], said: Mapping[str, str], generator: random.Random) -> str:
    kind, word = told["who"].split(" ", 1)
    who = "the one who is " + word if kind == "someone" else f"the {word}"
    parts = [write(_SAYINGS[aspect], {"who": who, "said": words}, generator) for aspect, words in said.items()]
    return f"{capitalised(' and '.join(parts))}."


def _reason(told: Mapping[str, str], aspect: str, words: str) -> str:
    if aspect not in told:
        return {"where": "where it is was not told", "wearing": "what is worn was not told"}[aspect]
    before = told[aspect]
    if before == words:
        return f"{words} is what was told"
    label = ASPECTS[aspect].relation(before, words)
    if label == "entailment":
        return f"{before} is {words}"
    if label == "contradiction":
        return f"{before} is not {words}"
    return f"{before} may be {words} or not"
