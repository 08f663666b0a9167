"""The kernels compute what the torch path does, as far as this can be seen without a GPU.

Each test is a process of its own: Triton decides on import whether it interprets.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton has no wheel for this platform"),
]


def run(module: str, *arguments: str, environment: dict[str, str]) -> str:
    """Run a module of these tests and return what it prints, or fail with its errors."""
    path = os.pathsep.join((str(ROOT / "vllm_plugin"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", f"tests.vllm_plugin.attention.{module}", *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 8), pytest.param(8, 13, marks=pytest.mark.slow)],
)
def test_random_rows_are_attended_by_equation_3_5_and_measured_without_it(first: int, count: int) -> None:
    environment = {"TRITON_INTERPRET": "1"}
    assert run("kernel_trials", "cpu", str(first), str(count), environment=environment) == f"{count} trials\n"


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_kernels_attend_random_rows_by_equation_3_5() -> None:
    assert run("kernel_trials", "cuda", "0", "200", environment={}) == "200 trials\n"


@pytest.mark.parametrize(
    ("target", "dtype", "width", "groups"),
    [
        (("cuda", "90"), "bf16", "128", ["8", "32"]),
        pytest.param(("cuda", "80"), "fp16", "80", ["8"], marks=pytest.mark.slow),
        pytest.param(("cuda", "90"), "fp32", "256", ["8"], marks=pytest.mark.slow),
        pytest.param(("hip", "gfx942"), "bf16", "128", ["8"], marks=pytest.mark.slow),
    ],
)
def test_the_kernels_compile(
    target: tuple[str, str], dtype: str, width: str, groups: list[str], tmp_path: Path
) -> None:
    environment = {"TRITON_CACHE_DIR": str(tmp_path)}
    compiled = run("compiled_kernels", *target, dtype, width, *groups, environment=environment)
    assert compiled == f"{len(groups)} kernels\n"


@pytest.mark.parametrize(("first", "count"), [(0, 6), pytest.param(6, 10, marks=pytest.mark.slow)])
def test_steps_and_graphs_captured_before_them_attend_every_layer_as_the_torch_path_does(
    first: int, count: int
) -> None:
    found = json.loads(run("table_trials", str(first), str(count), environment={"TRITON_INTERPRET": "1"}))
    of_one, of_six = found["operations"]
    assert of_one == of_six
    assert found["launches"] == [1, 1]
