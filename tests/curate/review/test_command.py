"""`fovea curate review` as it is typed."""

import json
import signal
import subprocess
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from services.curate.review.command import app
from services.curate.review.verdicts import Verdict, VerdictFile
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
    assert json.loads((folder / "out" / "verdicts.jsonl").read_text()) == verdict.model_dump()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["pairs.jsonl"], "--images: the page needs the folder of the images"),
        (["pairs.jsonl", "--images", "images", "--host", "0.0.0.0"], "could give verdicts; set --token-file too"),
        (["pairs.jsonl", "--images", "images", "--allow-host", "a.example"], "reaches a.example could give verdicts"),
        (["pairs.jsonl", "--images", "images", "--reviewers-per-pair", "0"], "--reviewers-per-pair"),
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
