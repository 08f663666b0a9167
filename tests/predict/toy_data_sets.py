"""Small data sets in the published layout: word problems with a teacher's outputs, and inferences with all splits."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from services.predict.data.rationale_file import Record

NUM_TRAIN, NUM_TEST = 20, 6


def write_svamp(folder: Path) -> Path:
    """20 training rows and 6 test rows; the teacher's labels have another form than people's. Returns the folder."""
    for split, number in (("train", NUM_TRAIN), ("test", NUM_TEST)):
        rows = [{"input": f"{split} box {i}\nHow many?", "label": f"( {i}.0 + 1.0 )"} for i in range(number)]
        _write_lines(folder / "svamp" / f"svamp_{split}.json", rows)
        texts = [f"There are {i} and one. The answer is ({i} + 1)." for i in range(number)]
        palm = folder / "svamp" / "palm"
        palm.mkdir(exist_ok=True)
        (palm / f"{split}_CoT_0.json").write_text(json.dumps(texts))
    return folder


def write_esnli(folder: Path) -> Path:
    """9 rows a split, each split with its teacher's outputs. Returns the folder."""
    labels = ("entailment", "neutral", "contradiction")
    for split in ("train", "valid", "test"):
        rows = [{"premise": f"{split} {i}", "hypothesis": "a dog", "label": i % 3} for i in range(9)]
        _write_lines(folder / "esnli" / f"esnli_{split}.json", rows)
        texts = [f"Because of {split}.\nAnswer: {labels[i % 3]}\n\nPremise" for i in range(9)]
        palm = folder / "esnli" / "palm"
        palm.mkdir(exist_ok=True)
        (palm / f"{split}_CoT_0.json").write_text(json.dumps(texts))
    return folder


def write_asdiv(folder: Path) -> Path:
    """8 problems. Returns the folder."""
    problem = (
        "<Problem ID='{i}'><Body>asdiv {i}</Body><Question>How many?</Question><Answer>{i} (boxes)</Answer></Problem>"
    )
    problems = "".join(problem.format(i=i) for i in range(8))
    path = folder / "asdiv" / "ASDiv.xml"
    path.parent.mkdir(parents=True)
    path.write_text(f"<Machine-Reading-Corpus-File><ProblemSet>{problems}</ProblemSet></Machine-Reading-Corpus-File>")
    return folder


def write_rationales(path: Path, outputs: dict[int, str]) -> Path:
    """A file of `fovea distill extract` with a teacher's texts by row. Returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fixed: dict[str, Any] = {"prompt": "p", "arguments": "a", "model": "m", "finish_reason": "stop", "problem": None}
    counts = {"prompt_tokens": None, "completion_tokens": None}
    records = [
        Record(id=f"train-{row}", row=row, output=output, rationale="", label="", **fixed, **counts)
        for row, output in outputs.items()
    ]
    path.write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    return path


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
