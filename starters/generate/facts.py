"""Generated questions over many short documents, each with one fact about one person.

A document is a sentence such as "Belan Ashford plays the amber flute."; the question asks for that fact by the person's
name, and all documents of a question state facts of one kind. A question may get one part of the name wrong, and two
people may share one part of it: a matching name is only evidence, so a model with a positional bias can be misled. That
is the effect that found-in-the-middle calibration corrects (dissertation, section 3.2), in a form that a small model
can show.
"""

import random
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace


def _split(words: str) -> tuple[str, ...]:
    return tuple(words.split())


def _joined(starts: str, ends: str) -> tuple[str, ...]:
    return tuple(start + end for start in starts.split() for end in ends.split())


FIRST_NAMES = _joined("Al Bel Cor Dan El Fen Gar Hal Ir Jor Kel Lor", "an ea ia in is o us en")
LAST_NAMES = _joined(
    "Ash Black Crow Dun East Fair Green Hart Iron Kirk Long Marsh", "by den field ford ham ley ton wood"
)
QUALITIES = _split(
    "amber ancient bitter blue bold brass bright broad bronze brown calm clever copper crimson curious dark dusty early"
    " elegant fancy fine foreign gentle golden grey heavy hidden hollow humble ivory jolly little lively local lucky"
    " modern narrow noble northern old pale plain polished proud purple quiet rare red round royal rustic rusty sharp"
    " silver simple slender small smooth southern sturdy tiny western white wild wooden yellow young"
)
NOTES = (
    "This was written some time ago.",
    "The page says little more.",
    "It is only a short note.",
    "There is nothing else to say here.",
    "This passage was left blank on purpose and says nothing about the matter.",
)


@dataclass(frozen=True)
class Kind:
    """One kind of fact: the question's words before the name, the sentence's words after it, and possible things."""

    question: str
    statement: str
    things: tuple[str, ...]


KINDS = {
    "instrument": Kind(
        "What is the instrument of",
        "plays the",
        _split(
            "accordion banjo bassoon bell bugle cello clarinet cornet drum fiddle flute gong guitar harp horn lute"
            " mandolin oboe organ piano recorder trumpet tuba viola violin whistle zither"
        ),
    ),
    "pet": Kind(
        "What is the pet of",
        "owns the",
        _split(
            "badger beaver camel cat crane dog donkey falcon ferret fox goat goose hare heron horse lizard llama monkey"
            " otter owl parrot pony rabbit raven sheep snake turtle"
        ),
    ),
    "meal": Kind(
        "What is the meal of",
        "eats the",
        _split(
            "apples beans biscuits bread cabbage carrots cheese cherries corn eggs figs fish grapes honey lentils melon"
            " mushrooms noodles nuts onions pasta pears plums potatoes rice soup spinach"
        ),
    ),
    "trade": Kind(
        "What is the trade of",
        "became the",
        _split(
            "baker barber brewer builder butcher carpenter cook doctor driver farmer fisher gardener hunter judge"
            " lawyer miller miner nurse painter pilot poet porter sailor singer tailor teacher weaver"
        ),
    ),
}


# The limit that lets every answer word and every name occur only once in a prompt.
MAX_DOCUMENTS = min(len(column) for column in (FIRST_NAMES, LAST_NAMES, QUALITIES, *(k.things for k in KINDS.values())))


@dataclass(frozen=True)
class Naming:
    """Reliability of names, as probabilities.

    A question gets one part of the name wrong with probability `half_wrong`, both with `all_wrong`; a document takes
    one part of its name from another document with `shared`.
    """

    half_wrong: float = 0.4
    all_wrong: float = 0.0
    shared: float = 0.2


USUAL_NAMING = Naming()


@dataclass(frozen=True)
class Fact:
    """One document: a fact about a person; `note` is a sentence after it, or empty."""

    first: str
    last: str
    kind: str
    quality: str
    thing: str
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.first} {self.last}"

    @property
    def text(self) -> str:
        sentence = f"{self.first} {self.last} {KINDS[self.kind].statement} {self.quality} {self.thing}."
        return f"{sentence} {self.note}" if self.note else sentence

    @property
    def answer(self) -> str:
        return f"{self.quality} {self.thing}"


@dataclass(frozen=True)
class FactQuestion:
    """K facts of one kind, one of them `gold`, and the name as the question spells it."""

    first: str
    last: str
    facts: tuple[Fact, ...]
    gold: int

    @property
    def question(self) -> str:
        return f"{KINDS[self.facts[self.gold].kind].question} {self.first} {self.last}?"

    @property
    def answer(self) -> str:
        return self.facts[self.gold].answer


def draw_facts(
    generator: random.Random, num_documents: int, naming: Naming = USUAL_NAMING, note_rate: float = 0.0
) -> tuple[Fact, ...]:
    """Draw facts of one kind in which no answer word occurs twice; each has a note with probability `note_rate`.

    Raises ValueError for more than MAX_DOCUMENTS, for which the word lists are too short.
    """
    if num_documents > MAX_DOCUMENTS:
        raise ValueError(f"a generated question has at most {MAX_DOCUMENTS} documents, not {num_documents}")
    kind = generator.choice(list(KINDS))
    columns = (FIRST_NAMES, LAST_NAMES, QUALITIES, KINDS[kind].things)
    rows = list(zip(*(generator.sample(column, num_documents) for column in columns), strict=True))
    facts = []
    for first, last, quality, thing in rows:
        note = generator.choice(NOTES) if generator.random() < note_rate else ""
        fact = Fact(first, last, kind, quality, thing, note)
        if generator.random() < naming.shared:
            namesake = generator.choice(rows)
            fact = replace(fact, first=namesake[0]) if generator.random() < 0.5 else replace(fact, last=namesake[1])
        facts.append(fact)
    return tuple(facts)


def ask(generator: random.Random, facts: Sequence[Fact], gold: int, naming: Naming) -> FactQuestion:
    """Draw a question about `facts[gold]`, with name errors as in `naming`; a wrong part occurs in no document."""
    first, last = facts[gold].first, facts[gold].last
    draw = generator.random()
    is_all_wrong = draw < naming.all_wrong
    is_half_wrong = not is_all_wrong and draw < naming.all_wrong + naming.half_wrong
    is_first_wrong = is_half_wrong and generator.random() < 0.5
    if is_all_wrong or is_first_wrong:
        first = _other(generator, FIRST_NAMES, {fact.first for fact in facts})
    if is_all_wrong or (is_half_wrong and not is_first_wrong):
        last = _other(generator, LAST_NAMES, {fact.last for fact in facts})
    return FactQuestion(first, last, tuple(facts), gold)


def _other(generator: random.Random, names: Sequence[str], taken: Set[str]) -> str:
    return generator.choice([name for name in names if name not in taken])


def words() -> list[str]:
    """List the distinct words and numbers of the generated prompts except the template's, in a fixed order."""
    phrases = [word for kind in KINDS.values() for word in f"{kind.question} {kind.statement}".split()]
    notes = [word.strip(".") for note in NOTES for word in note.split()]
    things = [thing for kind in KINDS.values() for thing in kind.things]
    return list(dict.fromkeys([*FIRST_NAMES, *LAST_NAMES, *QUALITIES, *things, *phrases, *notes]))
