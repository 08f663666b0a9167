"""Sources of a training's examples: published data with a teacher's outputs, or generated data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.predict.data.generated import GENERATED_TASKS, generated_splits
from services.predict.data.published import Split, read_outputs, read_rows
from services.predict.data.rationale_file import OutputError, read_teacher_outputs
from services.predict.data.rows import (
    BadData,
    Example,
    LabelSource,
    Row,
    Splits,
    join,
    make_splits,
    subsample,
    to_examples,
)
from services.predict.tasks import ANLI1, ASDIV, CQA, ESNLI, SVAMP, Task
from services.predict.training.recipe import Method, TeachingData

# Data sets with a test split; those without validation rows of their own give a part of their training rows for it.
PUBLISHED_TASKS = {task.name: task for task in (ESNLI, ANLI1, CQA, SVAMP)}
WITHOUT_VALIDATION = (CQA.name, SVAMP.name)


@dataclass(frozen=True)
class DataSource:
    """Data that a student learns from.

    `task` is one of PUBLISHED_TASKS, whose files are in `folder` as `services.predict.data.published` reads them, or
    one of GENERATED_TASKS. Rationales, and labels where `labels` is "llm", are the released ones of PaLM beside the
    data, or those of `fovea distill extract` in `rationales`: the training rows' file, or a folder with `train.jsonl`,
    `valid.jsonl` and `test.jsonl`. With labels of people, rows that the file leaves out teach their labels alone; with
    the teacher's they are left out.

    A share of the rows is learnt from, `fraction`, chosen by the run's seed. `augment` adds ASDiv's problems to
    SVAMP's training rows, by the same share; what a teacher wrote about them is `asdiv.jsonl` in the folder
    `rationales`. `drop_empty` leaves out rows whose output the rules could not read. The numbers are those of generated
    rows, before a share of them is taken.
    """

    task: str
    folder: Path | None = None
    rationales: Path | None = None
    labels: LabelSource = "human"
    fraction: float = 1.0
    augment: bool = False
    drop_empty: bool = False
    num_train: int = 8_000
    num_valid: int = 500
    num_test: int = 1_000

    def __post_init__(self) -> None:
        if self.task not in PUBLISHED_TASKS and self.task not in GENERATED_TASKS:
            raise ValueError(f"the data is one of {', '.join([*PUBLISHED_TASKS, *GENERATED_TASKS])}, not {self.task!r}")
        if self.is_generated and (self.folder or self.rationales):
            raise ValueError(f"{self.task} is generated with its rationales: --data and --rationales do not apply")
        if not self.is_generated and self.folder is None:
            raise ValueError(f"{self.task} needs the folder of the published data")
        if self.augment and self.task != SVAMP.name:
            raise ValueError(f"ASDiv's problems can augment only {SVAMP.name}, not {self.task}")
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction}")

    @property
    def is_generated(self) -> bool:
        return self.task in GENERATED_TASKS


def read_teaching_data(source: DataSource, method: Method, seed: int) -> TeachingData:
    """Read the examples of a run, whose seed chooses the share of the training rows.

    As published, the share is taken before the validation rows, and a teacher's labels are for training alone. Only
    the method "explained" needs what a teacher wrote about the rows that a student is chosen by and tested on. Raises
    BadData for files that are missing or of another form, or too few, and OutputError for one of rationales.
    """
    if source.is_generated:
        task = GENERATED_TASKS[source.task]
        numbers = {"num_train": source.num_train, "num_valid": source.num_valid, "num_test": source.num_test}
        drawn = generated_splits(source.task, **numbers)
        splits = make_splits(drawn.train, drawn.valid, drawn.test, source.fraction, seed)
    else:
        task = PUBLISHED_TASKS[source.task]
        splits = _published_splits(source, task, seed, has_explained_tests=method == "explained")
    return TeachingData(
        task,
        _taught(splits.train, source),
        to_examples(splits.valid),
        to_examples(splits.test),
    )


def _published_splits(source: DataSource, task: Task, seed: int, *, has_explained_tests: bool) -> Splits:
    assert source.folder is not None
    train = _with_outputs(source, task, "train")
    read = _with_outputs if has_explained_tests else _without_outputs
    valid = None if task.name in WITHOUT_VALIDATION else read(source, task, "valid")
    splits = make_splits(train, valid, read(source, task, "test"), source.fraction, seed)
    if source.augment:
        more = read_rows(ASDIV, source.folder, "train")
        if source.rationales is not None and (path := _file(source.rationales, ASDIV.name)).is_file():
            more = join(more, read_teacher_outputs(path, ASDIV.name, len(more)))
        splits.train.extend(more[row] for row in subsample(len(more), source.fraction, seed))
    return splits


def _without_outputs(source: DataSource, task: Task, split: Split) -> list[Row]:
    assert source.folder is not None
    return read_rows(task, source.folder, split)


def _with_outputs(source: DataSource, task: Task, split: Split) -> list[Row]:
    assert source.folder is not None
    rows = read_rows(task, source.folder, split)
    if source.rationales is None:
        return join(rows, read_outputs(task, source.folder, split))
    if split != "train" and not source.rationales.is_dir():
        raise OutputError(f"{source.rationales} covers only the training rows, but the {split} rows need outputs too")
    return join(rows, read_teacher_outputs(_file(source.rationales, split), task.name, len(rows)))


def _file(rationales: Path, name: str) -> Path:
    return rationales / f"{name}.jsonl" if rationales.is_dir() else rationales


def _taught(rows: Sequence[Row], source: DataSource) -> list[Example]:
    if source.labels == "llm":
        rows = [row for row in rows if row.output is not None]
    examples = to_examples(rows, source.labels, drop_empty=source.drop_empty)
    if not examples:
        raise BadData(f"no row of {source.task} is left for training")
    return examples
