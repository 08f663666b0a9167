"""The data sets of Distilling step-by-step in their published files and splits, with teachers' outputs.

A folder holds one folder per data set, as in the released code: `cqa/cqa_train.json` and so on, one JSON record per
line, with a teacher's texts in `cqa/palm/train_CoT_0.json`, `…_1.json`, …, JSON lists whose concatenation follows the
rows of the split. Any of these files may be compressed (`.json.gz`). SVAMP may also be in its authors' format
(`svamp/SVAMP.json`). ASDiv always is (`asdiv/ASDiv.xml`); it has only a training split and no teacher.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

import numpy as np

from services.core.text_files import BadFile, json_objects, read_json
from services.predict.data.rows import Row, TeacherOutput
from services.predict.data.teacher_outputs import parse_output
from services.predict.tasks import ANLI1, ASDIV, CQA, ESNLI, SVAMP, Task

Split = Literal["train", "valid", "test"]

SVAMP_FILE = "SVAMP.json"
SVAMP_TRAINING_ROWS = 800


def read_rows(task: Task, folder: Path, split: Split) -> list[Row]:
    """Read all rows of a data set's published split, in order, with human labels. Raises BadFile."""
    if task.name == ASDIV.name:
        if split != "train":
            raise BadFile(f"ASDiv has only a training split, no {split}")
        return _read_asdiv(folder / "asdiv" / "ASDiv.xml")
    if (path := find_rows(task, folder, split)) is None:
        raise BadFile(f"{folder / task.name / f'{task.name}_{split}.json'} is missing")
    if path.name == SVAMP_FILE:
        return _read_svamp(path, split)
    to_row = _RECORDS[task.name]
    rows = []
    for place, record in json_objects(path):
        try:
            rows.append(to_row(record))
        except (ValueError, LookupError, TypeError) as error:
            raise BadFile(f"{place}: not a row of {task.name} ({error!r})") from error
    return rows


def find_rows(task: Task, folder: Path, split: Split) -> Path | None:
    """Find the file of a published split, compressed or not; SVAMP's may be its authors' own."""
    found, original = _found(folder / task.name / f"{task.name}_{split}.json"), folder / SVAMP.name / SVAMP_FILE
    is_original = found is None and task.name == SVAMP.name and split != "valid" and original.is_file()
    return original if is_original else found


def read_outputs(task: Task, folder: Path, split: Split) -> list[TeacherOutput]:
    """Read and parse PaLM's outputs for a published split, in the order of its rows. Raises BadFile."""
    outputs = []
    for path in _numbered(folder / task.name / "palm", split):
        texts = _list(path)
        if not all(isinstance(text, str) for text in texts):
            raise BadFile(f"{path}: not a list of strings")
        outputs += [parse_output(task.name, text) for text in texts]
    return outputs


def _inference(task: Task) -> Callable[[dict[str, Any]], Row]:
    labels = dict(enumerate(task.labels or ()))

    def to_row(record: dict[str, Any]) -> Row:
        return Row(task.input_text(_texts(record, *task.fields)), labels[record["label"]])

    return to_row


def _question(record: dict[str, Any]) -> Row:
    texts = _texts(record, "question", "answer")
    return Row(CQA.input_text({"question": texts["question"], "choices": record["choices"]}), texts["answer"])


def _problem(record: dict[str, Any]) -> Row:
    texts = _texts(record, "input", "label")
    return Row(texts["input"], texts["label"])


_RECORDS: Mapping[str, Callable[[dict[str, Any]], Row]] = {
    ESNLI.name: _inference(ESNLI),
    ANLI1.name: _inference(ANLI1),
    CQA.name: _question,
    SVAMP.name: _problem,
}


def _texts(record: dict[str, Any], *names: str) -> dict[str, str]:
    for name in names:
        if not isinstance(record[name], str):
            raise TypeError(f"{name} is not a text")
    return {name: record[name] for name in names}


def _read_svamp(path: Path, split: Split) -> list[Row]:
    """Read the problems in their authors' format, in the split of the released code."""
    rows = []
    for number, record in enumerate(_list(path), start=1):
        try:
            texts = _texts(record, "Body", "Question", "Equation")
        except (LookupError, TypeError) as error:
            raise BadFile(f"{path}, problem {number}: not one of SVAMP's ({error!r})") from error
        text = SVAMP.input_text({"body": texts["Body"], "question": texts["Question"]})
        rows.append(Row(text, texts["Equation"]))
    order = np.random.RandomState(0).permutation(len(rows)).tolist()
    chosen = order[:SVAMP_TRAINING_ROWS] if split == "train" else order[SVAMP_TRAINING_ROWS:]
    return [rows[i] for i in chosen]


def _read_asdiv(path: Path) -> list[Row]:
    """Read every problem; its label is the number at the start of its answer, such as `9 (apples)`."""
    try:
        problems = ElementTree.parse(path).iter("Problem")
    except (OSError, LookupError, ValueError, ElementTree.ParseError) as error:
        raise BadFile(f"{path}: not ASDiv's XML ({error})") from error
    rows = []
    for problem in problems:
        body, question, answer = (problem.findtext(name) for name in ("Body", "Question", "Answer"))
        if body is None or question is None or answer is None:
            raise BadFile(f"{path}: the problem {problem.get('ID')} lacks its text or its answer")
        rows.append(Row(ASDIV.input_text({"body": body, "question": question}), answer.split(" ")[0]))
    return rows


def _numbered(folder: Path, split: Split) -> list[Path]:
    """A teacher's files for a split in the order of their numbers, named as if uncompressed."""
    names = {path.name.removesuffix(".gz") for path in folder.glob(f"{split}_CoT_*")}
    paths = [folder / f"{split}_CoT_{number}.json" for number in range(len(names))]
    missing = next((path for path in paths if path.name not in names), None)
    if missing or not paths:
        raise BadFile(f"{missing or folder / f'{split}_CoT_0.json'} is missing")
    return paths


def _list(path: Path) -> list[Any]:
    entries = read_json(_existing(path))
    if not isinstance(entries, list):
        raise BadFile(f"{path}: not a list")
    return entries


def _found(path: Path) -> Path | None:
    """The file, or its compressed version; None if neither exists."""
    return next((one for one in (path, path.with_name(f"{path.name}.gz")) if one.is_file()), None)


def _existing(path: Path) -> Path:
    found = _found(path)
    if found is None:
        raise BadFile(f"{path} is missing")
    return found
