"""A vision-language model behind an endpoint is asked in both orders, strictly understood, and never asked twice."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from services.core.openai_client import MAX_MALFORMED, Endpoint, Patience
from services.core.refusals import Refused
from services.score.evaluation.endpoint import ChatJudge, ChatModel, choice, opened_log, prompt
from services.score.evaluation.judges import Result, evaluate
from services.score.evaluation.records import Record, Task, file_of
from tests.score.evaluation.endpoint.chat_server import ChatServer, error, options_of, seeing
from tests.score.evaluation.stand_ins import SOURCE, color_task

FAST = Patience(attempts=3, timeout_s=60, first_wait_s=0.001)


def ask(
    server: ChatServer,
    task: Task,
    *,
    log: Path | None = None,
    key: str | None = None,
    concurrency: int = 1,
    patience: Patience = FAST,
) -> Result:
    model = ChatModel(Endpoint(server.url, key=key), "sees-all", "Sees all", concurrency, log, patience)
    (result,) = evaluate(ChatJudge(model), [task])
    return result


def test_the_question_lists_the_captions_by_number() -> None:
    assert prompt(["a dog", "a cat"]) == (
        "Which caption best describes the image?\n(1) a dog\n(2) a cat\nOutput (1) or (2)."
    )
    assert prompt(["a", "b", "c"]).endswith("\n(3) c\nOutput (1), (2) or (3).")


@pytest.mark.parametrize(
    ("answer", "chosen"),
    [
        *(("(1)", 0), ("(2)", 1), ("1", 0), (" (2).\n", 1), ("2)", 1)),
        *(("(3)", None), ("(0)", None), ("", None), ("(1) or (2)", None), ("The first", None), ("(1) a dog", None)),
        *(("12", None), ("-1", None), ("Answer: (1)", None)),
    ],
)
def test_only_a_number_alone_is_an_answer(answer: str, chosen: int | None) -> None:
    assert choice(answer, 2) == chosen


def test_a_model_that_sees_is_right_in_both_orders(tmp_path: Path) -> None:
    with ChatServer().served() as server:
        result = ask(server, color_task(tmp_path))
    assert result.scores == {"colours": 100.0}
    assert result.settings == {
        "model": "sees-all",
        "orders": ["positive-first", "negative-first"],
        "max_tokens": 16,
        "unreadable_answers": 0,
        "refused_questions": 0,
    }
    assert len(server.bodies) == 6
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in server.bodies} == {("sees-all", 0, 16)}


def test_both_orders_are_asked_and_count_by_the_half(tmp_path: Path) -> None:
    with ChatServer(says=lambda _: "(1)").served() as server:
        result = ask(server, color_task(tmp_path))
    assert result.scores == {"colours": 50.0}
    first, second = (list(options_of(body).values()) for body in server.bodies[:2])
    assert first == ["something red", "something green", "something blue"]
    assert second == first[::-1]


def test_an_answer_that_names_no_option_is_wrong_and_counted(tmp_path: Path) -> None:
    def says(body: dict[str, Any]) -> str | None:
        seen = seeing(body)
        return {"(1)": "It is (1), I think.", "(2)": None}.get(seen, seen)

    with ChatServer(says=says).served() as server:
        result = ask(server, color_task(tmp_path))
    # in each record the true caption is the first and the last of three
    assert result.scores == {"colours": 50.0}
    assert result.settings["unreadable_answers"] == 3


def test_what_was_answered_is_not_asked_again(tmp_path: Path) -> None:
    task, log = color_task(tmp_path), tmp_path / "logs" / "answers.jsonl"
    with ChatServer().served() as server:
        first = ask(server, task.first(2), log=log)
        assert len(server.bodies) == 4
        ask(server, task, log=log)
        assert len(server.bodies) == 6
        # nothing is left to ask, and the answers are the same
        server.says = lambda _: "nothing"
        again = ask(server, task, log=log)
        assert len(server.bodies) == 6
    assert first.scores == again.scores == {"colours": 100.0}
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(one["task"], one["record"], one["order"], one["answer"]) for one in lines} >= {
        ("colours", "red", "positive-first", "(1)"),
        ("colours", "red", "negative-first", "(3)"),
    }


def test_another_question_is_asked_although_there_is_a_log(tmp_path: Path) -> None:
    task, log = color_task(tmp_path).first(1), tmp_path / "answers.jsonl"
    (record,) = task.records
    other = Task("colours", "colours", (Record("red", record.images, record.captions[:2]),), SOURCE)
    with ChatServer().served() as server:
        ask(server, task, log=log)
        ask(server, other, log=log)
        assert len(server.bodies) == 4
        # the same file with another image in it
        color_task(tmp_path)
        file_of(record.images[0]).write_bytes((tmp_path / "blue.png").read_bytes())
        assert ask(server, task, log=log).scores == {"colours": 0.0}
        assert len(server.bodies) == 6


def test_an_answer_that_a_crash_has_torn_is_asked_again_and_other_contents_are_refused(tmp_path: Path) -> None:
    task, log = color_task(tmp_path).first(1), tmp_path / "answers.jsonl"
    with ChatServer().served() as server:
        ask(server, task, log=log)
        whole = log.read_text()
        log.write_text(whole[:-9])
        assert ask(server, task, log=log).scores == {"colours": 100.0}
        assert len(server.bodies) == 3
        assert log.read_text() == whole
        log.write_text("{}\n" + whole)
        with pytest.raises(Refused, match=r"answers\.jsonl: line 1 is not an output of an evaluation"):
            ask(server, task, log=log)


def test_a_busy_endpoint_is_asked_again_when_it_says(tmp_path: Path) -> None:
    faults: list[web.Response | None] = [
        error(429, "slow down", Retry_After="0.01"),
        error(503, "busy"),
        error(500, "oh", Retry_After="soon"),
    ]
    with ChatServer(faults=faults).served() as server:
        result = ask(server, color_task(tmp_path).first(1), patience=Patience(4, 60, 0.001))
    assert result.scores == {"colours": 100.0}
    assert len(server.bodies) == 5


def test_the_endpoints_own_wait_takes_the_place_of_ours(tmp_path: Path) -> None:
    with ChatServer(faults=[error(429, "slow down", Retry_After="0.01") for _ in range(3)]).served() as server:
        # our own would be beyond any test's patience
        ask(server, color_task(tmp_path).first(1), patience=Patience(first_wait_s=60))
    assert len(server.bodies) == 5


def test_a_question_whose_connection_breaks_off_is_asked_again(tmp_path: Path) -> None:
    with ChatServer(faults=[error(503, "busy"), None, None]).served() as server:
        result = ask(server, color_task(tmp_path).first(1), patience=Patience(4, 60, 0.001))
    assert result.scores == {"colours": 100.0}
    assert len(server.bodies) == 5


def test_an_endpoint_that_stays_busy_ends_the_evaluation_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "answers.jsonl"
    with ChatServer().served() as server:
        ask(server, color_task(tmp_path).first(1), log=log)
        server.faults = [error(503, "busy") for _ in range(3)]
        with pytest.raises(Refused, match=r"3 attempts have failed; last error: 503: busy"):
            ask(server, color_task(tmp_path), log=log, patience=Patience(3, 60, 0.001))
    assert len(log.read_text().splitlines()) == 2


def test_a_refused_question_is_wrong_and_counted_where_others_are_answered(tmp_path: Path) -> None:
    with ChatServer(faults=[error(400, "content policy")]).served() as server:
        result = ask(server, color_task(tmp_path))
    assert result.scores == {"colours": pytest.approx(100 * 5 / 6)}
    assert result.settings["refused_questions"] == 1


def test_an_endpoint_that_takes_no_question_ends_the_evaluation(tmp_path: Path) -> None:
    with (
        ChatServer(faults=[error(400, "no images here") for _ in range(6)]).served() as server,
        pytest.raises(
            Refused,
            match=r"Sees all did not answer any question; last error, about record \w+: 400: no images here",
        ),
    ):
        ask(server, color_task(tmp_path))
    assert len(server.bodies) == 4


def test_a_wrong_key_is_told_at_once_and_no_key_is_ever_told(tmp_path: Path) -> None:
    with ChatServer(key="right").served() as server:
        with pytest.raises(Refused, match=r"returned 401: Incorrect API key provided: Bearer …$"):
            ask(server, color_task(tmp_path), key="wr0ng")
        assert ask(server, color_task(tmp_path), key="right").scores == {"colours": 100.0}
    assert "wr0ng" not in repr(Endpoint(server.url, key="wr0ng"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:1/v1", r"no response from http://127\.0\.0\.1:1/v1/chat/completions"),
        ("ftp://127.0.0.1/v1", r"ftp://127\.0\.0\.1/v1/chat/completions is not an HTTP address"),
    ],
)
def test_an_address_where_nobody_listens_is_told_at_once(tmp_path: Path, url: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        ask(ChatServer(url=url), color_task(tmp_path), patience=Patience(attempts=1000))


def test_what_does_not_answer_as_openais_does_is_told(tmp_path: Path) -> None:
    with (
        ChatServer(faults=[web.json_response({"text": "(1)"}) for _ in range(MAX_MALFORMED)]).served() as server,
        pytest.raises(Refused, match="does not have OpenAI's format"),
    ):
        ask(server, color_task(tmp_path).first(1))


def test_one_answer_that_is_not_in_openais_format_is_asked_for_again(tmp_path: Path) -> None:
    with ChatServer(faults=[web.json_response({"text": "(1)"})]).served() as server:
        assert ask(server, color_task(tmp_path)).scores == {"colours": 100.0}


def test_content_in_parts_is_put_together(tmp_path: Path) -> None:
    parts = {"choices": [{"message": {"content": [{"type": "text", "text": "(1"}, {"type": "text", "text": ")"}]}}]}
    with ChatServer(faults=[web.json_response(parts)]).served() as server:
        assert ask(server, color_task(tmp_path).first(1)).scores == {"colours": 100.0}


def test_a_choice_of_images_is_not_asked(tmp_path: Path) -> None:
    images = tuple(record.images[0] for record in color_task(tmp_path).records)
    task = Task("found", "mine", (Record("0", images, ("something red",)),), SOURCE)
    with pytest.raises(Refused, match=r"Sees all supports one image at a time, but found is a choice among images"):
        ask(ChatServer(url="http://127.0.0.1:1/v1"), task)


def test_a_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"nothing")
    task = Task("t", "mine", (Record("0", (path,), ("x", "y")),), SOURCE)
    with pytest.raises(Refused, match=r"a\.png can't be read as an image"):
        ask(ChatServer(url="http://127.0.0.1:1/v1"), task)


def test_two_evaluations_do_not_write_to_one_log(tmp_path: Path) -> None:
    log, task = tmp_path / "answers.jsonl", color_task(tmp_path).first(1)
    with opened_log(log), pytest.raises(Refused, match=r"another evaluation is writing to .*answers\.jsonl"):
        ask(ChatServer(url="http://127.0.0.1:1/v1"), task, log=log)
