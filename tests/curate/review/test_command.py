"""`fovea curate review` as it is typed."""

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from services.curate.evaluation.measure import app as measure_app
from services.curate.review.command import app
from services.curate.review.review import Review
from services.curate.review.tasks import TASKS, Task, VerdictName
from services.curate.review.verdicts import Verdict, VerdictFile
from services.jobs.sugarcrepe import Pair, write_pairs
from tests.curate.review.reviews import ENVIRONMENT, PAIRS, Served, write_review
from tests.kept_port import kept_port


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_review(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments, "--database", "v.sqlite"])
    return done.exit_code, " ".join(done.output.split())


def test_verdicts_are_exported_without_a_server(folder: Path) -> None:
    verdict = Verdict(id=PAIRS[0].id, reviewer="Anna", verdict="valid", judged_at="2026-11-25T10:00:00+00:00")
    with VerdictFile(folder / "v.sqlite", PAIRS) as file:
        file.put(verdict)
    assert run("pairs.jsonl", "--export", "out/verdicts.jsonl") == (0, "")
    assert json.loads((folder / "out" / "verdicts.jsonl").read_text()) == verdict.model_dump(exclude_none=True)


def measured(folder: Path, task: Task, choose: Callable[[Pair], VerdictName], *options: str) -> Any:
    """Answer for all pairs, export it, and return the numbers that `fovea curate measure humans` prints of it."""
    items = task.items(PAIRS, PAIRS)
    with VerdictFile(folder / "v.sqlite", items, task) as file:
        review = Review(items, file, 1)
        for item in items:
            review.judge("Anna", item.id, 1, choose(item), "")
    assert run("pairs.jsonl", "--task", task.name, *options, "--export", "people.jsonl") == (0, "")
    return json.loads(CliRunner().invoke(measure_app, ["humans", "people.jsonl"]).output.splitlines()[-1])


def test_choices_of_people_are_measured_from_their_export(folder: Path) -> None:
    choice = TASKS["choice"]

    def choose(pair: Pair) -> VerdictName:
        is_first = choice.order(pair)[0] == "caption"
        return "first" if is_first is (pair.id != PAIRS[0].id) else "second"

    types = measured(folder, choice, choose)["choices"]["people"]["types"]
    assert {kind: one["num_pairs"] for kind, one in types.items()} == Counter(pair.kind for pair in PAIRS)
    num_replaced = types["replace_obj"]["num_pairs"]
    assert types["replace_obj"]["accuracy"] == pytest.approx(100 * (1 - 1 / num_replaced))
    assert {one["accuracy"] for kind, one in types.items() if kind != "replace_obj"} == {100.0}


def test_comparisons_by_people_are_counted_from_their_export(folder: Path) -> None:
    counted = measured(folder, TASKS["grammar"], lambda _: "tie", "--theirs", "pairs.jsonl")["judgements"]["grammar"]
    num_swaps = sum(pair.kind.startswith("swap") for pair in PAIRS)
    assert counted["SWAP"] == {"theirs": 0, "ours": 0, "tie": num_swaps}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["pairs.jsonl"], "--images: the page needs the folder of the images"),
        (["pairs.jsonl", "--images", "images", "--host", "0.0.0.0"], "could give verdicts; set --token-file too"),
        (["pairs.jsonl", "--images", "images", "--allow-host", "a.example"], "reaches a.example could give verdicts"),
        (["pairs.jsonl", "--images", "images", "--reviewers-per-pair", "0"], "--reviewers-per-pair"),
        (["pairs.jsonl", "--task", "choice"], "--images: the page needs the folder of the images"),
        (["pairs.jsonl", "--task", "grammar"], "--theirs: --task grammar needs other pairs to compare with"),
        (["pairs.jsonl", "--theirs", "other.jsonl"], "--theirs: --task validity takes no other pairs"),
        (
            ["pairs.jsonl", "--task", "grammar", "--theirs", "other.jsonl"],
            "no caption of pairs.jsonl has a negative of",
        ),
        (["pairs.jsonl", "--task", "grammar", "--theirs", "broken.jsonl"], "--theirs: broken.jsonl:1: kind: Field"),
        (["nosuch.jsonl", "--images", "images"], "nosuch.jsonl"),
        (["broken.jsonl", "--images", "images"], "broken.jsonl:1: kind: Field required"),
        (["empty.jsonl", "--images", "images"], "empty.jsonl holds no pair"),
        (["images/chelsea.png", "--images", "images"], "not text in UTF-8"),
    ],
)
def test_what_cannot_be_reviewed_is_refused_before_anything_listens(
    folder: Path, arguments: list[str], complaint: str
) -> None:
    (folder / "broken.jsonl").write_text('{"id": "a"}')
    (folder / "empty.jsonl").write_text("\n")
    write_pairs(folder / "other.jsonl", [PAIRS[0].model_copy(update={"caption": "Of no other file."})])
    status, output = run(*arguments)
    assert status == 2
    assert complaint in output.replace("│ ", "")


@pytest.mark.process
def test_the_command_says_what_is_missing_and_ends_well_by_ctrl_c(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "images" / "coffee.png").unlink()
    with kept_port() as port, Served(folder, port) as served:
        assert httpx2.get(f"{served.url}/review/summary").json()["num_pairs"] == len(PAIRS)
        assert served.end(signal.SIGINT) == 0
    assert "1 image can't be shown. The image 'coffee.png' is not in the folder of images." in capfd.readouterr().err


@pytest.mark.process
def test_a_port_in_use_is_said_with_a_way_to_choose_another(folder: Path) -> None:
    with kept_port() as port, Served(folder, port):
        second = Served(folder, port, "--database", "other.sqlite")
        done = subprocess.run(second.command, env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"Cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "Choose another port with --port or FOVEA_CURATE_PORT." in done.stderr


@pytest.mark.process
def test_a_database_in_use_is_said(folder: Path) -> None:
    with kept_port() as port, Served(folder, port) as served:
        done = subprocess.run([*served.command, "--port", "1"], env=ENVIRONMENT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "fovea curate review: verdicts.sqlite is in use by another process.\n")
