"""Sources of a training's examples: published data with a teacher's outputs, or the user's own rows."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import get_args

from services.core.text_files import BadFile
from services.jobs.inquiry import OutputError
from services.predict.data.inputs import content_digest, own_splits
from services.predict.data.published import Split, find_rows, read_outputs, read_rows
from services.predict.data.rationale_file import outputs_file, read_records, read_teacher_outputs
from services.predict.data.rows import LabelSource, Row, TeachingData, join, make_splits, subsample, taught_rows
from services.predict.data.task_file import OwnTask
from services.predict.number_slots import hide_numbers, in_canonical_order
from services.predict.tasks import ANLI1, ASDIV, CQA, ESNLI, SVAMP, Task
from services.predict.training.recipe import Recipe

# Data sets with a test split; those without validation rows use a part of their training rows for validation.
PUBLISHED_TASKS = {task.name: task for task in (ESNLI, ANLI1, CQA, SVAMP)}
WITHOUT_VALIDATION = (CQA.name, SVAMP.name)
AUGMENTED = f"+{ASDIV.name}"  # suffix of the name of data augmented with another data set's problems


@dataclass(frozen=True)
class Source:
    """Data that a student learns from, by whose values runs and their results are told apart."""

    task: str
    _: KW_ONLY
    labels: LabelSource = "human"
    fraction: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must be above 0 and at most 1, not {self.fraction}")

    @property
    def name(self) -> str:
        """Name of the data in tables."""
        return self.task

    def settings(self) -> Mapping[str, object]:
        """Return what else tells results on this data from others."""
        return {}

    def read(self, recipe: Recipe) -> TeachingData:
        """Read the examples of a run, whose seed chooses the share of the training rows. Raises BadFile."""
        raise NotImplementedError

    def content(self) -> str | None:
        """Digest the files that may change from run to run; None if there are none. Raises BadFile."""
        return None


@dataclass(frozen=True)
class DataSource(Source):
    """Published data or a user's own rows.

    `folder` holds the files of one of PUBLISHED_TASKS, or the rows of `own`, a user's task; it may be their one file.
    Rationales, and labels if `labels` is "llm", are the released ones of PaLM beside the data, or those of `fovea
    distill extract` in `rationales`: the training rows' file, or a folder with a file for each split. With human
    labels, rows missing from this file teach only their labels; with the teacher's, they are left out. `augment` adds
    the same share of ASDiv's problems to SVAMP's training rows, with `asdiv.jsonl` of the folder `rationales`.
    """

    folder: Path | None = None
    rationales: Path | None = None
    augment: bool = False
    own: OwnTask | None = None

    def __post_init__(self) -> None:
        if self.own is None and self.task not in PUBLISHED_TASKS:
            raise ValueError(f"the data is one of {', '.join(PUBLISHED_TASKS)}, not {self.task!r}")
        if self.folder is None:
            what = "the folder of the published data" if self.own is None else "its rows, a file or a folder"
            raise ValueError(f"{self.task} needs {what}: give --data")
        if self.own is not None and self.labels == "llm" and self.rationales is None:
            raise ValueError("the teacher's labels are in its outputs: give --rationales")
        if self.augment and self.task != SVAMP.name:
            raise ValueError(f"ASDiv's problems can augment only {SVAMP.name}, not {self.task}")
        super().__post_init__()

    @property
    def name(self) -> str:
        return self.task + (AUGMENTED if self.augment else "")

    def content(self) -> str | None:
        paths = [self.folder] if self.own is not None and self.folder is not None else []
        paths += [] if self.rationales is None else [self.rationales]
        return content_digest(paths) if paths else None

    def read(self, recipe: Recipe) -> TeachingData:
        """Read the examples; only the method "explained" needs a teacher's outputs for validation and test rows."""
        if self.own is not None:
            assert self.folder is not None
            data = own_splits(
                self.own,
                self.folder,
                self.rationales,
                fraction=self.fraction,
                seed=recipe.seed,
                is_labelled=self.labels == "human",
            )
        else:
            data = _published_splits(self, recipe.seed, has_explained_tests=recipe.method == "explained")
        train = taught_rows(data.train, self.labels, drop_empty=recipe.drop_empty)
        if not train:
            raise BadFile(f"no row of {self.task} is left for training{_unparsed(self)}")
        if recipe.method != "standard" and not any(row.rationale for row in train):
            reason = _unparsed(self)
            cure = "extract others" if reason else "give --rationales"
            raise BadFile(f"no training row of {self.task} has a rationale{reason}: {cure}, or --method standard")
        return hidden(replace(data, train=train))


def hidden(data: TeachingData) -> TeachingData:
    """Write the rows for training with number slots if the task has them."""
    train = [_hidden(row, data.task) for row in data.train] if data.task.numbers == "slots" else data.train
    return replace(data, train=train)


def _published_splits(source: DataSource, seed: int, *, has_explained_tests: bool) -> TeachingData:
    assert source.folder is not None
    folder, task = source.folder, PUBLISHED_TASKS[source.task]
    train = _with_outputs(source, task, "train")

    def read(split: Split) -> list[Row]:
        return _with_outputs(source, task, split) if has_explained_tests else read_rows(task, folder, split)

    valid = None if task.name in WITHOUT_VALIDATION else read("valid")
    splits = make_splits(task, train, valid, read("test"), source.fraction, seed)
    if source.augment:
        more = read_rows(ASDIV, source.folder, "train")
        if source.rationales is not None and (path := outputs_file(source.rationales, ASDIV.name)).is_file():
            more = join(more, read_teacher_outputs(path, ASDIV.name, len(more)))
        splits.train.extend(more[row] for row in subsample(len(more), source.fraction, seed))
    return splits


def count_rows(task: Task, folder: Path) -> dict[Split, int]:
    """Count the rows of each published split that is there, as a training divides them. Raises BadFile."""
    splits: tuple[Split, ...] = get_args(Split)
    rows = {split: read_rows(task, folder, split) for split in splits if find_rows(task, folder, split) is not None}
    if task.name in WITHOUT_VALIDATION and "train" in rows:
        made = make_splits(task, rows["train"], None, ())
        rows |= {"train": made.train, "valid": made.valid}
    return {split: len(own) for split, own in rows.items()}


def _with_outputs(source: DataSource, task: Task, split: Split) -> list[Row]:
    assert source.folder is not None
    rows = read_rows(task, source.folder, split)
    if source.rationales is None:
        return join(rows, read_outputs(task, source.folder, split))
    if split != "train" and not source.rationales.is_dir():
        raise OutputError(f"{source.rationales} covers only the training rows, but the {split} rows need outputs too")
    return join(rows, read_teacher_outputs(outputs_file(source.rationales, split), task.name, len(rows)))


def _unparsed(source: DataSource) -> str:
    """Text with the numbers of the teacher's outputs that can't be parsed; empty without outputs of an extraction."""
    if source.rationales is None:
        return ""
    path = outputs_file(source.rationales, "train")
    records = read_records(path)
    problems = Counter(record.problem for record in records if record.problem is not None)
    told = ", ".join(f"{problem}: {number}" for problem, number in problems.most_common())
    return f" ({problems.total()} of {len(records)} outputs in {path} can't be parsed{f': {told}' if told else ''})"


def _hidden(row: Row, task: Task) -> Row:
    """Write a row as a student with number slots sees it."""
    numbers = hide_numbers(row.input)
    label = numbers.hide_in(row.label)
    if task.metric == "equal_value":
        label = in_canonical_order(label)
    output = row.output and replace(row.output, rationale=numbers.hide_in(row.output.rationale))
    return replace(row, input=numbers.text, label=label, output=output)
