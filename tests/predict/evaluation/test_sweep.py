"""A sweep teaches every student once, whatever is killed, fails or runs beside it."""

import fcntl
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from services.core.refusals import Refused
from services.predict.evaluation.evaluate import app, few_shot_cot_of
from services.predict.evaluation.results import RESULT_FILES, Result, estimate, few_shot_cot
from services.predict.evaluation.sweep import (
    LOCK,
    LOG,
    PALM,
    SCORES,
    Cell,
    Grid,
    Sweep,
    Teacher,
    collect,
)
from services.predict.extraction.command import app as extraction
from services.predict.training.recipe import Recipe
from services.predict.training.sources import DataSource
from tests.imports import ROOT
from tests.predict.published_outputs import folder as published_folder
from tests.predict.teacher_server import TeacherServer
from tests.predict.toy_data_sets import write_esnli, write_rationales, write_svamp

pytestmark = pytest.mark.process

SMALL = DataSource("svamp", Path("data"))
SHORT = Recipe(steps=2, evaluate_every=1, batch_size=4, max_new_tokens=4, vocab_size=512)
GRID = Grid(
    sources=(SMALL,),
    models=("tiny",),
    methods=("standard", "step-by-step"),
    labels=("human",),
    teachers=(Teacher(PALM),),
    fractions=(1.0,),
    seeds=(0,),
    recipe=SHORT,
)
OPTIONS = [
    *("--tasks", "svamp", "--data", "data", "--models", "tiny", "--recipe", "recipe.toml"),
    *("--batch-size", "4", "--fractions", "1", "--seeds", "0"),
]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_svamp(Path("data"))
    write_recipe()


def write_recipe(**values: int) -> None:
    """Write a recipe of small students."""
    lines = (f"{name} = {value}\n" for name, value in {"max_new_tokens": 4, "vocab_size": 512, **values}.items())
    Path("recipe.toml").write_text("".join(lines))


@dataclass
class Heard:
    """The events of a sweep."""

    finished: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def on_line(self, cell: Cell, line: str) -> None:
        self.lines.append(line)

    def on_end(self, cell: Cell, outcome: Result | str) -> None:
        if isinstance(outcome, str):
            self.failed[cell.name] = outcome
        else:
            self.finished.append(cell.name)

    def run(self, sweep: Sweep, num_workers: int = 1) -> int:
        return sweep.run(num_workers, self.on_line, self.on_end)


def num_parameters(checkpoint: Path) -> int:
    """Count the numbers in a checkpoint's weights."""
    return sum(weight.numel() for path in checkpoint.glob("*.safetensors") for weight in load_file(path).values())


def log_of(output: Path, name: str) -> list[str]:
    return (output / name / LOG).read_text().splitlines()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 270
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)


def test_a_failed_student_is_told_and_the_others_are_taught(tmp_path: Path) -> None:
    cells = replace(GRID, models=("no-such-shape", "tiny")).cells()
    sweep, heard = Sweep(cells, tmp_path), Heard()
    assert heard.run(sweep, num_workers=2) == 2
    assert sorted(heard.finished) == sorted(cell.name for cell in cells if cell.model == "tiny")
    assert all("no-such-shape" in name and "neither a directory" in reason for name, reason in heard.failed.items())
    assert len(heard.failed) == 2
    assert any(line.startswith("step 2/2") for line in heard.lines)
    results = collect(tmp_path)
    assert [result.method for result in results] == ["standard", "step-by-step"]
    for result in results:
        scores = result.scores["0"]
        assert scores["num_train"] == 18
        assert scores["num_parameters"] == num_parameters(next(tmp_path.glob(f"*_tiny_{result.method}_*/checkpoint")))
        assert 0 <= scores["test_accuracy"] <= 1
    # those that are finished are not run again, the others are
    again, heard = Sweep(cells, tmp_path, is_lean=True), Heard()
    assert len(again.found) == 2
    assert heard.run(again) == 2
    assert not heard.finished


def test_two_sweeps_at_once_share_the_students(tmp_path: Path) -> None:
    sweeps = [Sweep(GRID.cells(), tmp_path, is_lean=True) for _ in range(2)]
    heard = [Heard(), Heard()]
    numbers = [1, 1]

    def run(number: int) -> None:
        numbers[number] = heard[number].run(sweeps[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [0, 0]
    names = {cell.name for cell in GRID.cells()}
    for one in heard:
        assert set(one.finished) == names  # also those that the other one has taught
    for name in names:
        assert sum(line.startswith("best step") for line in log_of(tmp_path, name)) == 1
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == [LOCK, LOG, SCORES]


def test_a_student_whose_process_is_killed_has_failed_and_goes_on_in_the_next_sweep(tmp_path: Path) -> None:
    grid = replace(GRID, methods=("standard",), recipe=replace(SHORT, steps=100_000))
    sweep, heard = Sweep(grid.cells(), tmp_path), Heard()
    (cell,) = grid.cells()

    def kill() -> None:
        wait_for(tmp_path / cell.name / "resume.pt")
        for process in multiprocessing.active_children():
            if process.name == cell.name and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert heard.run(sweep) == 1
    killer.join()
    assert heard.failed[cell.name].startswith("killed by signal 9")
    assert not Sweep(grid.cells(), tmp_path).found


def test_rows_are_counted_by_split_and_a_missing_split_has_no_number(tmp_path: Path) -> None:
    write_esnli(write_svamp(tmp_path))
    (tmp_path / "esnli" / "esnli_train.json").unlink()
    told = CliRunner().invoke(app, ["counts", "--data", str(tmp_path)])
    assert json.loads(told.stdout.splitlines()[-1]) == {
        "esnli": {"valid": 9, "test": 9},
        "anli1": {},
        "cqa": {},
        "svamp": {"train": 18, "valid": 2, "test": 6},
    }
    refused = CliRunner().invoke(app, ["counts", "--data", str(tmp_path), "--tasks", "swamp"])
    assert (refused.exit_code, "did you mean svamp?" in " ".join(refused.stderr.split())) == (2, True)


def test_a_killed_sweep_takes_its_students_along_and_goes_on_where_it_was(tmp_path: Path) -> None:
    arguments = ["sweep", "--output", str(tmp_path), *OPTIONS, "--steps", "40"]
    write_recipe(evaluate_every=20)
    evaluated = ["20/40", "40/40"]
    first, second = (cell.name for cell in GRID.cells())
    command = [sys.executable, "-m", "tests.predict.held_sweep", *arguments]
    sweep = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_for(tmp_path / second / "resume.pt")
    finally:
        sweep.kill()
        sweep.communicate()
    with (tmp_path / second / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the student's process ends by itself
    before = (tmp_path / first / SCORES).stat().st_mtime_ns
    told = log_of(tmp_path, second)
    assert not any("40/40" in line for line in told)  # and at once, not where it next has something to tell

    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    assert "2 students, 1 of them finished before" in done.stderr
    assert (tmp_path / first / SCORES).stat().st_mtime_ns == before
    steps = [line.split()[1] for line in log_of(tmp_path, second) if line.startswith("step")]
    told_once = [step for step in steps if step in evaluated]  # a slow machine tells of steps between them too
    assert told_once in (evaluated, evaluated[1:])  # the first one is untold if the kill came between state and telling
    assert log_of(tmp_path, second)[: len(told)] == told
    results = json.loads(done.stdout.splitlines()[-1])
    assert [result["method"] for result in results] == ["few-shot-cot", "standard", "step-by-step"]
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert "| tiny |" in (tmp_path / "tables.md").read_text()


def test_a_folder_of_other_settings_is_refused_and_stays(tmp_path: Path) -> None:
    (cell,) = replace(GRID, methods=("standard",)).cells()
    scores = {"test_accuracy": 0.5, "validation_accuracy": 0.5, "num_train": 24, "num_parameters": 1, "seconds": 1.0}
    write(cell, scores, tmp_path)
    assert [result.scores for _, result in Sweep([cell], tmp_path).found] == [{"0": scores}]
    other = replace(cell, recipe=replace(cell.recipe, learning_rate=1e-3))
    with pytest.raises(Refused, match=r"learning_rate was 5e-05, and is 0\.001"):
        Sweep([other], tmp_path)
    told = CliRunner().invoke(app, ["sweep", "--output", str(tmp_path), *OPTIONS, "--steps", "3"])
    assert told.exit_code == 1
    assert "was run with other settings: evaluate_every was 1, and is 250; steps was 2, and is 3" in told.stderr


def test_two_students_of_one_name_are_refused(tmp_path: Path) -> None:
    grid = replace(GRID, models=(str(tmp_path / "a" / "t5"), str(tmp_path / "b" / "t5")))
    with pytest.raises(Refused, match="two students would have the name svamp_human_t5_standard_100_seed-0"):
        Sweep(grid.cells(), tmp_path)


def test_a_report_teaches_nobody(tmp_path: Path) -> None:
    grid = replace(GRID, fractions=(1.0, 0.5), seeds=(0, 1))
    for number, cell in enumerate(grid.cells()):
        scores = {"test_accuracy": 0.5 + number / 100, "num_train": 24, "num_parameters": 282_688, "seconds": 1.0}
        write(cell, scores, tmp_path / "sweep")
    kept = tmp_path / "kept" / "distill.json"
    command = ["sweep", "--output", str(tmp_path / "sweep"), "--report-only", "--save", str(kept)]
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.stderr
    # seeds 0 and 1 of step-by-step on all data are cells 1 and 5: 51 % and 55 %
    assert (
        "| tiny | 283k | Distilling step-by-step | 55.00 ± 2.00 | 53.00 ± 2.00 |"
        in (tmp_path / "sweep" / "tables.md").read_text()
    )
    assert (tmp_path / "sweep" / "figure-2.4.svg").read_text().startswith("<svg")
    assert len(json.loads(kept.read_text())) == 4
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(json.loads(kept.read_text())) == 4


def test_files_of_results_come_together_in_one_table(tmp_path: Path) -> None:
    for seed in (0, 1):
        for cell in replace(GRID, seeds=(seed,)).cells():
            scores = {"test_accuracy": 0.5 + seed / 10, "num_train": 24, "num_parameters": 282_688, "seconds": 1.0}
            write(cell, scores, tmp_path / str(seed))
    files = [str(path) for path in sorted(tmp_path.glob(f"*/*/{SCORES}"))]
    told = CliRunner().invoke(app, ["table", *files, "--save", str(tmp_path / "all.json")])
    assert told.exit_code == 0, told.stderr
    assert "55.00 ± 5.00" in told.stdout
    assert all(set(result["scores"]) == {"0", "1"} for result in json.loads((tmp_path / "all.json").read_text()))
    (tmp_path / "no.json").write_text("{")
    refused = CliRunner().invoke(app, ["table", str(tmp_path / "no.json")])
    assert refused.exit_code == 2
    assert "no.json:1: not JSON" in " ".join(refused.stderr.replace("│", " ").split())


def test_every_student_of_a_grid_comes_once_and_all_of_a_seed_before_those_of_the_next(tmp_path: Path) -> None:
    for task in ("svamp", "esnli"):
        (tmp_path / "neox" / task).mkdir(parents=True)
    grid = replace(
        GRID,
        sources=(SMALL, DataSource("esnli", Path("data"))),
        labels=("human", "llm"),
        teachers=(Teacher(PALM), Teacher("NeoX 20B", tmp_path / "neox")),
        seeds=(0, 1),
    )
    cells = grid.cells()
    assert [cell.name for cell in cells if cell.recipe.seed == 0] == [
        "svamp_human_tiny_standard_100_seed-0",
        "svamp_human_tiny_step-by-step_PaLM-540B_100_seed-0",
        "svamp_human_tiny_step-by-step_NeoX-20B_100_seed-0",
        "svamp_llm_tiny_standard_PaLM-540B_100_seed-0",
        "svamp_llm_tiny_standard_NeoX-20B_100_seed-0",
        "svamp_llm_tiny_step-by-step_PaLM-540B_100_seed-0",
        "svamp_llm_tiny_step-by-step_NeoX-20B_100_seed-0",
        "esnli_human_tiny_standard_100_seed-0",
        "esnli_human_tiny_step-by-step_PaLM-540B_100_seed-0",
        "esnli_human_tiny_step-by-step_NeoX-20B_100_seed-0",
        "esnli_llm_tiny_standard_PaLM-540B_100_seed-0",
        "esnli_llm_tiny_standard_NeoX-20B_100_seed-0",
        "esnli_llm_tiny_step-by-step_PaLM-540B_100_seed-0",
        "esnli_llm_tiny_step-by-step_NeoX-20B_100_seed-0",
    ]
    assert [cell.recipe.seed for cell in cells] == [0] * 14 + [1] * 14
    sources = [cell.data for cell in cells if isinstance(cell.data, DataSource)]
    assert sources[2].rationales == tmp_path / "neox" / "svamp"
    assert sources[1].rationales is None


def test_a_sweep_teaches_a_users_own_task_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "task.yaml").write_text("task: parity\nfields: [number]\nlabels: [even, odd]\n")
    rows = [
        {"number": f"number {n}", "label": ["even", "odd"][n % 2], "rationale": f"{n} modulo 2 is {n % 2}"}
        for n in range(40)
    ]
    (tmp_path / "parity.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [*OPTIONS, "--tasks", str(tmp_path / "task.yaml"), "--data", str(tmp_path), "--steps", "2"]
    swept = CliRunner().invoke(app, ["sweep", "--output", str(tmp_path / "sweep"), *options])
    assert swept.exit_code == 0, swept.output
    folders = sorted(path.parent.name for path in (tmp_path / "sweep").glob(f"*/{SCORES}"))
    assert folders == ["parity_human_tiny_standard_100_seed-0", "parity_human_tiny_step-by-step_rows_100_seed-0"]


def test_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for options, message in (
        (["--methods", "standard,guessing"], "'guessing' is not one of"),
        (["--models", "tiny,bogus"], "--models: 'bogus' is neither a folder with a config.json nor one of tiny"),
        (["--save", str(tmp_path)], f"'--save': {tmp_path} is a folder"),
        (["--fractions", "half"], "is not a comma-separated list of numbers"),
        (["--tasks", "svamp"], "needs the folder"),
        (["--tasks", ""], "name at least one task"),
        (["--recipe", "recipe.toml", "--batch-size", "0"], "batch_size: Input should be greater than or equal to 1"),
        (["--tasks", "chess"], "chess"),
        (["--tasks", "chess.yaml"], "chess.yaml: No such file or directory"),
        (["--rationales", "file.jsonl"], "neither released nor NAME=PATH"),
        (["--few-shot-cot", "file.jsonl"], "'file.jsonl' is not NAME=PATH"),
        (["--few-shot-cot", "a=b", "--tasks", ""], "needs --tasks and --data"),
        (["--fractions", "0"], "above 0"),
    ):
        given = ["--tasks", "svamp"] if "--tasks" in options else ["--tasks", "svamp", "--data", "data"]
        told = CliRunner().invoke(app, ["sweep", "--output", str(tmp_path / "no"), *given, *options])
        assert told.exit_code in (1, 2)
        assert message in " ".join(told.stderr.replace("│", " ").split())
        assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(("task", "percent"), [("cqa", 77.23), ("svamp", 74.00), ("anli1", 65.60), ("esnli", 72.99)])
def test_few_shot_cot_of_the_released_outputs_is_as_published(task: str, percent: float) -> None:
    result = few_shot_cot_of(task, published_folder())
    assert result is not None
    assert round(estimate(result).mean, 2) == percent


def test_where_there_are_no_outputs_few_shot_cot_is_unknown(tmp_path: Path) -> None:
    assert few_shot_cot_of("svamp", tmp_path) is None


def test_ones_own_teacher_is_scored_by_its_answers_and_drawn_beside_the_students(tmp_path: Path) -> None:
    outputs = {f"box {n}": f"There are {n} and one. The answer is ({n} + 1)." for n in range(2)}
    wrong = {"box 2": "There are 2. The answer is (2 + 9).", "box 3": "It is 4."}
    asking = ["svamp", "--data", "data", "--split", "test", "--limit", "4", "--output", "test.jsonl", "--model", "big"]
    with TeacherServer(outputs={**outputs, **wrong}).beside() as server:
        asked = CliRunner().invoke(extraction, [*asking, "--base-url", server.url])
    assert asked.exit_code == 0, asked.output
    (cell,) = replace(GRID, methods=("standard",)).cells()
    write(cell, {"test_accuracy": 0.6, "num_train": 18, "num_parameters": 282_688}, tmp_path / "sweep")
    command = ["sweep", "--output", str(tmp_path / "sweep"), "--report-only"]
    options = ["--tasks", "svamp", "--data", "data", "--few-shot-cot", "mine=test.jsonl"]
    told = CliRunner().invoke(app, [*command, *options])
    assert told.exit_code == 0, told.stderr
    found = few_shot_cot(RESULT_FILES.load([tmp_path / "sweep" / "results.json"]), "svamp")
    assert [(one.model, one.scores["-"]) for one in found] == [
        (PALM, {"test_accuracy": 1.0}),
        ("mine", {"test_accuracy": 0.5, "num_questions": 4}),
    ]
    figure = (tmp_path / "sweep" / "figure-2.8.svg").read_text()
    assert "Few-shot CoT (mine, 4 questions)" in figure and "Few-shot CoT (PaLM 540B)" in figure
    assert CliRunner().invoke(app, command).exit_code == 0
    assert (tmp_path / "sweep" / "figure-2.8.svg").read_text() == figure


def test_outputs_that_are_no_few_shot_answers_to_the_test_are_refused_before_any_training(tmp_path: Path) -> None:
    write_rationales(Path("train.jsonl"), {0: "There are 0 and one. The answer is (0 + 1)."})
    for name, arguments in (("zero", {"zero_shot": True}), ("cqa", {"task": "cqa", "zero_shot": False})):
        Path(f"{name}.jsonl").touch()
        Path(f"{name}.jsonl.arguments.json").write_text(json.dumps(arguments))
    Path("none.jsonl").touch()
    for given, message in (
        ("train.jsonl", "train-0 is not row 0 of the data"),
        ("zero.jsonl", "its outputs are zero-shot"),
        ("cqa.jsonl", "its outputs are of cqa, not of svamp"),
        ("none.jsonl", "contains no outputs"),
        ("missing.jsonl", "missing.jsonl is missing"),
    ):
        told = CliRunner().invoke(
            app, ["sweep", "--output", str(tmp_path / "no"), *OPTIONS, "--few-shot-cot", f"mine={given}"]
        )
        assert told.exit_code == 1 and message in " ".join(told.stderr.split())
        assert not (tmp_path / "no").exists()


def write(cell: Cell, scores: dict[str, float], output: Path) -> None:
    """As a finished student leaves them."""
    RESULT_FILES.save([cell.result(scores)], output / cell.name / SCORES)
