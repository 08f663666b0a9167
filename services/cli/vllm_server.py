"""vLLM with Fovea's plug-in as a process of `fovea up`: where there is a GPU, generate answers by it.

It has an environment of its own, since it needs other versions of shared packages.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

from services.cli.programs import Program, has_nvidia_gpu, port_in
from services.core.settings import SettingsError, read_settings
from services.core.store.checkpoint_files import packaged_starters
from services.core.store.errors import StoreError
from services.core.store.store import Store
from services.generate.capacity import DEFAULT_SHARE
from services.generate.settings import GenerateSettings

PORT_VARIABLE, DEFAULT_PORT = "FOVEA_UP_VLLM_PORT", 8000
# Further options of vLLM, as on a command line.
OPTIONS_VARIABLE = "FOVEA_UP_VLLM_OPTIONS"
# Where `make vllm` installs it.
DEFAULT_PYTHON = Path(".venv-vllm/bin/python")
# Of the memory of a GPU that vLLM has with the three other services, where nothing else is set.
SHARES = {
    "FOVEA_GENERATE_MEMORY_SHARE": "0.6",
    "FOVEA_EMBED_MEMORY_SHARE": "0.2",
    "FOVEA_SCORE_MEMORY_SHARE": "0.1",
    "FOVEA_PREDICT_MEMORY_SHARE": "0.1",
}
ENGINE, MODELS, DEVICE = "FOVEA_GENERATE_ENGINE", "FOVEA_GENERATE_MODELS", "FOVEA_GENERATE_DEVICE"


class TooLargeShares(ValueError):
    """Memory shares of processes on one GPU that sum to more than 1; the message names them."""


def check_shares(environment: Mapping[str, str]) -> None:
    """Raises TooLargeShares if those that are set sum to more than one GPU has; one that is no number is left alone."""
    shares = {}
    for name in SHARES:
        is_on_gpu = environment.get(name.replace("MEMORY_SHARE", "DEVICE"), "auto") != "cpu"
        if is_on_gpu and re.fullmatch(r"[0-9.]*[0-9]", environment.get(name, "")):
            shares[name] = float(environment[name])
    if (total := sum(shares.values())) > 1.0001:
        told = ", ".join(f"{name}={share:g}" for name, share in shares.items())
        raise TooLargeShares(f"{told} are {total:g} of a GPU together; they may be 1 at most.")


def shares_of(programs: Sequence[Program]) -> dict[str, str]:
    """Share the GPU among the services that run in the proportions of SHARES; one alone leaves room for CUDA."""
    running = [name for one in programs if (name := f"FOVEA_{one.name.upper()}_MEMORY_SHARE") in SHARES]
    whole = sum(float(SHARES[name]) for name in running)
    return {name: f"{min(DEFAULT_SHARE, round(float(SHARES[name]) / whole, 2)):g}" for name in running}


def obstacle(python: Path, environment: Mapping[str, str]) -> str | None:
    """Tell why generate is not to be answered by a vLLM that `fovea up` starts; None if it is."""
    if ENGINE in environment:
        return f"{ENGINE} is {environment[ENGINE]}"
    if (device := environment.get(DEVICE, "auto")) not in ("auto", "cuda"):
        return f"{DEVICE} is {device}"
    if "," in environment.get(MODELS, ""):
        return f"{MODELS} names several models"
    if not has_nvidia_gpu():
        return "there is no NVIDIA GPU"
    if not python.is_file():
        return f"there is no {python}"
    return "generate serves a reranker" if is_reranker(environment) else None


def is_reranker(environment: Mapping[str, str]) -> bool:
    """Whether generate serves one model that is known to be no language model, which its own engine runs."""
    models = {"models": environment[MODELS]} if environment.get(MODELS) else {}
    try:
        settings = read_settings(GenerateSettings, **models)
        name, alias = settings.followed[0]
        store = Store.open(settings.store_url)
        return len(settings.models) == 1 and store.manifest(name, store.resolve(name, alias)).kind != "causal-lm"
    except (SettingsError, StoreError):  # which the processes tell; the packaged model is stored at its first start
        return False


def with_vllm(programs: list[Program], python: Path, environment: Mapping[str, str]) -> list[Program]:
    """Add vLLM to the programs, have generate answer by it, and share the GPU. Raises BadPort and TooLargeShares."""
    port = port_in(environment, PORT_VARIABLE, DEFAULT_PORT)
    given = {ENGINE: "vllm", "FOVEA_GENERATE_VLLM_URL": f"http://127.0.0.1:{port}"}
    own = shares_of(programs)
    check_shares({**own, **{name: share for name, share in environment.items() if name in own}})
    shares = {name: share for name, share in own.items() if name not in environment}
    vllm = Program(
        "vllm",
        "services.cli.vllm_server",
        "127.0.0.1",
        port,
        PORT_VARIABLE,
        {**given, **shares, "FOVEA_UP_VLLM": str(python.absolute()), PORT_VARIABLE: str(port)},
        probe="/health",
    )
    changed = [
        replace(one, environment={**one.environment, **shares, **(given if one.name == "generate" else {})})
        for one in programs
    ]
    return [*changed, vllm]


def command(settings: GenerateSettings, folder: Path, python: str, port: str) -> list[str]:
    """Return the command line of a vLLM that serves the checkpoint in `folder` as the settings say."""
    name, _ = settings.followed[0]
    given = {
        "--model": str(folder),
        "--served-model-name": settings.vllm_model or name,
        "--gpu-memory-utilization": f"{settings.memory_share:g}",
        "--dtype": "bfloat16" if settings.dtype == "auto" else settings.dtype,
        "--host": "127.0.0.1",
        "--port": port,
    }
    options = [part for option in given.items() for part in option]
    switches = ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]  # or each probe would be a line
    return [python, "-m", "vllm.entrypoints.openai.api_server", *options, *switches]


def main() -> int:
    """Fetch the checkpoint that generate serves, and run vLLM over it until SIGTERM."""
    settings = read_settings(GenerateSettings)
    name, alias = settings.followed[0]
    store = Store.open(settings.store_url)
    store.publish_starters(packaged_starters(name))
    version = store.resolve(name, alias)
    folder = store.fetch(name, version, settings.checkpoint_cache_dir, settings.checkpoint_cache_max_bytes)
    line = command(settings, folder, os.environ["FOVEA_UP_VLLM"], os.environ[PORT_VARIABLE])
    line += shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))
    key = settings.vllm_key.get_secret_value()
    vllm = subprocess.Popen(line, env={**os.environ, "VLLM_PLUGINS": "fovea", **({"VLLM_API_KEY": key} if key else {})})

    def end(number: int, frame: FrameType | None) -> None:
        vllm.terminate()

    signal.signal(signal.SIGTERM, end)
    return vllm.wait()


if __name__ == "__main__":
    sys.exit(main())
