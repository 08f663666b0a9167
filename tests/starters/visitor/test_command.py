"""`python -m starters visitor` asks over HTTP, prints and saves what it measured, and says what failed in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from starters.__main__ import app
from starters.visitor.questions import Question
from starters.visitor.results import RESULT_FILES
from starters.visitor.rows import all_rows
from starters.visitor.suite import Plan
from tests.kept_port import kept_port
from tests.starters.visitor.answerers import perfect, serving, serving_app

COUNT = 8


def visitor(*arguments: str, **environment: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(
        app, ["visitor", *arguments], prog_name="python -m starters"
    )


def questions(service: str, seeds: int = 1) -> list[Question]:
    probes = {probe.name: probe for row in all_rows() if row.service == service for probe in row.probes}
    return [one for seed in range(seeds) for probe in probes.values() for one in probe.questions(seed, COUNT)]


def printed(ended: Result) -> list[dict[str, Any]]:
    assert ended.exit_code == 0, ended.output
    found: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return found


def test_a_service_that_is_always_right_gets_100_over_http() -> None:
    with serving(questions("generate", 2), perfect) as url:
        ended = visitor("--url", url, "--services", "generate", "--seeds", "2", "--count", str(COUNT))
    (result,) = printed(ended)
    for row in all_rows():
        if row.service == "generate":
            assert result["scores"][row.key] == dict.fromkeys("01", 0.0 if row.is_error else 100.0), row.key
    assert result["settings"] == {"count": COUNT, "models": ["generate@1"]}
    assert "100.0 ± 0.0" in ended.stdout
    assert {tuple(seeds) for seeds in result["reliability"].values()} == {("0", "1")}
    assert "90–100 %" in ended.stdout
    assert "rejected" not in ended.stderr


def test_fixed_lists_are_asked_once_and_have_no_deviation() -> None:
    with serving(questions("predict"), perfect) as url:
        ended = visitor("--url", url, "--services", "predict", "--seeds", "3", "--count", str(COUNT))
    (result,) = printed(ended)
    assert {tuple(seeds) for seeds in result["scores"].values()} == {("0",)}
    assert "±" not in ended.stdout


def test_runs_are_compared_in_the_saved_file(tmp_path: Path) -> None:
    saved = str(tmp_path / "visitor.json")
    with serving(questions("predict"), perfect) as url:
        for run in ("before", "after"):
            ended = visitor("--url", url, "--services", "predict", "--run", run, "--save", saved)
    head = next(line for line in ended.stdout.splitlines() if "asked" in line)
    assert head.index("before") < head.index("after")
    assert [result.run for result in RESULT_FILES.load([Path(saved)])] == ["before", "after"]


def test_a_rejected_question_is_wrong_and_said_so() -> None:
    known = questions("predict")
    with serving([one for one in known if one.form == "label"], perfect) as url:
        ended = visitor("--url", url, "--services", "predict")
    (result,) = printed(ended)
    assert result["scores"]["everyday word problems: one step"] == {"0": 0.0}
    assert result["scores"]["inferences: all"] == {"0": 100.0}
    number = sum(one.form == "number" for one in known)
    assert result["rejected"] == {"0": number, "1": 0, "2": 0}
    told = f"{number} questions were rejected, which counts as wrong: /predict returned 413: query: is too long."
    assert told in ended.stderr.splitlines()


def test_the_key_is_read_from_the_environment_and_sent() -> None:
    with serving(questions("predict"), perfect, key="sesame") as url:
        arguments = ("--url", url, "--services", "predict", "--key-variable", "MY_KEY")
        assert visitor(*arguments, MY_KEY="sesame").exit_code == 0
        refused = visitor(*arguments, MY_KEY="wrong")
        unset = visitor(*arguments)
    assert one_line(refused) == f"python -m starters visitor: {url}/predict returned 401: Unknown key."
    assert unset.exit_code == 2
    assert "MY_KEY is not set" in unset.output


def one_line(ended: Result) -> str:
    assert (ended.exit_code, ended.stdout) == (1, "")
    [line] = [line for line in ended.stderr.splitlines() if not line.startswith(("predict, seed", "score, seed"))]
    return str(line)


def test_an_address_where_nothing_listens_is_one_line() -> None:
    with kept_port() as port:
        line = one_line(visitor("--url", f"http://127.0.0.1:{port}/v1/", "--services", "predict"))
    assert line.startswith(f"python -m starters visitor: no response from http://127.0.0.1:{port}/predict: ")


@pytest.mark.parametrize("url", ["gateway", "ftp://127.0.0.1:1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    refused = visitor("--url", url, "--services", "predict")
    assert refused.exit_code == 2
    assert f"{url} does not begin with http:// or https://" in refused.output


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (web.Response(text="<html>\nHello</html>"), "/predict: the response is not JSON"),
        (web.json_response({"ok": True}), "/predict: the response of /predict does not have its fields"),
        (web.Response(status=404, text="no\nsuch page"), "/predict returned 404: no such page"),
        (web.Response(status=500, body=b"\xff\x1b[2J"), "/predict returned 500: \ufffd\\x1b[2J"),
        (web.Response(status=302, headers={"Location": "/login"}), "/predict returned 302"),
        (web.Response(status=503, headers={"Retry-After": "0"}, text="starting"), "/predict returned 503: starting"),
    ],
    ids=["text", "other JSON", "404", "500", "redirect", "always busy"],
)
def test_another_server_is_one_line(response: web.Response, told: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=response.status, body=response.body, headers=response.headers)

    other = web.Application()
    other.router.add_post("/{path:.*}", answer)
    with serving_app(other) as url:
        line = one_line(visitor("--url", url, "--services", "predict"))
    assert line == f"python -m starters visitor: {url}{told}"


def test_a_busy_service_is_asked_again() -> None:
    answered: list[str] = []
    known = {
        question.body["inputs"][0]["premise"]: question for question in questions("predict") if question.form == "label"
    }

    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        answered.append(request.path)
        if len(answered) % 2:
            return web.Response(status=503, headers={"Retry-After": "0"})
        question = known.get(body["inputs"][0].get("premise"), Question("number", {}, 7))
        return web.json_response(perfect(question))

    busy = web.Application()
    busy.router.add_post("/{path:.*}", answer)
    with serving_app(busy) as url:
        (result,) = printed(visitor("--url", url, "--services", "predict", "--concurrency", "1"))
    assert result["scores"]["everyday word problems: the README's, without its second sentence"] == {"0": 100.0}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--services", "paint"), "'paint' is not one of embed, score, generate, predict"),
        (("--count", "7"), "'--count': Input should be greater than or equal to 8"),
        (("--seeds", "0"), "'--seeds': Input should be greater than or equal to 1"),
        (("--relevance-threshold", "nan"), "'--relevance-threshold': Input should be less than or equal to 1"),
    ],
)
def test_bad_options_are_refused_before_anything_is_asked(arguments: tuple[str, ...], told: str) -> None:
    ended = visitor(*arguments)
    assert ended.exit_code == 2
    assert told in " ".join(ended.output.replace("│", " ").split())


def test_a_seed_adds_to_the_seeds_that_were_saved(tmp_path: Path) -> None:
    saved = tmp_path / "visitor.json"
    with serving(questions("generate", 2), perfect) as url:
        for seeds in ("1", "2"):
            arguments = ("--services", "generate", "--count", str(COUNT), "--seeds", seeds, "--save", str(saved))
            assert visitor("--url", url, *arguments).exit_code == 0
    (result,) = RESULT_FILES.load([saved])
    assert result.mean("answers: ordinary names") == 100
    assert result.deviation("answers: ordinary names") == 0
    assert Plan("now").seeds == (0, 1, 2)
