"""The installation and the machine: versions, processes that can start, extras, memory, and devices.

torch is not imported here.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from services.cli import vllm_server
from services.cli.delegation import MODULES
from services.cli.doctor.findings import Configured, Finding, Status
from services.cli.programs import has_nvidia_gpu
from services.core.byte_sizes import binary_size
from services.core.memory import memory_within_limits
from services.core.thread_priority import num_cores

# By the import name.
TOLD = {"fovea-serving": "services", "torch": "torch", "transformers": "transformers", "open_clip_torch": "open_clip"}
# What an extra brings beside the processes' packages, by import name.
TOOLS = {
    "search": ("faiss",),
    "cluster": ("faiss", "psycopg", "psycopg_pool"),
    "train": ("accelerate", "peft", "tensorboard", "scipy", "matplotlib"),
    "ray": ("ray",),
    "telemetry": ("opentelemetry.sdk",),
    "mcp": ("mcp",),
}
# As all of ours are written: the package, the least version, before which a bound may stand, and the extra.
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:<[0-9.]+,)?>=([0-9.]+)(?:.*\bextra == [\"'](.+?)[\"'])?")


def find_versions() -> Iterator[Finding]:
    """Tell the versions, and packages that are older than Fovea needs."""
    versions = {
        name: found for name, module in TOLD.items() if is_importable(module) and (found := _version(name)) is not None
    }
    figures = {"python": platform.python_version(), **versions}
    told = ", ".join(f"{name} {found}" for name, found in figures.items())
    yield Finding("versions", "ok", f"{told}, {platform.system()} {platform.machine()}", figures=figures)
    for name, least in _needed().items():
        found = _version(name)
        if found is not None and _numbers(found) < _numbers(least):
            told = f"{name} {found} is older than {least}, which Fovea needs"
            yield Finding("versions", "failure", told, f"pip install '{name}>={least}'")


def find_processes(configured: Configured) -> Iterator[Finding]:
    """Tell which processes can start, and which lack packages."""
    ready = [name for name in configured.names if name not in configured.missing]
    services = [name for name in configured.names if name != "gateway"]
    if ready:
        yield Finding("processes", "ok", f"{', '.join(ready)} can start")
    if not services:
        yield Finding("processes", "warning", "this installation has no services", "pip install 'fovea-serving[cpu]'")
    by_module: dict[str, list[str]] = {}
    for name, module in configured.missing.items():
        by_module.setdefault(module, []).append(name)
    # `fovea up` leaves out a service that can't start, unless it is the last; what runs jobs needs no gateway.
    status: Status = "warning" if set(services) & set(ready) else "failure"
    for module, names in by_module.items():
        extra = names[0] if len(configured.missing) == 1 else "cpu"
        told = f"{module} is not installed, and {', '.join(names)} can't start"
        if names == ["gateway"] and status == "warning":
            told = f"the gateway is not part of this installation, which lacks {module}"
        yield Finding("processes", status, told, f"pip install 'fovea-serving[{extra}]'")


def find_extras(configured: Configured) -> Iterator[Finding]:
    """Tell the installed extras, and those that the settings or a service ask for in vain."""
    modules = {**MODULES, **TOOLS}
    lacking = {extra for extra, names in modules.items() if not all(map(is_importable, names))}
    installed = [extra for extra in modules if extra not in lacking]
    told = f"installed: {', '.join(installed) or 'none'}"
    if lacking:
        told += f"; not installed: {', '.join(extra for extra in modules if extra in lacking)}"
    yield Finding("extras", "ok", told, figures={"installed": installed})
    if "embed" in installed and "search" in lacking:
        told = "without FAISS, embed has no collections"
        yield Finding("extras", "warning", told, "pip install 'fovea-serving[search]'")
    if "cluster" in lacking and configured.values("collections_url"):
        missing = next(module for module in TOOLS["cluster"] if not is_importable(module))
        told = f"FOVEA_EMBED_COLLECTIONS_URL is set, and {missing} is not installed"
        yield Finding("extras", "failure", told, "pip install 'fovea-serving[cluster]'")
    if "telemetry" in lacking and configured.values("telemetry").get(True):
        told = "FOVEA_TELEMETRY is set, and OpenTelemetry's SDK is not installed"
        yield Finding("extras", "failure", told, "pip install 'fovea-serving[telemetry]'")


def is_importable(module: str) -> bool:
    try:
        return module in sys.modules or find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _needed() -> dict[str, str]:
    """Return the least version of each package that Fovea needs, with the extras above."""
    try:
        found = (_REQUIREMENT.match(line) for line in requires("fovea-serving") or ())
    except PackageNotFoundError:
        return {}
    needed: dict[str, str] = {}
    for match in found:
        if match is None or match[3] not in (None, *MODULES, *TOOLS):
            continue
        if _numbers(match[2]) > _numbers(needed.get(match[1], "0")):
            needed[match[1]] = match[2]
    return needed


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[+a-z]", text)[0]))


# The four services with their starters on a CPU, and something for requests.
SCARCE_MEMORY_BYTES = 3 * 1024**3
# A first import of torch and its CUDA libraries from a cold or busy disk takes tens of seconds.
ASK_LIMIT_S = 60.0
ASK_TORCH = """
import json, torch
devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
found = [[torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)] for i in devices]
print(json.dumps({"build": torch.version.cuda, "version": torch.__version__, "devices": found}))
"""


def find_memory() -> Iterator[Finding]:
    """Tell the memory and the processor."""
    total, available = memory_within_limits()
    cores = num_cores()
    figures = {"total_bytes": total, "available_bytes": available, "cores": cores}
    told = f"{binary_size(available)} of {binary_size(total)} available, {cores} cores"
    if available < SCARCE_MEMORY_BYTES:
        needed = binary_size(SCARCE_MEMORY_BYTES)
        cure = f"end other programs (all services want {needed}), or start one alone: fovea serve embed"
        yield Finding("memory", "warning", told, cure, figures)
    else:
        yield Finding("memory", "ok", told, figures=figures)


def find_devices(configured: Configured) -> Iterator[Finding]:
    """Tell the GPUs that torch can use, and the services that are set to a device which is not there."""
    available = {"auto", "cpu"}
    if has_nvidia_gpu():
        found, names = _nvidia()
        available |= names
        yield from found
        if "generate" in configured.to_start:
            yield _language_models()
    elif sys.platform == "darwin" and platform.machine() == "arm64":
        available.add("mps")
        yield Finding("devices", "ok", "an Apple GPU, which shares the memory of the machine")
    else:
        cure = "small models need none; for large ones install NVIDIA's driver, until this lists a GPU: nvidia-smi"
        yield Finding("devices", "warning", "no GPU: models run on the processor", cure)
    for setting in ("device", "index_device"):
        for device, services in configured.values(setting).items():
            if device not in available:
                variables = " ".join(f"FOVEA_{name.upper()}_{setting.upper()}" for name in services)
                told = f"{', '.join(services)}: {setting} is {device!r}, which torch does not find here"
                if setting == "index_device":
                    yield Finding("devices", "warning", f"{told}: searches run on the processor", f"unset {variables}")
                else:
                    yield Finding("devices", "failure", told, f"unset {variables}")


def _language_models() -> Finding:
    """Tell what `fovea up` would have generate answer by, and whether the shares of the GPU fit."""
    python = Path(os.environ.get("FOVEA_UP_VLLM", vllm_server.DEFAULT_PYTHON))
    try:
        if (obstacle := vllm_server.obstacle(python, os.environ)) is not None:
            vllm_server.check_shares(os.environ)
            if os.environ.get("FOVEA_GENERATE_ENGINE") == "vllm":
                return Finding("devices", "ok", "generate answers by the vLLM at FOVEA_GENERATE_VLLM_URL")
            if vllm_server.is_reranker(os.environ):
                return Finding("devices", "ok", "generate serves a reranker, which runs on Fovea's own engine")
            told = f"generate computes with Fovea's own engine, which is for small models: {obstacle}"
            cure = f"make vllm, or set FOVEA_UP_VLLM, which is {python}; one model in FOVEA_GENERATE_MODELS"
            return Finding("devices", "warning", told, cure)
        shares = {**vllm_server.SHARES, **os.environ}
        vllm_server.check_shares(shares)
    except vllm_server.TooLargeShares as refused:
        return Finding("devices", "failure", str(refused), "lower one of them")
    told = ", ".join(f"{name.split('_')[1].lower()} {shares[name]}" for name in vllm_server.SHARES)
    return Finding("devices", "ok", f"generate answers by vLLM ({python}); shares of the GPU: {told}")


def _nvidia() -> tuple[list[Finding], set[str]]:
    """Return findings about NVIDIA's GPUs, and the names of devices that torch can use."""
    if find_spec("torch") is None:
        return [Finding("devices", "warning", "an NVIDIA GPU, but no torch", "pip install 'fovea-serving[gpu]'")], set()
    answer = _ask_torch()
    if answer is None:
        told = "an NVIDIA GPU, but torch does not start"
        return [Finding("devices", "warning", told, 'python -c "import torch" shows why')], set()
    if not answer["devices"]:
        if answer["build"] is None:
            told = f"an NVIDIA GPU, but torch {answer['version']} is a build for processors: models run on them"
            cure = "pip install --force-reinstall torch --index-url https://pypi.org/simple"
        else:
            told = f"an NVIDIA GPU that torch {answer['version']} can't use: models run on the processor"
            cure = f"update the driver to one for CUDA {answer['build']} (nvidia-smi shows the driver's)"
        return [Finding("devices", "warning", told, cure)], set()
    return [
        Finding(
            "devices",
            "ok",
            f"{name}: {binary_size(free)} of {binary_size(total)} free",
            figures={"name": name, "free_bytes": free, "total_bytes": total},
        )
        for name, free, total in answer["devices"]
    ], {"cuda"}


def _ask_torch() -> dict[str, Any] | None:
    """Ask torch in another process, which may crash or hang over a broken driver."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", ASK_TORCH], capture_output=True, text=True, timeout=ASK_LIMIT_S, check=True
        )
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    except (subprocess.SubprocessError, OSError, ValueError):
        return None
