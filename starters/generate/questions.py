"""Generated questions, for the commands that calibrate and evaluate the packaged checkpoints.

Importing this module gives `--data` of `fovea calibrate` and `fovea evaluate litm` the names `generated` and `open`.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from services.generate.data.questions import (
    NAMED,
    Example,
    Part,
    QuestionSet,
    Unanswerable,
    best_subspan_em,
    check_count,
    place_gold,
)
from services.generate.prompts.templates import Document
from starters.generate.facts import USUAL_NAMING, Naming, ask, draw_facts
from starters.generate.world.documents import REFUSAL, Scope, draw_world

# the seeds of training begin at 0
SEEDS: dict[Part, int] = {"calibration": 1_000_003, "evaluation": 2_000_003, "all": 2_000_003}


def generated_facts(
    num_questions: int, num_documents: int, seed: int = 0, naming: Naming = USUAL_NAMING
) -> list[Example]:
    """Generate questions (see starters.generate.facts), gold first, the same for the same arguments."""
    check_count(num_documents)
    examples = []
    for i in range(num_questions):
        generator = random.Random(f"{seed} {i}")
        asked = ask(generator, draw_facts(generator, num_documents, naming), 0, naming)
        documents = tuple(Document(fact.text, fact.title) for fact in asked.facts)
        examples.append(Example(asked.question, (asked.answer,), documents, 0))
    return examples


def open_facts(num_questions: int, num_documents: int, seed: int = 0) -> list[Example]:
    """Generate answerable questions (see starters.generate.world), gold first, the same for the same arguments."""
    check_count(num_documents)
    scope = Scope((num_documents, num_documents), refused=0.0)
    examples: list[Example] = []
    number = 0
    while len(examples) < num_questions:
        generator = random.Random(f"open {seed} {number}")
        number += 1
        world = draw_world(generator, scope)
        asked = world.ask(generator)
        if asked.gold is not None:  # the documents may be about nobody
            example = Example(asked.question, (asked.answer,), world.documents, asked.gold)
            examples.append(place_gold(example, 0))
    return examples


def open_unanswerable(num_questions: int, num_documents: int, seed: int = 0) -> list[Unanswerable]:
    """Generate questions that no document answers (see starters.generate.world): the refusal is right.

    The same for the same arguments.
    """
    check_count(num_documents)
    scope = Scope((num_documents, num_documents), refused=1.0)
    questions = []
    for number in range(num_questions):
        generator = random.Random(f"open, unanswerable {seed} {number}")
        world = draw_world(generator, scope)
        questions.append(Unanswerable(world.ask(generator).question, (REFUSAL,), world.documents))
    return questions


@dataclass(frozen=True)
class GeneratedQuestions(QuestionSet):
    """Questions that are drawn from seeds that are far apart for each part.

    `draw` draws a number of questions, of K documents, for a seed; `draw_unanswerable` does so for unanswerable ones.
    """

    draw: Callable[[int, int, int], list[Example]] = generated_facts
    draw_unanswerable: Callable[[int, int, int], list[Unanswerable]] | None = None

    def examples(self, part: Part, num_documents: int, count: int | None, seed: int = 0) -> list[Example]:
        return self.draw(500 if count is None else count, num_documents, SEEDS[part] + seed)

    def unanswerable(self, part: Part, num_documents: int, count: int, seed: int = 0) -> list[Unanswerable]:
        if self.draw_unanswerable is None:
            return []
        return self.draw_unanswerable(count, num_documents, SEEDS[part] + seed)


# Generated questions are judged like NaturalQuestions.
GENERATED = GeneratedQuestions("generated", "other facts of the same kind", 8, ("\n",), best_subspan_em)
OPEN = GeneratedQuestions(
    "open",
    "other facts, often of the same kind",
    32,
    ("\n",),
    best_subspan_em,
    draw=open_facts,
    draw_unanswerable=open_unanswerable,
)
NAMED.update({questions.name: questions for questions in (GENERATED, OPEN)})
