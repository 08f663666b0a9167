"""VQAScore by a vision-language model behind an endpoint chooses captions, images and both."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.core.openai_client import Endpoint, Patience
from services.core.refusals import Refused
from services.score.evaluation.endpoint import ChatModel, VqaJudge
from services.score.evaluation.evaluate import app
from services.score.evaluation.judges import Result, evaluate
from services.score.evaluation.records import Record, Task
from tests.score.evaluation.endpoint.chat_server import ChatServer, color_of, error
from tests.score.evaluation.stand_ins import SOURCE, color_task

FAST = Patience(attempts=3, timeout_s=60, first_wait_s=0.001)


def seeing(body: dict[str, Any]) -> dict[str, float]:
    """Sure of yes where the caption names the colour of the image."""
    caption = body["messages"][0]["content"][1]["text"].split('"')[1]
    yes = 0.9 if color_of(body) in caption else 0.2
    return {" Yes": math.log(yes), "No": math.log(1 - yes)}


def ask(server: ChatServer, task: Task, *, log: Path | None = None) -> Result:
    model = ChatModel(Endpoint(server.url), "sees-all", "Sees all", 2, log, FAST)
    (result,) = evaluate(VqaJudge(model), [task])
    return result


def test_a_model_that_sees_is_right_about_captions_images_and_groups(tmp_path: Path) -> None:
    captions = color_task(tmp_path)
    paths, words = zip(*((one.images[0], one.captions[0]) for one in captions.records), strict=True)
    images = Task("images", "images", (Record("0", paths, words[:1]),), SOURCE)
    groups = Task("groups", "groups", (Record("0", paths[:2], words[:2]),), SOURCE)
    with ChatServer(first_token=seeing).served() as server:
        assert ask(server, captions).scores == {"colours": 100.0}
        assert ask(server, images).scores == {"images": 100.0}
        assert ask(server, groups).scores == {"groups": 100.0, "groups::text": 100.0, "groups::image": 100.0}
    assert len(server.bodies) == 9 + 3 + 4 and {body["max_tokens"] for body in server.bodies} == {1}


def test_the_command_asks_a_model_about_images_and_captions(tmp_path: Path) -> None:
    (first, second, _) = color_task(tmp_path).records
    record = {"id": "0", "images": [Path(str(one.images[0])).name for one in (first, second)]}
    file = tmp_path / "pairs.jsonl"
    file.write_text(json.dumps({**record, "captions": [first.captions[0], second.captions[0]]}))
    with ChatServer(first_token=seeing).served() as server:
        command = ["records", "--data", str(file), "--images", str(tmp_path), "--judge", "vqa", "--model", "sees-all"]
        ended = CliRunner().invoke(app, [*command, "--base-url", server.url])
    assert ended.exit_code == 0, ended.output
    (found,) = json.loads(ended.stdout.splitlines()[-1])
    assert (found["judge"], found["scores"]["pairs"]) == ("sees-all", 100.0)


def test_an_answer_without_yes_or_no_is_wrong_and_counted(tmp_path: Path) -> None:
    with ChatServer(first_token=lambda _: {"Maybe": -0.1}).served() as server:
        result = ask(server, color_task(tmp_path).first(2))
    assert result.scores == {"colours": 0.0}
    assert (result.settings["unreadable_answers"], result.settings["refused_questions"]) == (6, 0)


def test_a_refused_question_is_wrong_and_counted(tmp_path: Path) -> None:
    with ChatServer(first_token=seeing, faults=[error(400, "content policy")]).served() as server:
        result = ask(server, color_task(tmp_path).first(1))
    assert result.settings["refused_questions"] == 1 and result.scores == {"colours": 0.0}


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    task, log = color_task(tmp_path), tmp_path / "answers.jsonl"
    with ChatServer(first_token=seeing).served() as server:
        first = ask(server, task.first(1), log=log)
        server.first_token = None
        assert ask(server, task.first(1), log=log).scores == first.scores == {"colours": 100.0}
    assert len(server.bodies) == 3
    line = json.loads(log.read_text().splitlines()[0])
    assert (line["record"], line["model"]) == ("red", "sees-all") and " Yes" in json.loads(line["answer"])


def test_an_endpoint_without_log_probabilities_ends_the_evaluation(tmp_path: Path) -> None:
    with (
        ChatServer().served() as server,
        pytest.raises(Refused, match="Sees all answers without log-probabilities"),
    ):
        ask(server, color_task(tmp_path))
