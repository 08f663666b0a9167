"""Generated data sets: any number of rows, in disjoint splits."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from services.predict.data.claims.inferences import draw_everyday_inference, draw_word_inference
from services.predict.data.claims.written import written_inferences
from services.predict.data.deductions import DEDUCTIONS, draw_deduction
from services.predict.data.denoising import DENOISING, denoising_of
from services.predict.data.drawing import draw_distinct
from services.predict.data.everyday.problems import draw_everyday_problem
from services.predict.data.inferences import INFERENCES, draw_inference
from services.predict.data.problems import WORD_PROBLEMS, draw_problem
from services.predict.data.rows import Row, Splits
from services.predict.tasks import Task

Draw = Callable[[random.Random], Row]


@dataclass(frozen=True)
class _Everyday:
    """An everyday data set: a wide generator's rows, with those of a narrow one among them.

    Validation rows are those of the wide one that its rules hold out; test rows are the narrow set's. Only a share of
    the training rows has a rationale, which costs more than its label, and `lesson_share` are of a simpler lesson.
    `confided` reads the rows that the confidence is fitted to, where others than the validation rows are.
    """

    narrow: Task
    draw_narrow: Draw
    draw_wide: Callable[..., Row]
    narrow_share: float
    rationale_share: float
    draw_lesson: Draw | None = None
    lesson_share: float = 0.0
    confided: Callable[[], list[Row]] = list

    @property
    def task(self) -> Task:
        return replace(self.narrow, numbers="slots")

    def draw(self, generator: random.Random) -> Row:
        """Draw a training row."""
        kind = generator.random()
        if kind < self.narrow_share:
            row = self.draw_narrow(generator)
        elif self.draw_lesson is not None and kind < self.narrow_share + self.lesson_share:
            row = self.draw_lesson(generator)
        else:
            row = self.draw_wide(generator)
        return row if generator.random() < self.rationale_share else replace(row, output=None)


_PAIRS = _Everyday(
    INFERENCES,
    draw_inference,
    draw_everyday_inference,
    narrow_share=0.25,
    rationale_share=0.08,
    draw_lesson=draw_word_inference,
    lesson_share=0.08,
    confided=written_inferences,
)
_EVERYDAY: Mapping[str, _Everyday] = {
    "everyday-problems": _Everyday(WORD_PROBLEMS, draw_problem, draw_everyday_problem, 0.4, 0.1),
    "everyday-inferences": _PAIRS,
    # A first lesson for the set above, with a quarter of its rows, so that both have one vocabulary.
    "word-inferences": _Everyday(INFERENCES, draw_inference, draw_word_inference, 0.0, 0.12, _PAIRS.draw, 0.25),
}
_DRAWS: Mapping[str, Draw] = {
    WORD_PROBLEMS.name: draw_problem,
    INFERENCES.name: draw_inference,
    DEDUCTIONS.name: draw_deduction,
    DENOISING.name: denoising_of((draw_problem, draw_deduction)),
}
# The tasks by data set; the everyday sets are wider rows of tasks that narrow sets have too.
GENERATED_TASKS: Mapping[str, Task] = {
    **{task.name: task for task in (WORD_PROBLEMS, INFERENCES, DEDUCTIONS, DENOISING)},
    **{name: everyday.task for name, everyday in _EVERYDAY.items()},
}


def generated_splits(task: str, *, num_train: int, num_valid: int, num_test: int, seed: int = 0) -> Splits:
    """Generate rows of one of GENERATED_TASKS with distinct inputs; each split has its own random numbers.

    Test rows do not depend on the number of other rows, and a smaller number of training rows is a prefix of a larger
    one. Raises KeyError for another task.
    """
    taken: set[str] = set()

    def draw_split(draw: Draw, data: str, name: str, num_rows: int) -> list[Row]:
        return draw_distinct(draw, num_rows, random.Random(f"{data} {name} {seed}"), taken)

    if task in _EVERYDAY:
        everyday = _EVERYDAY[task]
        test = draw_split(everyday.draw_narrow, everyday.narrow.name, "test", num_test)
        valid = draw_split(partial(everyday.draw_wide, is_held_out=True), task, "valid", num_valid)
        return Splits(draw_split(everyday.draw, task, "train", num_train), valid, test, everyday.confided())
    draw = _DRAWS[task]
    test = draw_split(draw, task, "test", num_test)
    valid = draw_split(draw, task, "valid", num_valid)
    return Splits(draw_split(draw, task, "train", num_train), valid, test)
