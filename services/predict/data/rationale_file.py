"""Teachers' outputs in a file that stays valid when an extraction is killed, so that the next one can continue it.

rationales.jsonl                  one output per line, in order of arrival
rationales.jsonl.arguments.json   the extraction's arguments; only one with the same arguments may continue the file
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict

from services.core.durable_files import write_durably
from services.core.text_files import read_json
from services.jobs import inquiry
from services.jobs.inquiry import Identified, OutputError, RecordFile, digest_of
from services.jobs.resumption import differences, option_names
from services.predict.data.rows import TeacherOutput
from services.predict.data.teacher_outputs import parse_output

ARGUMENTS_SUFFIX = ".arguments.json"
JOB = "extraction"


class Record(Identified):
    """An output and what it was asked with.

    `row` is the input's place in its data set, `prompt` and `arguments` are digests, `model` is what the endpoint calls
    itself. `rationale` and `label` are what the rules read in `output`, also where there is a `problem`; tokens are
    None where the endpoint counts none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: int
    prompt: str
    arguments: str
    model: str | None
    output: str
    finish_reason: str | None
    rationale: str
    label: str
    problem: str | None
    prompt_tokens: int | None
    completion_tokens: int | None


@contextmanager
def opened_rationales(path: Path, arguments: Mapping[str, Any]) -> Iterator[RecordFile[Record]]:
    """Open a file with its records, or create it if there is none.

    Its arguments are written with its first record, so that an extraction without any output binds nobody.
    Raises OutputError.
    """
    beside = path.with_name(path.name + ARGUMENTS_SUFFIX)

    def check(records: Sequence[Record], num_torn_bytes: int) -> Callable[[], None] | None:
        begun = begun_with(path)
        if begun is not None and records:
            names = option_names(*arguments.keys() - {"task"})
            if changed := differences(begun, json.loads(json.dumps(arguments)), names):
                raise OutputError(
                    f"{path} belongs to an extraction with other arguments: {changed}. Use another --output, or"
                    f" remove it and {beside} to begin again"
                )
        own = digest_of(arguments)
        for number, record in enumerate(records, start=1):
            if record.arguments != own:
                raise OutputError(f"{path}: line {number} was requested with other arguments")
        if begun is None and num_torn_bytes:
            raise OutputError(f"{path} exists but is not the output of an extraction")
        told = json.dumps(arguments, indent=1, ensure_ascii=False).encode() + b"\n"
        return None if records and begun is not None else partial(write_durably, beside, [told])

    with RecordFile.opened(path, Record, JOB, check) as file:
        yield file


def read_records(path: Path) -> list[Record]:
    """Read the records of a file in order, except one left incomplete by a crash. Raises OutputError and BadFile."""
    return inquiry.read_records(path, Record, JOB)


def read_teacher_outputs(path: Path, task: str, num_rows: int) -> list[TeacherOutput | None]:
    """Read the output for each row of a data set; None if nothing was extracted. Raises OutputError.

    The outputs are parsed again, so that the current rules apply.
    """
    outputs: list[TeacherOutput | None] = [None] * num_rows
    for record in read_records(path):
        if record.row >= num_rows:
            raise OutputError(f"{path}: there is no row {record.row} of {num_rows}")
        outputs[record.row] = parse_output(task, record.output, "gpt")
    return outputs


def outputs_file(outputs: Path, name: str) -> Path:
    """Return the file of a split or a data set in a folder of a teacher's outputs, or the only file itself."""
    return outputs / f"{name}.jsonl" if outputs.is_dir() else outputs


def begun_with(path: Path) -> dict[str, Any] | None:
    """Read the arguments that a file's extraction was begun with; None if there are none. Raises Refused."""
    path = path.with_name(path.name + ARGUMENTS_SUFFIX)
    if not path.exists():
        return None
    begun = read_json(path)
    if not isinstance(begun, dict):
        raise OutputError(f"{path}: not the arguments of an extraction")
    return begun
