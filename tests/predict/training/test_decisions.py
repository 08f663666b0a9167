"""From a log of decisions to students that serve its questions, and when to hand over to the teacher."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.core.store.store import Store
from services.core.text_files import BadFile
from services.predict.data.decision_log import read_decisions
from services.predict.training.decisions import app, by_label, divided, handover
from tests.predict.data.decisions import TEAM, URGENT, chosen, line, predicted
from tests.predict.data.tickets import ROWS, write_lines
from tests.predict.served_tiny import served_tiny

TINY = ["--model", "tiny", "--batch-size", "8", "--steps", "4"]


def log_of(folder: Path, num_rows: int) -> Path:
    """A log of tickets that differ by their numbers: every second one is a bug, every fourth one urgent."""
    lines = [
        line(
            f"{number}: {ROWS[number % len(ROWS)]['body']}",
            (TEAM, chosen(("billing", "bug")[number % 2])),
            (URGENT, predicted(0.9 if number % 4 == 0 else 0.2)),
            reasons=["Programs fail." if number % 2 else "It is about money.", None],
        )
        for number in range(num_rows)
    ]
    return write_lines(folder / "log.jsonl", lines)


def distill(log: Path, folder: Path, *options: str) -> Any:
    (folder / "recipe.toml").write_text("vocab_size = 400\nevaluate_every = 2\n")
    given = [log, *TINY, "--recipe", folder / "recipe.toml", "--output", folder / "run"]
    return CliRunner().invoke(app, [str(one) for one in (*given, "--store-url", (folder / "store").as_uri(), *options)])


def test_rows_are_divided_by_their_inputs(tmp_path: Path) -> None:
    lines = [line(f"{number % 50}", (TEAM, chosen("bug"))) for number in range(100)]  # each input twice
    data = divided(read_decisions([write_lines(tmp_path / "log.jsonl", lines)])["team"])
    parts = (data.train, data.valid, data.test, data.confided)
    # of 50 inputs 10 are for the test, of the other 40 8 for the confidence, and of 32 4 for the step
    assert [len(part) for part in parts] == [56, 8, 20, 16]
    assert len({example.input for part in parts for example in part}) == 50
    assert sum(len({example.input for example in part}) for part in parts) == 50


def test_too_few_answers_are_refused_with_the_question(tmp_path: Path) -> None:
    lines = [line(f"{number}", (TEAM, chosen("bug"))) for number in range(3)]
    with pytest.raises(BadFile, match=r"log\.jsonl:1: team: 3 answers are too few"):
        divided(read_decisions([write_lines(tmp_path / "log.jsonl", lines)])["team"])


def test_answers_from_the_threshold_on_are_counted_with_those_that_are_wrong() -> None:
    found = handover(0.8, [0.9, 0.8, 0.7, 0.85], [True, False, False, True])
    assert (found["agreement"], found["num_answered"], found["num_wrong"]) == (0.5, 3, 1)
    # bins of 0.7, 0.8 and 0.9: (0.7 + |1 - 1.65| + 0.1) / 4
    assert found["calibration_error"] == pytest.approx(0.3625)
    low, high = found["error_interval"]
    assert low < 1 / 3 < high


def test_without_a_threshold_everything_is_handed_over() -> None:
    found = handover(None, [0.9, 0.8], [True, True])
    assert (found["threshold"], found["num_answered"], found["error_interval"]) == (None, 0, None)


def test_a_student_is_compared_with_the_test_rows_own_most_frequent_answer() -> None:
    found = by_label(["billing", "bug", "bug", "billing", "bug"], [True, False, True, True, True])
    assert found["most_frequent_label"] == pytest.approx(3 / 5)
    assert found["agreement_by_label"] == {"billing": 1, "bug": pytest.approx(2 / 3)}


@pytest.mark.process
def test_a_log_becomes_a_served_student_for_each_question(tmp_path: Path) -> None:
    ended = distill(log_of(tmp_path, 120), tmp_path, "--max-error", "0.9")
    assert ended.exit_code == 0, ended.output
    assert "At most 90.0% wrong" in ended.output
    store = Store.open((tmp_path / "store").as_uri())
    by_label = {}
    for name in ("team", "is-it-urgent"):
        manifest = store.manifest(name, store.resolve(name, "latest"))
        assert manifest.training["task"] == name
        found: dict[str, Any] = manifest.metrics
        by_label[name] = found["agreement_by_label"].keys()
        assert (found["num_test"], found["max_error"]) == (24, 0.9)
        assert found["most_frequent_label"] >= 0.5  # of two labels
        assert 0 <= found["agreement"] <= 1 and 0 <= found["calibration_error"] <= 1
        low, high = found["error_interval"]
        assert found["threshold"] is not None and low <= found["num_wrong"] / found["num_answered"] <= high
    assert by_label["team"] == {"billing", "bug"}
    settings = {"models": "team,is-it-urgent"}
    with served_tiny((tmp_path / "store").as_uri(), tmp_path / "served", **settings) as client:
        listed = {task["id"]: task for task in client.get("/tasks").json()["data"]}
        assert {name: (task["fields"], task["labels"], task["rationales"]) for name, task in listed.items()} == {
            "team": (["input"], ["billing", "bug"], True),
            "Is it urgent?": (["input"], ["true", "false"], False),
        }
        asked = {"task": "team", "inputs": [{"input": "It crashes."}]}
        (answer,) = client.post("/predict", json=asked).json()["predictions"]
        assert answer["label"] in ("billing", "bug") and 0 <= answer["confidence"] <= 1
        asked = {"task": "Is it urgent?", "inputs": [{"input": "It crashes."}]}
        (answer,) = client.post("/predict", json=asked).json()["predictions"]
        question = {"type": "choice", "instructions": "Is it?", "choices": [{"value": True}, {"value": False}]}
        asked = {"model": "is-it-urgent", "input": "It crashes.", "questions": [question]}
        (decided,) = client.post("/v1/decisions", json=asked).json()["answers"]
        assert decided["choice"] is (answer["label"] == "true")
        assert decided["confidence"] == pytest.approx(answer["confidence"])


@pytest.mark.process
def test_a_finished_student_is_not_passed_off_as_one_of_a_log_that_grew(tmp_path: Path) -> None:
    log, opened = log_of(tmp_path, 40), []
    sys.addaudithook(lambda event, given: opened.append(event) if event == "open" and given[0] == str(log) else None)
    ended = distill(log, tmp_path, "--name", "help")
    assert ended.exit_code == 0
    assert len(opened) == 2  # read and digested once for both questions
    # without an error it takes 59 rows to show 5%, and 6 of these 40 are left to show it
    for task in ("team", "is-it-urgent"):
        assert f"{task}: hand every answer over to the teacher: no confidence shows at most 5.0% wrong" in ended.output
    assert "every confidence" in ended.output
    store = Store.open((tmp_path / "store").as_uri())
    assert set(store.names()) == {"help-team", "help-is-it-urgent"}
    log.write_text(log.read_text() + json.dumps(line("One more", (TEAM, chosen("bug")), (URGENT, predicted(0)))) + "\n")
    again = distill(log, tmp_path, "--name", "help")
    assert again.exit_code == 1 and "result.json belongs to a training with other arguments" in again.output


def test_a_bad_line_is_refused_in_one_line_before_any_training(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", [line("a", (TEAM, chosen("bugs")))])
    ended = distill(log, tmp_path)
    assert ended.exit_code == 1 and len(ended.output.splitlines()) == 1
    assert (
        ended.output.startswith("fovea distill decisions: ")
        and "log.jsonl:1: response.answers.0: 'bugs'" in ended.output
    )
