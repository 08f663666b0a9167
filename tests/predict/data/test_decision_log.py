"""Logs of decisions: a task for each question, a row for each answer, and refusals by file, line and field."""

import re
from pathlib import Path
from typing import Any

import pytest

from services.core.text_files import BadFile
from services.predict.data.decision_log import read_decisions
from tests.predict.data.decisions import MOOD, TEAM, URGENT, chosen, line, predicted, scored
from tests.predict.data.tickets import write_lines

GUIDE = Path(__file__).parents[3] / "docs" / "guide" / "distill.md"


def read(folder: Path, *lines: dict[str, Any]) -> Any:
    return read_decisions([write_lines(folder / "log.jsonl", list(lines))])


def test_each_question_is_a_task_whose_labels_are_its_options(tmp_path: Path) -> None:
    asked = ((TEAM, chosen("bug")), (URGENT, predicted(0.5)), (MOOD, scored(0.2, 0.1, 0.7)))
    found = read(tmp_path, line("It crashes.", *asked))
    assert {name: one.task.labels for name, one in found.items()} == {
        "team": ("billing", "bug"),
        "is-it-urgent": ("true", "false"),
        "mood": ("calm", "annoyed", "angry"),
    }
    assert {name: [(row.input, row.label) for row in one.rows] for name, one in found.items()} == {
        "team": [("It crashes.", "bug")],
        "is-it-urgent": [("It crashes.", "true")],
        "mood": [("It crashes.", "angry")],
    }


def test_a_predicate_below_one_half_is_false(tmp_path: Path) -> None:
    (row,) = read(tmp_path, line("Hello", (URGENT, predicted(0.49))))["is-it-urgent"].rows
    assert row.label == "false"


def test_choices_may_be_booleans(tmp_path: Path) -> None:
    spam = {**TEAM, "name": "spam", "choices": [{"value": True}, {"value": False}]}
    found = read(tmp_path, line("Hello", (spam, chosen(False))))["spam"]
    assert (found.task.labels, found.rows[0].label) == (("true", "false"), "false")


def test_the_texts_of_all_messages_are_the_input(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": "It crashes."}, {"type": "input_text", "text": "Often."}]
    messages = [{"role": "user", "content": parts}, {"role": "user", "content": "Help!", "type": "message"}]
    (row,) = read(tmp_path, line(messages, (TEAM, chosen("bug"))))["team"].rows
    assert row.input == "It crashes.\nOften.\nHelp!"


def test_a_task_is_called_as_its_question_whatever_its_name_in_the_store(tmp_path: Path) -> None:
    found = read(tmp_path, line("a", ({**TEAM, "name": "Team!"}, chosen("bug")), (URGENT, predicted(1))))
    assert {key: one.task.name for key, one in found.items()} == {"team": "Team!", "is-it-urgent": "Is it urgent?"}


def test_reasons_are_rationales_and_may_be_missing(tmp_path: Path) -> None:
    both = ((TEAM, chosen("bug")), (MOOD, scored(1, 0, 0)))
    found = read(
        tmp_path,
        line("a", *both, reasons=["It crashes.", None]),
        line("b", *both),
        line("c", (TEAM, chosen("bug")), reasons="It is broken."),
    )
    rationales = [row.output and row.output.rationale for row in found["team"].rows]
    assert rationales == ["It crashes.", None, "It is broken."]
    assert [row.output for row in found["mood"].rows] == [None, None]


def test_a_question_that_the_teacher_declined_gives_no_row_and_is_counted(tmp_path: Path) -> None:
    found = read(tmp_path, line("a", (TEAM, {"type": "refusal"}), (URGENT, predicted(1))))
    assert (found["team"].rows, found["team"].num_refused) == ([], 1)
    assert len(found["is-it-urgent"].rows) == 1


def test_options_may_be_asked_in_another_order(tmp_path: Path) -> None:
    turned = {**TEAM, "choices": TEAM["choices"][::-1]}
    found = read(tmp_path, line("a", (TEAM, chosen("bug"))), line("b", (turned, chosen("billing"))))
    assert [row.label for row in found["team"].rows] == ["bug", "billing"]


def test_instructions_and_requests_may_be_all_that_the_route_takes(tmp_path: Path) -> None:
    asked = {**URGENT, "name": "urgent", "instructions": [{"type": "input_json", "data": {"scale": [1, 2]}}]}
    sent = line([{"role": "user", "content": "It crashes."}], (asked, predicted(1)))
    sent["request"] |= {"prompt_cache_key": "tickets", "priority": "of another server"}
    assert read(tmp_path, sent)["urgent"].rows[0].input == "It crashes."


IMAGE = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]
JSON = [{"role": "user", "content": [{"type": "input_json", "data": {"subject": "It crashes."}}]}]
SYSTEM = [{"role": "system", "content": "Be brief."}]
CALL = [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}]
GOOD = line("a", (TEAM, chosen("bug")))


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        ({"response": {"answers": []}}, ":2: request: Field required"),
        ({"request": GOOD["request"]}, ":2: response: Field required"),
        (
            line(IMAGE, (TEAM, chosen("bug"))),
            ":2: request.input.0.content.0: This model reads no images.",
        ),
        (
            line(JSON, (TEAM, chosen("bug"))),
            ":2: request.input.0.content.0: a student of logs reads texts, not JSON; log it as input_text",
        ),
        (
            {
                **line("a", (TEAM, chosen("bug"))),
                "request": {"input": "a", "questions": [TEAM], "documents": ["The app is new."]},
            },
            ":2: request.documents: a student of logs reads no documents",
        ),
        (line(SYSTEM, (TEAM, chosen("bug"))), ":2: request.input.0: This model reads no messages of the role system"),
        (line(CALL, (TEAM, chosen("bug"))), ":2: request.input.0: This model reads no calls of tools"),
        (line("a", ({**TEAM, "labels": []}, chosen("bug"))), ":2: request.questions.0.labels: Unknown field"),
        (line(" ", (TEAM, chosen("bug"))), ":2: request.input is blank"),
        ({**GOOD, "response": {"answers": []}}, ":2: response.answers: 0, but request.questions has 1"),
        ({**GOOD, "reasons": ["a", "b"]}, ":2: reasons: 2, but request.questions has 1"),
        (line("a", (TEAM, predicted(1))), ":2: response.answers.0.type is predicate, but the question is a choice"),
        (line("a", (TEAM, chosen("bugs"))), ":2: response.answers.0: 'bugs' is no option of the question; the nearest"),
        (line("a", (URGENT, predicted(2))), ":2: response.answers.0.probability: Input should be less than"),
        (
            line("a", ({**TEAM, "choices": [*TEAM["choices"], {"value": "sales"}]}, chosen("sales"))),
            ":2: request.questions.0: team has other options than at",
        ),
        (line("a", ({**URGENT, "name": "team"}, predicted(1))), ":2: request.questions.0: team has other type than at"),
        (
            line("a", ({**TEAM, "instructions": "Who?"}, chosen("bug"))),
            "log.jsonl:1; give each question a `name` of its own",
        ),
        (
            line("a", ({**TEAM, "name": "one", "choices": [{"value": "b"}]}, chosen("b"))),
            ":2: request.questions.0.choices: List should have at least 2 items",
        ),
        (line("a", ({**URGENT, "instructions": "急?"}, predicted(1))), "a question's `name` names its task"),
    ],
)
def test_a_line_that_can_teach_nothing_is_refused_by_line_and_field(
    tmp_path: Path, bad: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(BadFile) as refused:
        read(tmp_path, GOOD, bad)
    assert str(refused.value).startswith(f"{tmp_path / 'log.jsonl'}:2: ")
    assert complaint in str(refused.value)


def test_the_log_of_the_guide_is_read(tmp_path: Path) -> None:
    (text,) = re.findall(r'^```json title="log.jsonl"\n(.*?)^```', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "log.jsonl").write_text(text)
    found = read_decisions([tmp_path / "log.jsonl"])
    assert {name: [row.label for row in one.rows] for name, one in found.items()} == {
        "team": ["bug", "billing"],
        "urgent": ["false"],
    }


def test_an_empty_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"log\.jsonl: there are no decisions"):
        read(tmp_path)
