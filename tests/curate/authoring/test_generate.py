"""`fovea curate generate` with a model that behaves, and with one that does not."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from services.core.openai_client import Endpoint, Patience
from services.curate.authoring.command import app
from services.curate.authoring.generation import Progress, Teacher, candidates_of
from services.curate.authoring.generation import generate as generated
from services.curate.authoring.job import GenerateOptions
from services.curate.data.captions import Caption
from services.jobs.sugarcrepe import Pair, read_pairs
from services.score.negatives.prompting.checks import WRITTEN_KINDS, problem_of
from services.score.negatives.prompting.prompt_files import OWN_PROMPTS, load_prompts
from services.score.negatives.prompting.writer import Requests
from tests.core.child_processes import running
from tests.curate.scene_captions import write_scene_captions
from tests.curate.scripted_model import ScriptedModel
from tests.predict.teacher_server import error, until

pytestmark = pytest.mark.process

NUM_CAPTIONS = 12
PATIENCE = ("--set", "timeout_s=2", "--concurrency", "4")


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel().beside() as model:
        yield model


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    return write_scene_captions(tmp_path / "captions.jsonl", NUM_CAPTIONS)


def arguments(model: ScriptedModel, captions: Path, *options: str, to: str = "out") -> list[str]:
    output = captions.with_name(to)
    return [str(captions), "--output", str(output), "--endpoint", model.url, "--model", "big", *PATIENCE, *options]


def generate(model: ScriptedModel, captions: Path, *options: str, to: str = "out") -> Result:
    return CliRunner().invoke(app, arguments(model, captions, *options, to=to))


def pairs(captions: Path, to: str = "out") -> list[Pair]:
    return read_pairs(captions.with_name(to) / "pairs.jsonl")


def rejected(captions: Path, to: str = "out") -> list[dict[str, Any]]:
    lines = (captions.with_name(to) / "rejected.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("steps", ["three", "one"])
def test_every_caption_has_a_checked_negative_of_each_type_or_a_reason(
    model: ScriptedModel, captions: Path, steps: str
) -> None:
    done = generate(model, captions, "--steps", steps)
    assert done.exit_code == 0, done.output
    kept, others = pairs(captions), rejected(captions)
    assert len(kept) + len(others) == NUM_CAPTIONS * len(WRITTEN_KINDS)
    assert {pair.kind for pair in kept} == set(WRITTEN_KINDS)
    assert {one["reason"] for one in others} <= {"nothing_to_change", "not_a_swap"}
    for pair in kept:
        assert problem_of(pair.kind, pair.caption, pair.negative_caption) is None  # type: ignore[arg-type]
        assert pair.second_caption is not None and pair.made_by is not None and pair.made_by.startswith("big, ")
    assert f"84 candidates: {len(kept)} kept as pairs, {len(others)} rejected" in done.stderr
    summary = json.loads((captions.with_name("out") / "summary.json").read_text())
    assert (summary["candidates"], summary["kept"]) == (len(kept) + len(others), len(kept))


def test_three_steps_ask_for_new_concepts_at_a_high_temperature_and_all_else_at_none(
    model: ScriptedModel, captions: Path
) -> None:
    bodies = []
    answer = model.answer

    async def noted(request: Any) -> Any:
        bodies.append(await request.json())
        return await answer(request)

    model.answer = noted  # type: ignore[method-assign]
    with model.beside():
        assert generate(model, captions, "--limit", "1", "--kinds", "replace_obj").exit_code == 0
    prompts = load_prompts()["replace_obj"].instructions
    steps = {prompts[step].strip(): step for step in prompts}
    asked = [(steps[body["messages"][0]["content"]], body["temperature"]) for body in bodies]
    assert asked == [("locate", 0.0), ("propose", 1.5), ("compose", 0.0)]


def test_several_negatives_of_a_type_change_different_concepts(model: ScriptedModel, captions: Path) -> None:
    done = generate(model, captions, "--kinds", "replace_obj,swap_obj", "--per-kind", "2")
    assert done.exit_code == 0, done.output
    by_caption = Counter((pair.caption, pair.kind) for pair in pairs(captions))
    assert max(by_caption.values()) == 2
    assert all(number == 1 for (_, kind), number in by_caption.items() if kind == "swap_obj")
    texts = [(pair.caption, pair.negative_caption) for pair in pairs(captions)]
    assert len(set(texts)) == len(texts)
    repeated = [one for one in rejected(captions) if one["reason"] == "repeated"]
    assert all((one["caption"], one["text"]) in texts for one in repeated)


def test_no_request_with_an_answer_on_disk_is_sent_again(model: ScriptedModel, captions: Path) -> None:
    assert generate(model, captions, "--limit", "5").exit_code == 0
    before = model.answered.total()
    first = pairs(captions)
    assert generate(model, captions).exit_code == 0
    assert generate(model, captions).exit_code == 0
    assert set(model.answered.values()) == {1} and model.answered.total() > before
    assert pairs(captions)[: len(first)] == first


def test_prices_make_a_cost_that_counts_what_was_paid_before(model: ScriptedModel, captions: Path) -> None:
    prices = ("--set", "price_in=2", "--set", "price_out=10")
    assert generate(model, captions, *prices, "--limit", "5").exit_code == 0
    done = generate(model, captions, *prices)
    cost = model.answered.total() * (500 * 2 + 10 * 10) / 1e6
    assert f"cost {cost:.4f}" in done.stderr
    assert json.loads((captions.with_name("out") / "summary.json").read_text())["cost"] == pytest.approx(cost)


def test_a_model_that_misbehaves_costs_only_what_it_spoils(model: ScriptedModel, captions: Path) -> None:
    model.misbehaves = 30
    runs = [generate(model, captions) for _ in range(2)]
    assert [run.exit_code for run in runs][-1] == 0, runs[-1].output
    assert runs[0].exit_code == 0, runs[0].output  # what passes is asked for again by the same run
    assert {"429", "500", "dropped", "halved", "no json", "hangs", "400", "truncated"} <= model.behaviours.keys()
    kept, others = pairs(captions), rejected(captions)
    assert len(kept) + len(others) == NUM_CAPTIONS * len(WRITTEN_KINDS)
    assert {"refused", "truncated", "unreadable"} <= {one["reason"] for one in others}
    assert "unanswered" not in {one["reason"] for one in others}
    # whatever went wrong, no text passes that is not such a negative
    assert all(problem_of(pair.kind, pair.caption, pair.negative_caption) is None for pair in kept)  # type: ignore[arg-type]
    assert not any("sorry" in pair.negative_caption for pair in kept)


def test_candidates_without_an_answer_may_be_few_enough_to_go_on(model: ScriptedModel, captions: Path) -> None:
    model.misbehaves = 30
    stopped = generate(model, captions, "--set", "attempts=1")
    number = sum(one["reason"] == "unanswered" for one in rejected(captions))
    assert stopped.exit_code == 3
    share = re.search(r"--max-unanswered (\S+)", stopped.stderr)
    assert share and float(share[1]) >= number / (NUM_CAPTIONS * len(WRITTEN_KINDS))
    model.sent.clear()  # it misbehaves as before
    assert generate(model, captions, "--set", "attempts=1", "--max-unanswered", share[1]).exit_code == 0
    assert "--max-unanswered" not in generate(model, captions).stderr


async def test_silence_of_the_model_is_told_without_a_terminal(model: ScriptedModel, tmp_path: Path) -> None:
    model.misbehaves, model.delay_s = 0, 30
    console = Console(file=io.StringIO(), width=500)
    patience = Patience(attempts=500, timeout_s=0.3, first_wait_s=0.001, longest_wait_s=0.01, silence_s=0.01)
    teacher = Teacher(Endpoint(model.url), Requests("big", "chat", 256, {}), patience)
    candidates = candidates_of([Caption("1", "1.jpg", "a red circle above a blue star")], ("swap_obj",))
    work = generated(candidates, GenerateOptions(model="big").writer(), teacher, tmp_path, console, Progress())
    writing = asyncio.create_task(work)
    await until(lambda: "requests waiting: 1" in console.file.getvalue())  # type: ignore[attr-defined]
    model.delay_s = 0
    await writing
    assert f"no answer from {model.url}/chat/completions for" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_signal_lets_the_answers_on_their_way_come(model: ScriptedModel, captions: Path) -> None:
    model.delay_s = 0.05
    command = [sys.executable, "-m", "services.curate.authoring.command", *arguments(model, captions)]
    with running(command, stderr=subprocess.PIPE) as process:
        assert model.was_asked.wait(60)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1]
        assert process.returncode == 130 and "Run the same command to continue" in told
    num_answers = len((captions.with_name("out") / "answers.jsonl").read_text().splitlines())
    assert 0 < num_answers == model.answered.total()
    model.delay_s = 0
    assert generate(model, captions).exit_code == 0
    assert set(model.answered.values()) == {1}


def test_a_model_that_ignores_its_demonstrations_is_not_paid_to_the_end(model: ScriptedModel, captions: Path) -> None:
    model.misbehaves = 100
    stopped = generate(model, captions, "--set", "max_unusable=0.1", "--set", "attempts=1")
    assert stopped.exit_code == 4
    assert "answers are not in the form of the demonstrations" in stopped.stderr
    assert "All answers are kept." in stopped.stderr
    few = generate(model, captions, "--limit", "1", "--set", "max_unusable=0.1", to="few")
    assert few.exit_code == 4


def test_an_endpoint_that_refuses_everything_ends_the_command(
    model: ScriptedModel, captions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(request: Any) -> Any:
        return error(400, "There is no parameter 'stop'.")

    model.answer = refuse  # type: ignore[method-assign]
    with model.beside():
        few = generate(model, captions, "--limit", "1", "--kinds", "swap_obj")
        many = generate(model, captions)
    assert few.exit_code == 1 and "every request was rejected for the same reason, 400: There is no" in few.stderr
    assert many.exit_code == 1 and "the first 8 captions are rejected; last error: 400" in many.stderr


def test_a_caption_that_is_refused_in_all_types_does_not_end_the_command(model: ScriptedModel, captions: Path) -> None:
    first = json.loads(captions.read_text().splitlines()[0])["caption"]
    answer = model.answer

    async def filtered(request: Any) -> Any:
        asked = (await request.json())["messages"][-1]["content"]
        return error(400, "The content filter says no.") if first in asked else await answer(request)

    model.answer = filtered  # type: ignore[method-assign]
    with model.beside():
        done = generate(model, captions, "--concurrency", "1", "--per-kind", "2")
    assert done.exit_code == 0, done.output
    refused = [one["caption"] for one in rejected(captions) if one["reason"] == "refused"]
    assert set(refused) == {first} and len(refused) == 12


def test_an_endpoint_that_wants_a_key_is_told_with_the_option(model: ScriptedModel, captions: Path) -> None:
    model.key = "sk-right"
    refused = generate(model, captions)
    assert refused.exit_code == 1
    assert "401: Incorrect API key provided. (no key was sent)" in refused.stderr and "--key-variable" in refused.stderr


def test_the_key_comes_from_the_environment_and_is_written_nowhere(
    model: ScriptedModel, captions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "MY_KEY is not set" in generate(model, captions, "--key-variable", "MY_KEY").stderr
    monkeypatch.setenv("MY_KEY", "sk-secret")
    done = generate(model, captions, "--key-variable", "MY_KEY", "--limit", "2")
    assert done.exit_code == 0, done.output
    written = "".join(path.read_text() for path in captions.with_name("out").iterdir())
    assert "sk-secret" not in written + done.output


def test_own_prompts_are_used_and_the_first_request_can_be_looked_at(
    model: ScriptedModel, captions: Path, tmp_path: Path
) -> None:
    own = tmp_path / "prompts"
    own.mkdir()
    text = (OWN_PROMPTS / "replace_obj.toml").read_text().replace("You get a sentence", "Here is a sentence")
    (own / "replace_obj.toml").write_text(text)
    shown = generate(model, captions, "--prompts", str(own), "--show-prompt")
    body = json.loads(shown.stdout)
    assert body["messages"][0]["content"].startswith("Here is a sentence") and body["model"] == "big"
    assert not model.sent and not captions.with_name("out").exists()
    as_text = json.loads(generate(model, captions, "--api", "completions", "--show-prompt").stdout)
    assert as_text["prompt"].endswith(f"Sentence: {json.loads(captions.read_text().splitlines()[0])['caption']}\n")
    assert as_text["stop"] == ["\n\nSentence:"]


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        (("--kinds", "negate"), 1, "kinds: negate is made by rules alone"),
        (("--kinds", "add_obj", "--method", "rules"), 1, "kinds: add_obj needs a model"),
        (("--kinds", "swop"), 2, "'swop' is not one of replace_obj"),
        (("--model", "", "--method", "rules", "--set", "wordnet=nowhere"), 1, "nowhere"),
        (("--set", "attempts"), 2, "'attempts' is not NAME=VALUE"),
        (("--set", "attempts=no"), 2, "--set attempts: Input should be a valid integer"),
        (("--set", "atempts=3"), 2, "--set atempts: Extra inputs are not permitted"),
        (("--field", "title=caption"), 2, "name caption=, image=, id= or second="),
        (("--prompts", "nowhere"), 1, "nowhere is not a folder of prompts"),
        (("--extra", "[]"), 2, "not a JSON object"),
        (("--field", "caption=title"), 1, "captions.jsonl:1: title is missing"),
    ],
)
def test_what_cant_be_done_is_told_before_anything_is_asked(
    model: ScriptedModel, captions: Path, options: tuple[str, ...], status: int, complaint: str
) -> None:
    done = generate(model, captions, *options)
    assert (done.exit_code, complaint in " ".join(done.output.split())) == (status, True), done.output
    assert not model.sent


def test_a_file_that_is_not_there_is_told_by_name(model: ScriptedModel, captions: Path) -> None:
    done = generate(model, captions.with_name("gone.jsonl"))
    assert done.exit_code == 2 and "gone.jsonl" in done.output and "Errno" not in done.output


def test_a_torn_answer_file_loses_no_whole_answer(model: ScriptedModel, captions: Path) -> None:
    assert generate(model, captions, "--limit", "3").exit_code == 0
    answers = captions.with_name("out") / "answers.jsonl"
    content = answers.read_bytes()
    answers.write_bytes(content[:-10])
    assert generate(model, captions, "--limit", "3").exit_code == 0
    assert sorted(answers.read_bytes().splitlines()) == sorted(content.splitlines())
    assert sorted(model.answered.values())[-2:] == [1, 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        answers.write_bytes(b"my notes\n" + content)
        assert "line 1 is not an output of a generation" in generate(model, captions).stderr
