"""Task files: what they may say, and what is refused by its key."""

import json
from pathlib import Path

import pytest
import yaml

from services.core.text_files import BadFile
from services.predict.data.task_file import read_task_file
from services.predict.model.task_description import TaskDescription
from services.predict.tasks import RELEASED_PREFIXES
from tests.predict.data.tickets import ROWS, TASK, write_task


def test_a_task_file_says_the_same_as_yaml_and_as_json(tmp_path: Path) -> None:
    given = read_task_file(write_task(tmp_path))
    as_json = tmp_path / "tickets.json"
    as_json.write_text(json.dumps(yaml.safe_load(TASK)))
    assert read_task_file(as_json) == given
    task = given.to_task()
    assert (task.name, task.fields, task.labels) == ("tickets", ("subject", "body"), ("billing", "bug", "account"))
    assert task.input_text({"subject": "Refund", "body": "Please."}) == "Subject: Refund\nPlease."


def test_a_checkpoint_holds_all_that_a_service_needs_of_a_task(tmp_path: Path) -> None:
    task = read_task_file(write_task(tmp_path)).to_task()
    TaskDescription.of(task, RELEASED_PREFIXES, has_rationales=True).write(tmp_path)
    assert TaskDescription.read(tmp_path).to_task() == task


FIELDS = 'fields: [subject, body]\ntemplate: "Subject: {subject}\\n{body}"'


@pytest.mark.parametrize(
    ("part", "instead", "complaint"),
    [
        ("labels:", "lables:", "there is no 'lables'; the nearest is 'labels'"),
        ("  instruction:", "  instructions:", "there is no 'instructions'; the nearest is 'instruction'"),
        ("[billing, bug, account]", "[billing, bug, billing]", "labels must be unique"),
        ("[billing, bug, account]", "[billing, '']", "labels: '' is empty"),
        ("[billing, bug, account]", "[billing]", "labels: at least 2"),
        ("[billing, bug, account]", "[yes, no]", "labels: true is not a text; put it into quotes"),
        ("[subject, body]", "[]", "fields: Tuple should have at least 1 item"),
        ("[subject, body]", "[subject, body, subject]", "fields must be unique"),
        (FIELDS, "fields: [subject, body, team]", "fields: 'team' is the label or the rationale"),
        (FIELDS, f"fields: [{', '.join(f'f{n}' for n in range(65))}]", "fields: at most 64, not 65"),
        ("{body}", "", "template: it lacks {body}"),
        ("{body}", "{bdy}", "template: {bdy} is not a field; the nearest is 'body'"),
        ("{body}", "{body!r}", "template: {body} must be a field's name in braces"),
        ("{body}", "{body", "template: "),
        ("task: tickets", "task: svamp", "task: svamp is the name of a task that is built in"),
        ("task: tickets", "task: My Tickets", "task: its name consists of a-z"),
        ("task: tickets\n", "", "task: Field required"),
        (TASK, "- tickets", "not a task, which has the keys task, fields"),
        (TASK, "task: [", "expected the node content"),
        ("[subject, body]", "subject", "fields: Input should be a valid tuple"),
        ("task: tickets", "task: 3", "task: Input should be a valid string"),
        ("task: tickets", "task: tickets\nmetric: exact", "metric: Input should be 'exact_match' or 'equal_value'"),
        ("rationale: reason", "rationale: team", "rationale: 'team' is the key of the label"),
        (TASK.partition("prompt:")[2], " Find the team.", "prompt: Input should be an object"),
        ("rationale: reason", "test_share: 1", "test_share: Input should be less than 1"),
        ("rationale: reason", "split_seed: -1", "split_seed: Input should be greater than or equal to 0"),
        (
            "Receipt for March",
            "3",
            "prompt.demonstrations.0.subject: Input should be a text or a list",
        ),
    ],
)
def test_a_task_file_that_makes_no_sense_is_refused_by_its_key(
    tmp_path: Path, part: str, instead: str, complaint: str
) -> None:
    assert part in TASK
    path = write_task(tmp_path, TASK.replace(part, instead, 1))
    with pytest.raises(BadFile) as refused:
        read_task_file(path)
    assert str(refused.value).startswith(f"{path}:")
    assert complaint in str(refused.value)


@pytest.mark.parametrize(
    ("repeated", "complaint"),
    [
        (f"{TASK}task: other\n", ":14: the key 'task' occurs twice"),
        (TASK.replace("      label:", "      body: Again.\n      label:"), ":13: the key 'body' occurs twice"),
    ],
)
def test_a_key_that_occurs_twice_is_refused_with_its_line(tmp_path: Path, repeated: str, complaint: str) -> None:
    path = write_task(tmp_path, repeated)
    with pytest.raises(BadFile) as refused:
        read_task_file(path)
    assert str(refused.value) == f"{path}{complaint}"


def test_a_key_that_occurs_twice_is_refused_in_json_too(tmp_path: Path) -> None:
    path = tmp_path / "tickets.json"
    path.write_text('{"task": "tickets",\n "fields": ["body"], "task": "other"}')
    with pytest.raises(BadFile, match=r"tickets\.json: the key 'task' occurs twice"):
        read_task_file(path)
    path.write_text('{"task": "tickets",\n "fields": [}')
    with pytest.raises(BadFile, match=r"tickets\.json:2: not JSON \(Expecting value at column 13\)"):
        read_task_file(path)


@pytest.mark.parametrize("name", ["tickets.yaml", "tickets.json"])
def test_a_byte_order_mark_is_no_part_of_a_task_file(tmp_path: Path, name: str) -> None:
    given = read_task_file(write_task(tmp_path))
    path = tmp_path / name
    text = json.dumps(yaml.safe_load(TASK)) if path.suffix == ".json" else TASK
    path.write_text(text, encoding="utf-8-sig")
    assert read_task_file(path) == given


def test_the_guide_shows_these_tickets() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "distill.md").read_text()
    assert f"```yaml\n{TASK}```" in guide
    assert "".join(f"{json.dumps(row)}\n" for row in ROWS[:2]) in guide


def test_a_task_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"none\.yaml: No such file"):
        read_task_file(tmp_path / "none.yaml")
