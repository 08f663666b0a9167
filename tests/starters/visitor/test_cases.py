"""Cases made by hand are read from a folder, asked and counted."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from starters.__main__ import app
from starters.visitor.cases import BadCase, read_cases
from tests.starters.visitor.answerers import perfect, serving

CASES: list[dict[str, Any]] = [
    {
        "service": "embed",
        "request": {"images": ["a.png", "b.png", "c.png"], "condition": "color"},
        "right": "c.png",
    },
    {"service": "score", "request": {"image": "a.png", "captions": ["a cat", "a dog"]}, "right": "a dog"},
    {"service": "generate", "request": {"query": "Who?", "documents": ["Ann did it."]}, "right": ["Ann", "She"]},
    {"service": "generate", "request": {"query": "Why?", "documents": ["Ann did it."]}, "right": None},
    {"service": "generate", "request": {"messages": [{"role": "user", "content": "Who?"}]}, "right": "Ann"},
    {"service": "predict", "request": {"task": "sums", "inputs": [{"question": "1 + 1?"}]}, "right": 2},
    {"service": "predict", "request": {"task": "nli", "inputs": [{"premise": "It rains."}]}, "right": "neutral"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png", "c.png"):
        Image.new("RGB", (8, 8), "red" if name != "b.png" else "blue").save(tmp_path / name)
    write(tmp_path, *CASES)
    return tmp_path


def write(folder: Path, *cases: dict[str, Any]) -> None:
    (folder / "cases.jsonl").write_text("\n".join(json.dumps(case) for case in cases) + "\n")


def test_every_kind_of_case_is_asked_and_the_right_ones_are_counted(folder: Path, tmp_path: Path) -> None:
    cases = read_cases(folder)
    saved = tmp_path / "results" / "visitor.json"
    with serving([case.question for case in cases], perfect) as url:
        arguments = ["visitor", "--url", url, "--cases", str(folder), "--save", str(saved)]
        ended = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    assert ended.exit_code == 0, ended.output
    results = json.loads(ended.stdout.splitlines()[-1])
    counts = {result["service"]: (result["settings"]["right"], result["settings"]["cases"]) for result in results}
    assert counts == {"embed": (1, 1), "score": (1, 1), "generate": (3, 3), "predict": (2, 2)}
    assert ended.stdout.count("✓") == len(CASES)
    assert "3 of 3" in ended.stdout
    assert json.loads(saved.read_text()) == results


def test_of_the_cases_only_those_of_the_chosen_services_are_asked(folder: Path) -> None:
    cases = [case for case in read_cases(folder) if case.service == "predict"]
    arguments = ["visitor", "--cases", str(folder), "--services"]
    with serving([case.question for case in cases], perfect) as url:
        ended = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*arguments, "predict", "--url", url])
    assert ended.exit_code == 0, ended.output
    assert [result["service"] for result in json.loads(ended.stdout.splitlines()[-1])] == ["predict"]
    write(folder, *(case for case in CASES if case["service"] != "predict"))
    ended = CliRunner().invoke(app, [*arguments, "predict"])
    assert ended.exit_code == 1
    assert "holds no cases of predict" in ended.stderr


def test_a_rejected_case_is_wrong_and_said_so(folder: Path) -> None:
    cases = read_cases(folder)
    with serving([case.question for case in cases[1:]], perfect) as url:
        ended = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["visitor", "--url", url, "--cases", str(folder)])
    assert ended.exit_code == 0, ended.output
    told = "1 question was rejected, which counts as wrong: /embed returned 413: query: is too long."
    assert told in ended.stderr.splitlines()
    assert "0 of 1" in ended.stdout


def test_images_are_sent_as_they_lie_in_the_folder(folder: Path) -> None:
    case = read_cases(folder)[1]
    uri = case.question.body["image"]
    assert uri.startswith("data:image/png;base64,")
    assert case.question.right == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"service": "paint"}, "service: 'paint' is not one of embed, score, generate, predict"),
        ({"right": "a bird"}, "right: 'a bird' is not one of the captions"),
        ({"request": {"image": "no.png", "captions": ["a cat", "a dog"]}}, "no.png does not exist"),
        ({"request": {"image": "notes.txt", "captions": ["a cat", "a dog"]}}, "notes.txt is not named as an image"),
        ({"request": {"captions": ["a dog"]}}, "'image' is missing"),
        ({"wrong": 1}, "unknown field 'wrong'"),
        ({"service": "embed", "request": {"images": ["a.png"]}}, "'a dog' is not one of the images after the first"),
        ({"service": "generate", "request": {}}, "request: has neither 'query' nor 'messages'"),
        (
            {"service": "generate", "request": {"query": "?"}, "right": 1},
            "right: must be a text, a list of texts or null",
        ),
        ({"service": "predict", "request": {"inputs": [{}, {}]}}, "request.inputs: must hold one input"),
        ({"service": "predict", "request": {"inputs": [{}]}, "right": None}, "right: must be a label or a number"),
    ],
)
def test_a_bad_case_is_named_by_its_line(folder: Path, change: dict[str, Any], told: str) -> None:
    write(folder, CASES[0], {**CASES[1], **change})
    with pytest.raises(BadCase) as refused:
        read_cases(folder)
    assert str(refused.value).startswith(f"{folder / 'cases.jsonl'}, line 2: ")
    assert told in str(refused.value)


def test_a_folder_without_cases_is_refused_in_one_line(tmp_path: Path) -> None:
    for text in (None, "", "not JSON"):
        if text is not None:
            (tmp_path / "cases.jsonl").write_text(text)
        ended = CliRunner().invoke(app, ["visitor", "--cases", str(tmp_path)], prog_name="python -m starters")
        assert ended.exit_code == 1
        [line] = ended.stderr.splitlines()
        assert line.startswith("python -m starters visitor: ")
        assert "cases.jsonl" in line
