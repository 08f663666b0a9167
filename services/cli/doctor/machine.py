"""The machine: its memory, its processor and its devices, without torch being imported here."""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from services.cli.doctor.configured import Configured
from services.cli.doctor.findings import Finding
from services.core.byte_sizes import binary_size

TOPIC_MEMORY, TOPIC_DEVICES = "memory", "devices"
# The four services with their starters on a CPU, and something for requests.
SCARCE_MEMORY_BYTES = 3 * 1024**3
ASK_LIMIT_S = 10.0
MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
ASK_TORCH = """
import json, torch
devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
found = [[torch.cuda.get_device_name(i), *torch.cuda.mem_get_info(i)] for i in devices]
print(json.dumps({"build": torch.version.cuda, "version": torch.__version__, "devices": found}))
"""


def find_memory() -> Iterator[Finding]:
    """Tell the memory and the processor."""
    total, available = _memory()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    figures = {"total_bytes": total, "available_bytes": available, "cores": cores}
    told = f"{binary_size(available)} of {binary_size(total)} available, {cores} cores"
    if available < SCARCE_MEMORY_BYTES:
        needed = binary_size(SCARCE_MEMORY_BYTES)
        cure = f"end other programs (all services want {needed}), or start one alone: fovea serve embed"
        yield Finding(TOPIC_MEMORY, "warning", told, cure, figures)
    else:
        yield Finding(TOPIC_MEMORY, "ok", told, figures=figures)


def find_devices(configured: Configured) -> Iterator[Finding]:
    """Tell the GPUs that torch can use, and the services that are set to a device which is not there."""
    available = {"auto", "cpu"}
    if _has_nvidia():
        found, names = _nvidia()
        available |= names
        yield from found
    elif sys.platform == "darwin" and platform.machine() == "arm64":
        available.add("mps")
        yield Finding(TOPIC_DEVICES, "ok", "an Apple GPU, which shares the memory of the machine")
    else:
        cure = "small models need none; for large ones install NVIDIA's driver, until this lists a GPU: nvidia-smi"
        yield Finding(TOPIC_DEVICES, "warning", "no GPU: models run on the processor", cure)
    for setting in ("device", "index_device"):
        for device, services in configured.values(setting).items():
            if device not in available:
                variables = " ".join(f"FOVEA_{name.upper()}_{setting.upper()}" for name in services)
                told = f"{', '.join(services)}: {setting} is {device!r}, which torch does not find here"
                yield Finding(TOPIC_DEVICES, "failure", told, f"unset {variables}")


def _memory() -> tuple[int, int]:
    """Return the bytes of memory in total and available, within the limit of a container."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError):
        total = available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int(MEMORY_LIMIT.read_text())
        used = int(MEMORY_LIMIT.with_name("memory.current").read_text())
    except (OSError, ValueError):  # no container, or one without a limit
        return total, available
    return min(total, limit), min(available, max(0, limit - used))


def _has_nvidia() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()


def _nvidia() -> tuple[list[Finding], set[str]]:
    """Return findings about NVIDIA's GPUs, and the names of devices that torch can use."""
    if find_spec("torch") is None:
        return [Finding(TOPIC_DEVICES, "warning", "an NVIDIA GPU, but no torch", "pip install 'fovea[gpu]'")], set()
    answer = _ask_torch()
    if answer is None:
        told = "an NVIDIA GPU, but torch does not start"
        return [Finding(TOPIC_DEVICES, "warning", told, 'python -c "import torch" shows why')], set()
    if not answer["devices"]:
        if answer["build"] is None:
            told = f"an NVIDIA GPU, but torch {answer['version']} is a build for processors: models run on them"
            cure = "pip install --force-reinstall torch --index-url https://pypi.org/simple"
        else:
            told = f"an NVIDIA GPU that torch {answer['version']} can't use: models run on the processor"
            cure = f"update the driver to one for CUDA {answer['build']} (nvidia-smi shows the driver's)"
        return [Finding(TOPIC_DEVICES, "warning", told, cure)], set()
    return [
        Finding(
            TOPIC_DEVICES,
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
