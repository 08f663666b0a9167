"""The installation: versions, processes that can start, and extras."""

import platform
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec

from services.cli.doctor.configured import Configured
from services.cli.doctor.findings import Finding, Status
from services.cli.one_line import MODULES

TOPIC_VERSIONS, TOPIC_PROCESSES, TOPIC_EXTRAS = "versions", "processes", "extras"
# By the import name.
TOLD = {"fovea": "services", "torch": "torch", "transformers": "transformers", "open_clip_torch": "open_clip"}
# What an extra brings beside the processes' packages, by import name.
TOOLS = {
    "search": ("faiss",),
    "cluster": ("faiss", "psycopg", "psycopg_pool", "pymilvus"),
    "train": ("accelerate", "peft", "tensorboard", "scipy", "matplotlib"),
    "ray": ("ray",),
    "telemetry": ("opentelemetry.sdk",),
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
    yield Finding(TOPIC_VERSIONS, "ok", f"{told}, {platform.system()} {platform.machine()}", figures=figures)
    for name, least in _needed().items():
        found = _version(name)
        if found is not None and _numbers(found) < _numbers(least):
            told = f"{name} {found} is older than {least}, which Fovea needs"
            yield Finding(TOPIC_VERSIONS, "failure", told, f"pip install '{name}>={least}'")


def find_processes(configured: Configured) -> Iterator[Finding]:
    """Tell which processes can start, and which lack packages."""
    ready = [name for name in configured.names if name not in configured.missing]
    services = [name for name in configured.names if name != "gateway"]
    if ready:
        yield Finding(TOPIC_PROCESSES, "ok", f"{', '.join(ready)} can start")
    if not services:
        yield Finding(TOPIC_PROCESSES, "warning", "this installation has no services", "pip install 'fovea[cpu]'")
    by_module: dict[str, list[str]] = {}
    for name, module in configured.missing.items():
        by_module.setdefault(module, []).append(name)
    nothing_starts = not set(services) & set(ready)
    for module, names in by_module.items():
        # `fovea up` leaves out a service that can't start, unless it is the last, but not the gateway.
        status: Status = "failure" if nothing_starts or "gateway" in names else "warning"
        extra = names[0] if len(configured.missing) == 1 else "cpu"
        told = f"{module} is not installed, and {', '.join(names)} can't start"
        yield Finding(TOPIC_PROCESSES, status, told, f"pip install 'fovea[{extra}]'")


def find_extras(configured: Configured) -> Iterator[Finding]:
    """Tell the installed extras, and those that the settings or a service ask for in vain."""
    modules = {**MODULES, **TOOLS}
    lacking = {extra for extra, names in modules.items() if not all(map(is_importable, names))}
    installed = [extra for extra in modules if extra not in lacking]
    told = f"installed: {', '.join(installed) or 'none'}"
    if lacking:
        told += f"; not installed: {', '.join(extra for extra in modules if extra in lacking)}"
    yield Finding(TOPIC_EXTRAS, "ok", told, figures={"installed": installed})
    if "embed" in installed and "search" in lacking:
        told = "without FAISS, embed has no collections"
        yield Finding(TOPIC_EXTRAS, "warning", told, "pip install 'fovea[search]'")
    if "cluster" in lacking and configured.values("collections_url"):
        missing = next(module for module in TOOLS["cluster"] if not is_importable(module))
        told = f"FOVEA_EMBED_COLLECTIONS_URL is set, and {missing} is not installed"
        yield Finding(TOPIC_EXTRAS, "failure", told, "pip install 'fovea[cluster]'")
    if "telemetry" in lacking and configured.values("telemetry").get(True):
        told = "FOVEA_TELEMETRY is set, and OpenTelemetry's SDK is not installed"
        yield Finding(TOPIC_EXTRAS, "failure", told, "pip install 'fovea[telemetry]'")


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
        found = (_REQUIREMENT.match(line) for line in requires("fovea") or ())
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
