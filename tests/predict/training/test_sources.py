"""A training that its data leaves nothing to learn from says why."""

from pathlib import Path

import pytest

from services.core.text_files import BadFile
from services.predict.data.inputs import read_inputs
from services.predict.data.rationale_file import Record
from services.predict.data.rows import LabelSource
from services.predict.data.task_file import OwnTask, read_task_file
from services.predict.training.recipe import Recipe
from services.predict.training.sources import DataSource
from tests.predict.data.tickets import write_task, write_tickets


def write_unparsed(path: Path, own: OwnTask, data: Path) -> Path:
    """Write an output that can't be parsed for each row."""
    records = [
        Record(
            id=one.id, row=one.row, prompt="", arguments="", model="big", output="No idea.", finish_reason="stop",
            rationale="", label="", problem="no_answer", prompt_tokens=1, completion_tokens=1,
        )
        for one in read_inputs(own.task, data)
    ]  # fmt: skip
    path.write_text("".join(record.model_dump_json() + "\n" for record in records))
    return path


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ("human", "no training row of tickets has a rationale ({}): extract others, or --method standard"),
        ("llm", "no row of tickets is left for training ({})"),
    ],
)
def test_outputs_that_cannot_be_parsed_are_named_as_the_reason(
    tmp_path: Path, labels: LabelSource, complaint: str
) -> None:
    own = read_task_file(write_task(tmp_path)).own()
    data = write_tickets(tmp_path)
    rationales = write_unparsed(tmp_path / "rationales.jsonl", own, data)
    source = DataSource("tickets", data, rationales, labels=labels, own=own)
    with pytest.raises(BadFile) as refused:
        source.read(Recipe())
    reason = f"33 of 33 outputs in {rationales} can't be parsed: no_answer: 33"
    assert str(refused.value) == complaint.format(reason)
