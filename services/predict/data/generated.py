"""Generated data sets: any number of rows, in disjoint splits."""

import random
from collections.abc import Callable, Mapping

from services.predict.data.deductions import DEDUCTIONS, draw_deduction
from services.predict.data.denoising import DENOISING, denoising_of
from services.predict.data.drawing import draw_distinct
from services.predict.data.inferences import INFERENCES, draw_inference
from services.predict.data.problems import WORD_PROBLEMS, draw_problem
from services.predict.data.rows import Row, Splits
from services.predict.tasks import Task

GENERATED_TASKS: Mapping[str, Task] = {task.name: task for task in (WORD_PROBLEMS, INFERENCES, DEDUCTIONS, DENOISING)}

_DRAWS: Mapping[str, Callable[[random.Random], Row]] = {
    WORD_PROBLEMS.name: draw_problem,
    INFERENCES.name: draw_inference,
    DEDUCTIONS.name: draw_deduction,
    DENOISING.name: denoising_of((draw_problem, draw_deduction)),
}


def generated_splits(task: str, *, num_train: int, num_valid: int, num_test: int, seed: int = 0) -> Splits:
    """Generate rows of one of GENERATED_TASKS with distinct inputs; each split has its own random numbers.

    Test rows do not depend on the number of other rows, and a smaller number of training rows is a prefix of a larger
    one. Raises KeyError for another task.
    """
    draw = _DRAWS[task]
    taken: set[str] = set()

    def draw_split(name: str, num_rows: int) -> list[Row]:
        return draw_distinct(draw, num_rows, random.Random(f"{task} {name} {seed}"), taken)

    test = draw_split("test", num_test)
    valid = draw_split("valid", num_valid)
    return Splits(draw_split("train", num_train), valid, test)
