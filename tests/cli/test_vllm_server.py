"""vLLM as a process of `fovea up`: when it is started, with what, and that it ends with Fovea."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.cli.programs import PACKAGES, BadPort, plan_programs
from services.cli.vllm_server import SHARES, TooLargeShares, check_shares, command, obstacle, with_vllm
from services.core.store.manifest import CheckpointInfo
from services.core.store.store import Store
from services.generate.settings import GenerateSettings
from tests.core.tiny_checkpoints import write_checkpoint

ROOT = Path(__file__).parents[2]
# In place of vLLM's Python: tells its arguments, and stays until it is ended.
PRETENDED = """#!{python}
import json, os, sys, time
print(json.dumps([sys.argv[1:], os.environ.get("VLLM_PLUGINS"), os.getpid()]), flush=True)
time.sleep(600)
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The Python of an environment with vLLM."""
    path = tmp_path / "python"
    path.write_text(PRETENDED.format(python=sys.executable))
    path.chmod(0o755)
    return path


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as can be told without its libraries."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


@pytest.mark.usefixtures("gpu")
def test_generate_is_vllm_where_there_is_a_gpu_and_nothing_else_is_set(python: Path) -> None:
    assert obstacle(python, {}) is None
    assert obstacle(python, {"FOVEA_GENERATE_MODELS": "vicuna", "FOVEA_GENERATE_DEVICE": "cuda"}) is None
    assert obstacle(python.with_name("missing"), {}) == f"there is no {python.with_name('missing')}"
    for name, value in (("ENGINE", "own"), ("ENGINE", "vllm"), ("DEVICE", "cpu"), ("MODELS", "vicuna,tulu")):
        told = obstacle(python, {f"FOVEA_GENERATE_{name}": value})
        assert told is not None and f"FOVEA_GENERATE_{name}" in told


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("kind", ["cross-encoder", "qwen3-reranker", "qwen3-vl-reranker", "mxbai-rerank-v2"])
def test_a_reranker_alone_is_run_by_fovea_s_own_engine(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("FOVEA_STORE_URL", (tmp_path / "store").as_uri())
    store = Store.open((tmp_path / "store").as_uri())
    store.publish("ranker", write_checkpoint(tmp_path / "ranker"), CheckpointInfo(kind=kind), alias="stable")
    store.publish("vicuna", write_checkpoint(tmp_path / "vicuna"), CheckpointInfo(kind="causal-lm"))
    assert obstacle(python, {"FOVEA_GENERATE_MODELS": "vicuna"}) is None
    assert obstacle(python, {"FOVEA_GENERATE_MODELS": "ranker@stable"}) == "generate serves a reranker"
    monkeypatch.setenv("FOVEA_GENERATE_ALIAS", "stable")
    assert obstacle(python, {"FOVEA_GENERATE_MODELS": "ranker"}) == "generate serves a reranker"


def test_generate_is_fovea_s_own_engine_where_there_is_no_gpu(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is one")
    monkeypatch.setenv("PATH", "")
    assert obstacle(python, {}) == "there is no NVIDIA GPU"


@pytest.mark.process
def test_fovea_up_tells_why_the_vllm_that_is_named_is_not_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:  # so that nothing else starts
        ran = subprocess.run(
            [sys.executable, "-m", "services.cli.main", "up", "--port", str(taken.getsockname()[1])],
            env={**os.environ, "FOVEA_UP_VLLM": str(tmp_path / "python"), "FOVEA_GENERATE_ENGINE": "own"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        f"fovea up: the vLLM of {tmp_path}/python is not started: FOVEA_GENERATE_ENGINE is own\n"
    )


def test_the_service_asks_the_vllm_that_is_started_and_all_share_the_gpu(python: Path) -> None:
    programs = with_vllm(plan_programs(list(PACKAGES), {}), python, {"FOVEA_EMBED_MEMORY_SHARE": "0.15"})
    by_name = {one.name: one for one in programs}
    vllm, generate = by_name["vllm"], by_name["generate"]
    assert generate.environment["FOVEA_GENERATE_ENGINE"] == "vllm"
    assert generate.environment["FOVEA_GENERATE_VLLM_URL"] == vllm.url
    assert "FOVEA_GENERATE_ENGINE" not in by_name["embed"].environment
    # What is set stays as it is.
    assert "FOVEA_EMBED_MEMORY_SHARE" not in by_name["embed"].environment
    assert by_name["score"].environment["FOVEA_SCORE_MEMORY_SHARE"] == SHARES["FOVEA_SCORE_MEMORY_SHARE"]
    assert sum(map(float, SHARES.values())) == pytest.approx(1)
    with pytest.raises(BadPort, match="FOVEA_UP_VLLM_PORT"):
        with_vllm([], python, {"FOVEA_UP_VLLM_PORT": "none"})


def test_services_that_run_alone_share_the_whole_gpu_in_the_same_proportions(python: Path) -> None:
    def shares(*names: str) -> dict[str, str]:
        programs = {one.name: one for one in with_vllm(plan_programs(["gateway", *names], {}), python, {})}
        vllm, prefix = programs["vllm"].environment, "_MEMORY_SHARE"
        return {name: vllm[f"FOVEA_{name.upper()}{prefix}"] for name in names if name in programs}

    assert shares("generate") == {"generate": "0.9"}  # the rest is CUDA's
    assert shares("generate", "embed", "score") == {"generate": "0.67", "embed": "0.22", "score": "0.11"}
    assert shares("predict", "generate", "embed", "score") == {
        name.split("_")[1].lower(): share for name, share in SHARES.items()
    }


def test_shares_of_one_gpu_that_sum_to_more_than_all_of_it_are_refused(python: Path) -> None:
    shared = {"FOVEA_GENERATE_MEMORY_SHARE": "0.7", "FOVEA_EMBED_MEMORY_SHARE": "0.4"}
    for refused in (shared, {"FOVEA_GENERATE_MEMORY_SHARE": "0.61"}):
        with pytest.raises(TooLargeShares, match="FOVEA_GENERATE_MEMORY_SHARE"):
            with_vllm(plan_programs(list(PACKAGES), {}), python, refused)
    with pytest.raises(TooLargeShares, match=r"1\.1 of a GPU"):
        check_shares(shared)
    # What computes on the processor has no part, and what is not set is not known.
    check_shares({**shared, "FOVEA_EMBED_DEVICE": "cpu"})
    check_shares({"FOVEA_GENERATE_MEMORY_SHARE": "0.9"})


def test_vllm_serves_the_model_in_the_share_and_dtype_of_the_settings() -> None:
    settings = GenerateSettings(models=("vicuna@stable",), engine="vllm", memory_share=0.55)
    line = command(settings, Path("/checkpoints/vicuna"), "/vllm/python", "8001")
    options = dict(zip(line[3::2], line[4::2], strict=False))
    assert options["--model"] == "/checkpoints/vicuna"
    assert options["--served-model-name"] == "vicuna"
    assert options["--gpu-memory-utilization"] == "0.55"
    assert options["--dtype"] == "bfloat16"
    assert options["--port"] == "8001"
    assert "--attention-backend" not in line


@pytest.mark.process
def test_it_runs_over_the_packaged_checkpoint_and_ends_when_it_is_told_to(python: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "FOVEA_STORE_URL": (tmp_path / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(tmp_path / "checkpoints"),
        "FOVEA_GENERATE_ENGINE": "vllm",
        "FOVEA_UP_VLLM": str(python),
        "FOVEA_UP_VLLM_PORT": "8000",
        "FOVEA_UP_VLLM_OPTIONS": "--max-model-len 8192 --chat-template 'my template.jinja'",
    }
    run = [sys.executable, "-P", "-m", "services.cli.child", "services.cli.vllm_server"]
    with subprocess.Popen(run, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        arguments, plugins, pid = json.loads(next(line for line in process.stdout if line.startswith("[")))
        process.terminate()
        process.wait(60)
    folder = Path(arguments[arguments.index("--model") + 1])
    assert (folder / "model.safetensors").is_file()
    assert folder.is_relative_to(tmp_path / "checkpoints")
    assert plugins == "fovea"
    assert arguments[-4:] == ["--max-model-len", "8192", "--chat-template", "my template.jinja"]
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.02)
