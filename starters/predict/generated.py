"""Generated data sets: any number of rows, in disjoint splits, as the source of a training's examples."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from services.predict.data.rows import Row, TeachingData, make_splits
from services.predict.tasks import Task
from services.predict.training.recipe import Recipe
from services.predict.training.sources import Source, hidden
from starters.predict.deductions import DEDUCTIONS, draw_deduction
from starters.predict.denoising import DENOISING, denoising_of
from starters.predict.drawing import draw_distinct
from starters.predict.everyday.problems import draw_everyday_problem
from starters.predict.inferences import INFERENCES, draw_inference
from starters.predict.problems import WORD_PROBLEMS, draw_problem
from starters.predict.sentence_pairs.inferences import draw_everyday_inference, draw_word_inference
from starters.predict.sentence_pairs.written import written_inferences

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


def generated_splits(task: str, *, num_train: int, num_valid: int, num_test: int, seed: int = 0) -> TeachingData:
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
        train = draw_split(everyday.draw, task, "train", num_train)
        return TeachingData(everyday.task, train, valid, test, everyday.confided())
    draw = _DRAWS[task]
    test = draw_split(draw, task, "test", num_test)
    valid = draw_split(draw, task, "valid", num_valid)
    return TeachingData(GENERATED_TASKS[task], draw_split(draw, task, "train", num_train), valid, test)


@dataclass(frozen=True)
class GeneratedSource(Source):
    """Rows of one of GENERATED_TASKS; `fraction` is the share of the training rows that the run's seed chooses."""

    num_train: int = 8_000
    num_valid: int = 500
    num_test: int = 1_000

    def __post_init__(self) -> None:
        if self.task not in GENERATED_TASKS:
            raise ValueError(f"the data is one of {', '.join(GENERATED_TASKS)}, not {self.task!r}")
        super().__post_init__()

    def settings(self) -> dict[str, int]:
        """Return the numbers of rows."""
        return {"num_train": self.num_train, "num_valid": self.num_valid, "num_test": self.num_test}

    def read(self, recipe: Recipe) -> TeachingData:
        """Generate the examples of a run, all of which have a rationale unless the data set leaves some out."""
        drawn = generated_splits(self.task, **self.settings())
        splits = make_splits(drawn.task, drawn.train, drawn.valid, drawn.test, self.fraction, recipe.seed)
        return hidden(replace(splits, confided=drawn.confided))
