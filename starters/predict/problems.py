"""Generated word problems similar to SVAMP, with the rationale that a teacher would give for each equation.

A problem describes a scene, such as boxes with pencils and crayons in them, and asks for one of several quantities that
can be computed from it: the same body leads to different equations, and some of its numbers are not needed. Half of the
problems contain one more number that is irrelevant to every question. Equations have one or two steps. No two numbers
of a problem are equal, so that a wrong number never gives the right equation.
"""

import random
import re

from services.predict.arithmetic import evaluate
from services.predict.data.rows import Row, TeacherOutput
from services.predict.tasks import Task
from starters.predict.drawing import capitalised, write
from starters.predict.problem_scenes import BOXES, DAYS, IRRELEVANT, PEOPLE, QUALITIES, SCENES, THINGS, Scene

WORD_PROBLEMS = Task("word-problems", ("body", "question"), "\n", metric="equal_value")

IRRELEVANT_RATE = 0.5
_IRRELEVANT_NUMBERS = (2, 99)
_STEP = re.compile(r"<([^<>]*)>")


def draw_problem(generator: random.Random) -> Row:
    """Draw a problem from the generator."""
    scene, ask = generator.choice([(scene, ask) for scene in SCENES for ask in scene.asks])
    named = {**_names(generator), **_numbers(scene, generator)}
    if ask.first is not None:
        named["m"] = evaluate(ask.first.format_map(named))
    body = [write(scene.body, named, generator)]
    reasons = [_worked_out(write(ask.reason, named, generator))]
    if generator.random() < IRRELEVANT_RATE:
        sentence, reason = generator.choice(IRRELEVANT)
        body.insert(generator.randrange(2), write(sentence, named, generator))
        reasons.insert(0, write(reason, named, generator))
    question, equation = write(ask.question, named, generator), ask.equation.format_map(named)
    text = WORD_PROBLEMS.input_text({"body": " ".join(map(capitalised, body)), "question": question})
    rationale = " ".join(reasons)
    return Row(text, equation, TeacherOutput(f"{rationale} The answer is {equation}.", rationale, equation))


def _names(generator: random.Random) -> dict[str, str]:
    (name, he), (other, _), (stranger, _) = generator.sample(PEOPLE, 3)
    (things, thing), (extras, extra), (spare, _) = generator.sample(THINGS, 3)
    boxes, box = generator.choice(BOXES)
    one, two = generator.sample(QUALITIES, 2)
    first, second, third = generator.sample(DAYS, 3)
    people = {"name": name, "he": he, "He": he.capitalize(), "other": other}
    objects = {"things": things, "thing": thing, "extras": extras, "extra": extra, "spare": spare}
    return {
        **people,
        **objects,
        **{"stranger": stranger, "boxes": boxes, "box": box, "one": one, "two": two},
        **{"first": first, "second": second, "third": third},
    }


def _numbers(scene: Scene, generator: random.Random) -> dict[str, int | float | None]:
    """Draw the numbers of a scene, and `z`, the irrelevant one: no two are equal."""
    while True:
        numbers: dict[str, int | float | None] = {
            letter: generator.randint(*limits) for letter, limits in scene.numbers.items()
        }
        numbers |= {letter: evaluate(equation.format_map(numbers)) for letter, equation in scene.derived.items()}
        numbers["z"] = generator.randint(*_IRRELEVANT_NUMBERS)
        if len(set(numbers.values())) == len(numbers):
            return numbers


def _worked_out(reason: str) -> str:
    return _STEP.sub(lambda found: f"{found[1]} = {int(evaluate(found[1]) or 0)}", reason)
