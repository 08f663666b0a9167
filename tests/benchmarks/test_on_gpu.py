"""What is measured on a GPU runs without one too, at tiny shapes, as a user would start it."""

import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.record import RESULTS_FILE

pytestmark = [pytest.mark.process, pytest.mark.slow]


def run(
    *arguments: str, first: Callable[[], None] | None = None
) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """Return the results by section, and the process, in which no GPU is visible and that begins with `first`."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.on_gpu", *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=first,
    )
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    return {result["section"]: result for result in results}, ran


def measured(figures: Any) -> Iterator[float]:
    """Yield the numbers of figures."""
    if isinstance(figures, dict):
        for one in figures.values():
            yield from measured(one)
    elif not isinstance(figures, str):
        yield figures


def test_every_section_is_measured_and_nothing_is_recorded_without_a_gpu() -> None:
    before = RESULTS_FILE.read_bytes()
    results, ran = run()
    assert ran.returncode == 0, ran.stderr
    assert list(results) == ["towers", "generate", "predict", "photographs", "index"]
    for result in results.values():
        numbers = list(measured(result["figures"]))
        assert len(numbers) >= 7, result
        assert all(number > 0 and math.isfinite(number) for number in numbers), result
        assert "error" not in result
    assert results["index"]["figures"]["gpu"] == "FAISS found none"
    assert RESULTS_FILE.read_bytes() == before


def test_an_error_is_the_result_of_its_section_and_the_next_one_runs() -> None:
    def forbid_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    # the first of them needs files
    results, ran = run("--only", "photographs", "index", first=forbid_files)
    assert ran.returncode == 1, ran.stderr
    assert results["photographs"]["figures"] == {}
    assert results["photographs"]["error"]
    assert "error" not in results["index"]
    assert "4000 vectors of 512, one query at a time" in results["index"]["figures"]
