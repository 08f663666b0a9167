"""`fovea embed-bulk` as a command: what it refuses, and how it ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from services.embed.bulk.command import app
from tests.embed.bulk_sources import write_images
from tests.embed.tiny import write_tiny_checkpoint

pytestmark = pytest.mark.process


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def test_the_command_starts_without_torch() -> None:
    script = "import sys, services.embed.bulk.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_command_line_knows_it() -> None:
    command = [sys.executable, "-m", "services.cli.main", "embed-bulk", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    assert "Usage: fovea embed-bulk [OPTIONS]" in done.stdout


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([], "give --collection or --output, and not both"),
        (["--collection", "a", "--output", "b"], "give --collection or --output, and not both"),
        (["--collection", "a", "--dtype", "float16"], "--dtype does not apply to --collection"),
        (["--output", "a", "--no-wait"], "--no-wait does not apply to --output"),
        (["--output", "a", "--condition", " "], "a condition is empty"),
        (["--output", "a", "--condition", "what  color?", "--condition", "what color?"], "is given twice"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: list[str], complaint: str) -> None:
    refused = run(tmp_path, *options)
    assert refused.exit_code == 2
    assert complaint in refused.output


def test_the_address_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEA_URL", "fovea.example")
    refused = run(tmp_path, "--collection", "a")
    assert refused.exit_code == 2
    assert "fovea.example does not begin with http:// or https://" in refused.output


def test_embeddings_are_written_and_what_was_skipped_is_told_by_the_status(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    source = write_images(tmp_path / "images", 5, damaged=(2,))
    command = (source, "--output", tmp_path / "out", "--checkpoint", checkpoint, "--condition", "what color?")
    done = run(*command)
    assert done.exit_code == 3, done.output
    assert done.stdout == ""
    assert f"4 images embedded, 1 skipped: {tmp_path / 'out'}" in done.stderr
    assert (tmp_path / "out" / "embeddings-00000.npy").exists()
    assert run(*command).exit_code == 3
    refused = run(*command, "--dtype", "float16")
    assert refused.exit_code == 1
    assert 'dtype was "float32" and is now "float16"' in refused.stderr
    (source / "002.jpg").unlink()
    assert run(*command, "--overwrite").exit_code == 0


def test_a_checkpoint_of_the_store_is_named_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    source = write_images(tmp_path / "images", 1)
    command = (source, "--store-url", f"file://{tmp_path}/store", "--output", tmp_path / "out")
    assert run(*command).exit_code == 0
    assert '"model": "focallens-shapes@' in (tmp_path / "out" / "bulk.json").read_text()
    unknown = run(*command, "--checkpoint", "nothing")
    assert unknown.exit_code == 1
    assert unknown.stderr.splitlines()[-1].startswith("fovea embed-bulk: there is no model 'nothing' in ")


@pytest.mark.parametrize(("source", "complaint"), [("nowhere", "there is no "), (".", "there are no images in ")])
def test_a_source_without_images_is_told_in_one_line(tmp_path: Path, source: str, complaint: str) -> None:
    refused = run(tmp_path / source, "--output", tmp_path / "out")
    assert refused.exit_code == 1
    assert refused.stderr == f"fovea embed-bulk: {complaint}{tmp_path / source}\n"


def test_ctrl_c_ends_the_embedding_with_a_sentence_and_the_same_command_goes_on(tmp_path: Path) -> None:
    checkpoint = write_tiny_checkpoint(tmp_path / "tiny")
    source = write_images(tmp_path / "images", 1)
    for number in range(1, 500):
        (source / f"{number:04d}.jpg").hardlink_to(source / "000.jpg")
    command = [str(source), "--output", str(tmp_path / "out"), "--checkpoint", str(checkpoint), "--shard-size", "100"]
    interrupted = ["tests.embed.interrupted_bulk_job", str(tmp_path / "out" / "embeddings-00001.npy"), "embed-bulk"]
    stopped = subprocess.run(
        [sys.executable, "-m", *interrupted, *command], capture_output=True, text=True, check=False
    )
    assert stopped.returncode == 130, stopped.stderr
    assert stopped.stderr.strip().endswith("Stopped. Run the same command to continue.")
    assert "Traceback" not in stopped.stderr
    num_before = len(list((tmp_path / "out").glob("embeddings-*.npy")))
    assert 1 <= num_before < 5
    done = run(*command)
    assert done.exit_code == 0
    assert "500 images embedded, 0 skipped" in done.stderr
