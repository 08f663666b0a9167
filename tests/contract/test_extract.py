"""`fovea distill extract` against the generate service, through the gateway, killed while answers are on their way."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from services.jobs.inquiry import digest_of
from services.predict.data.rationale_file import read_records
from services.predict.data.teacher_outputs import read_output
from services.predict.extraction.command import load_prompts
from services.predict.tasks import ESNLI
from tests.contract.generate_processes import running_system
from tests.contract.served_system import System
from tests.generate.served_tiny import MODEL

NUM_INPUTS = 30
CONCURRENCY = 4
KILLED_AFTER = (5, 14)  # outputs in the file


def values_of(row: int) -> dict[str, str]:
    return {"premise": f"Keeper {row} has lit the lighthouse.", "hypothesis": "The lighthouse is dark."}


def run(
    system: System, folder: Path, *options: str, to: str = "rationales.jsonl", killed_after: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the job to its end, or until it has written this number of outputs to the file."""
    killed = ["tests.contract.killed_extraction", str(killed_after), str(folder / to)]
    command = [
        *(sys.executable, "-m", *(killed if killed_after else ["services.predict.extraction.command"])),
        *("esnli", "--model", MODEL),
        *("--base-url", f"{system.gateway.url}/v1", "--data", str(folder / "inputs.jsonl")),
        *("--output", str(folder / to), "--concurrency", str(CONCURRENCY), "--max-tokens", "24"),
        *("--max-unparsed", "1"),  # the model has random weights
        *options,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


def num_requests(system: System) -> int:
    """Count the requests that the service has taken, whatever their outcome."""
    lines = requests.get(f"{system.service.url}/metrics", timeout=30).text.splitlines()
    counted = [line for line in lines if line.startswith("fovea_requests_total{") and "/v1/chat/completions" in line]
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in counted))


@pytest.mark.slow
def test_killed_twice_it_asks_about_every_input_and_keeps_one_output_of_each(tmp_path: Path) -> None:
    rows = [{"id": f"n{row}", **values_of(row)} for row in range(NUM_INPUTS)]
    (tmp_path / "inputs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output = tmp_path / "rationales.jsonl"
    before = b""
    with running_system(tmp_path) as system:
        for num_outputs in KILLED_AFTER:
            ended = run(system, tmp_path, killed_after=num_outputs)
            assert ended.returncode == -signal.SIGKILL, ended.stderr
            # what is in the file stays there
            assert output.read_bytes().startswith(before)
            before = output.read_bytes()[: output.read_bytes().rfind(b"\n") + 1]
            assert num_outputs <= before.count(b"\n") < NUM_INPUTS
        ended = run(system, tmp_path)
        told = ended.stderr
        assert ended.returncode == 0, told
        assert num_requests(system) <= NUM_INPUTS + CONCURRENCY * len(KILLED_AFTER)
        continued = ("--api", "completions", "--zero-shot", "--limit", "3")
        ended = run(system, tmp_path, *continued, to="continued.jsonl")
        assert ended.returncode == 0, ended.stderr
    assert len(read_records(tmp_path / "continued.jsonl")) == 3
    assert output.read_bytes().startswith(before)
    records = read_records(output)
    assert sorted(record.row for record in records) == list(range(NUM_INPUTS))
    prompts = load_prompts(ESNLI)
    for record in records:
        values = values_of(record.row)
        assert record.id == f"n{record.row}"
        assert record.prompt == digest_of(prompts.messages(values))
        assert record.model is not None and record.model.startswith(f"{MODEL}@")
        assert record.prompt_tokens and record.completion_tokens and record.completion_tokens <= 24
        read = read_output(ESNLI, values, record.output)
        assert (record.rationale, record.label, record.problem) == (read.rationale, read.label, read.problem)
    # a model with random weights gives no reasons, and what it says is kept all the same
    num_unparsed = sum(record.problem is not None for record in records)
    assert f"{NUM_INPUTS} outputs: {num_unparsed} unparsed" in told
    assert num_unparsed and any(record.output for record in records)
