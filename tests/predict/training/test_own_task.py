"""A task of one's own: from its rows through a teacher and a training to a service that needs no second file."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.core.store.store import Store
from services.predict.extraction.command import app as extraction
from services.predict.training.train import app as training
from tests.predict.data.tickets import ROWS, TASK, write_lines, write_task, write_tickets
from tests.predict.served_tiny import served_tiny
from tests.predict.teacher_server import TeacherServer
from tests.predict.tiny_students import save_student

pytestmark = [pytest.mark.training, pytest.mark.process]

TINY = ["--model", "tiny", "--batch-size", "8", "--steps", "4"]
REFUND = {"subject": "Money back", "body": "I want a refund for May."}


@pytest.fixture
def server() -> Iterator[TeacherServer]:
    with TeacherServer().beside() as server:
        yield server


def distill(folder: Path, *options: str | Path, fails: bool = False) -> str:
    (folder / "recipe.toml").write_text("vocab_size = 400\nevaluate_every = 2\n")
    given = ["--task", folder / "tickets.yaml", *TINY, "--recipe", folder / "recipe.toml", "--output", folder / "run"]
    given += ["--store-url", (folder / "store").as_uri(), *options]
    result = CliRunner().invoke(training, [str(one) for one in given])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert (result.exit_code != 0) is fails, result.output
    return result.output


def extract(server: TeacherServer, folder: Path, *options: str | Path) -> Result:
    given = ["--task", folder / "tickets.yaml", "--output", folder / "rationales.jsonl"]
    given += ["--model", "big", "--base-url", server.url, *options]
    return CliRunner().invoke(extraction, [str(one) for one in given])


def test_labelled_rows_become_a_student_that_is_listed_and_answers(tmp_path: Path) -> None:
    write_task(tmp_path, TASK.replace("prompt:", "test_share: 0.2\nprompt:"))
    data = write_tickets(tmp_path)
    told = distill(tmp_path, "--data", data)
    num_explained = sum("reason" in row for row in ROWS)
    assert "7 test rows" in told and 0 < num_explained < len(ROWS)
    outcome = json.loads((tmp_path / "run" / "result.json").read_text())["outcome"]
    assert 0 <= outcome["test_accuracy"] <= 1
    store = Store.open((tmp_path / "store").as_uri())
    assert store.manifest("tickets", store.resolve("tickets", "latest")).training["task"] == "tickets"
    data.unlink()
    (tmp_path / "tickets.yaml").unlink()  # the checkpoint has all that a service needs
    with served_tiny((tmp_path / "store").as_uri(), tmp_path / "served", models="tickets") as client:
        (listed,) = client.get("/tasks").json()["data"]
        assert (listed["id"], listed["fields"]) == ("tickets", ["subject", "body"])
        assert (listed["labels"], listed["rationales"]) == (["billing", "bug", "account"], True)
        assert listed["metrics"]["test_accuracy"] == outcome["test_accuracy"]
        asked = {"task": "tickets", "inputs": [REFUND], "rationale": True, "probabilities": True}
        (answer,) = client.post("/predict", json=asked).json()["predictions"]
        assert answer["label"] in listed["labels"] and answer["probabilities"].keys() == set(listed["labels"])
        assert isinstance(answer["rationale"], str)
        refused = client.post("/predict", json={"task": "tickets", "inputs": [{"subject": "Hello"}]})
        assert refused.status_code == 422
        assert "body" in refused.json()["error"]["message"]


def test_a_teachers_labels_and_reasons_teach_rows_that_nobody_labelled(server: TeacherServer, tmp_path: Path) -> None:
    write_task(tmp_path)
    rows: list[dict[str, object]] = [{"subject": row["subject"], "body": row["body"]} for row in ROWS]
    for row, labelled in list(zip(rows, ROWS, strict=True))[::3]:
        row["team"] = labelled["team"]
    data = write_lines(tmp_path / "tickets.jsonl", rows)
    server.outputs = {"Answer:": "It is about money. So the answer is Billing."}
    done = extract(server, tmp_path, "--data", data)
    assert done.exit_code == 0, done.output
    assert server.asked.total() == len(ROWS)
    said = server.bodies[0]["messages"][0]["content"]
    assert said.startswith("Decide which team") and "The answer is one of: billing, bug, account." in said
    told = distill(tmp_path, "--data", data, "--rationales", tmp_path / "rationales.jsonl", "--labels", "llm")
    assert "no training row has the label account, bug" in told
    # people's labels of some rows only are not enough to learn from
    refused = distill(tmp_path, "--data", data, "--output", tmp_path / "other", fails=True)
    assert "tickets.jsonl:2: team is missing" in refused


def test_outputs_about_other_rows_are_refused(server: TeacherServer, tmp_path: Path) -> None:
    write_task(tmp_path)
    data = write_tickets(tmp_path)
    server.outputs = {"Answer:": "It is about money. So the answer is billing."}
    assert extract(server, tmp_path, "--data", data).exit_code == 0
    write_lines(data, [dict(row) for row in reversed(ROWS)])
    refused = distill(tmp_path, "--data", data, "--rationales", tmp_path / "rationales.jsonl", fails=True)
    assert "is about other rows" in refused


def test_a_finished_student_is_not_passed_off_as_one_of_rows_that_changed_since(tmp_path: Path) -> None:
    write_task(tmp_path)
    data = write_tickets(tmp_path)
    distill(tmp_path, "--data", data)
    assert "published tickets@" in distill(tmp_path, "--data", data)
    write_lines(data, [dict(row) for row in ROWS[:-1]])
    refused = distill(tmp_path, "--data", data, fails=True)
    assert "result.json belongs to a training with other arguments (content was" in refused


def test_free_answers_are_tested_by_exact_match(tmp_path: Path) -> None:
    free = TASK.replace("labels: [billing, bug, account]\n", "").split("prompt:")[0]
    write_task(tmp_path, free)
    told = distill(tmp_path, "--data", write_tickets(tmp_path), "--method", "standard")
    assert "published tickets@" in told
    with served_tiny((tmp_path / "store").as_uri(), tmp_path / "served", models="tickets") as client:
        (listed,) = client.get("/tasks").json()["data"]
        assert (listed["labels"], listed["rationales"]) == (None, False)
        (answer,) = client.post("/predict", json={"inputs": [REFUND]}).json()["predictions"]
        assert isinstance(answer["label"], str)


def test_an_answer_may_be_one_of_the_rows_own_choices(tmp_path: Path) -> None:
    teams = ["bug", "billing", "account"]
    free = TASK.replace("labels: [billing, bug, account]\n", "choices: teams\n").split("prompt:")[0]
    write_task(tmp_path, free.replace("body]", "body, teams]").replace("{body}", "{body}\\n{teams}"))
    data = write_lines(tmp_path / "tickets.jsonl", [{**row, "teams": teams} for row in ROWS])
    distill(tmp_path, "--data", data)
    with served_tiny((tmp_path / "store").as_uri(), tmp_path / "served", models="tickets") as client:
        (listed,) = client.get("/tasks").json()["data"]
        assert (listed["fields"], listed["labels"], listed["choices"]) == (["subject", "body", "teams"], None, "teams")
        asked = {"inputs": [{**REFUND, "teams": ["sales", "bug"]}]}
        (answer,) = client.post("/predict", json=asked).json()["predictions"]
        assert answer["label"] in ("sales", "bug")


def lower_casing_t5(folder: Path) -> Path:
    path = save_student(folder) / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "normalizer": {"type": "Lowercase"}}))
    return folder


def test_labels_that_the_model_reads_alike_are_refused_before_it_learns(tmp_path: Path) -> None:
    write_task(tmp_path, TASK.replace("account]", "account, Billing]"))
    model = lower_casing_t5(tmp_path / "t5")
    told = distill(tmp_path, "--data", write_tickets(tmp_path), "--model", model, fails=True)
    assert "labels: the model reads 'billing' and 'Billing' as the same tokens" in told


def test_choices_of_a_row_that_the_model_reads_alike_are_refused_with_the_row(tmp_path: Path) -> None:
    free = TASK.replace("labels: [billing, bug, account]\n", "choices: teams\n").split("prompt:")[0]
    write_task(tmp_path, free.replace("body]", "body, teams]").replace("{body}", "{body}\\n{teams}"))
    usual, alike = ["bug", "billing", "account"], ["Billing", "bug", "billing"]
    rows: list[dict[str, object]] = [{**row, "teams": alike if row is ROWS[5] else usual} for row in ROWS]
    told = distill(
        tmp_path,
        *("--data", write_lines(tmp_path / "tickets.jsonl", rows), "--model", lower_casing_t5(tmp_path / "t5")),
        fails=True,
    )
    assert "teams of the row 'Subject: Card expired" in told
    assert "the model reads 'Billing' and 'billing' as the same tokens" in told


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        ([], "tickets needs its rows, a file or a folder: give --data"),
        (["--data", "tickets.jsonl", "--labels", "llm"], "give --rationales"),
    ],
)
def test_a_training_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_task(tmp_path)
    write_tickets(tmp_path)
    told = distill(tmp_path, *options, fails=True)
    assert told.startswith("fovea train distill: ") and complaint in told
    assert len(told.splitlines()) == 1


def test_a_task_is_named_once(server: TeacherServer, tmp_path: Path) -> None:
    write_task(tmp_path)
    assert "name a task, or give a file with --task, and not both" in distill(tmp_path, "svamp", fails=True)
    both = extract(server, tmp_path, "svamp", "--data", write_tickets(tmp_path))
    assert both.exit_code == 2 and "not both" in both.output


def test_rows_without_a_reason_need_a_teacher_or_the_standard_method(tmp_path: Path) -> None:
    write_task(tmp_path)
    rows: list[dict[str, object]] = [{name: row[name] for name in ("subject", "body", "team")} for row in ROWS]
    told = distill(tmp_path, "--data", write_lines(tmp_path / "tickets.jsonl", rows), fails=True)
    assert "no training row of tickets has a rationale: give --rationales, or --method standard" in told
