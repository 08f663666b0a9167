"""Records of benchmark results: one line of JSON in `results.jsonl`, with the machine, the commit and the date."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import orjson

RESULTS_FILE = Path(__file__).with_name("results.jsonl")


def record(benchmark: str, result: dict[str, Any]) -> None:
    """Append the result to `results.jsonl` and print the same line, which must be the last of the output."""
    line = orjson.dumps(
        {
            "benchmark": benchmark,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            **result,
        }
    )
    with RESULTS_FILE.open("ab") as results:
        results.write(line + b"\n")
    print(line.decode())


def summary(samples: list[float]) -> dict[str, float | int]:
    """Return the median, quartiles, minimum and maximum of samples, to four significant digits; one is all of them."""
    low, _, high = quantiles(samples, n=4, method="inclusive") if len(samples) > 1 else samples * 3
    figures = {"median": median(samples), "p25": low, "p75": high, "min": min(samples), "max": max(samples)}
    return {**{name: float(f"{value:.4g}") for name, value in figures.items()}, "rounds": len(samples)}


def machine() -> dict[str, Any]:
    """Describe the machine that the figures depend on: processor, cores that this process may use, Python."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def commit() -> str:
    """Return the short hash of the commit, with `+` where tracked files differ from it; empty outside a repository."""
    described = subprocess.run(
        ["git", "describe", "--always", "--exclude=*", "--dirty=+"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip()


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
