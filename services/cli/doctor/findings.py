"""Findings of `fovea doctor`, the checks that make them, and the settings that they are about.

Each check runs on a thread of its own and within a limit. The settings are those with which `fovea up` would start the
processes of this installation.
"""

import importlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal

from services.cli.delegation import missing_module
from services.cli.programs import PACKAGES, existing_names
from services.core.serving.model_settings import ModelSettings
from services.core.settings import ProcessSettings, SettingsError, read_settings

# Longer than any check waits for its own answers, but for a remote store, whose client repeats requests.
LIMIT_S = 12.0

Status = Literal["ok", "warning", "failure"]


@dataclass(frozen=True)
class Finding:
    """One thing that is there or would not work; `cure` is a command to type or a setting to change."""

    topic: str
    status: Status
    found: str
    cure: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


Check = Callable[[], Iterable[Finding]]


def examine(
    checks: Mapping[str, Check],
    limit_s: float = LIMIT_S,
    addresses: Mapping[str, str] = MappingProxyType({}),
    own_limits_s: Mapping[str, float] = MappingProxyType({}),
) -> list[Finding]:
    """Run all checks at once and return their findings in the order of the checks.

    One that breaks, or that is not done in time, is a finding itself; `addresses` are the settings, by topic, that say
    whom a check asks, and `own_limits_s` the limits of those that have their own.
    """
    results: dict[str, list[Finding]] = {}

    def run(topic: str, check: Check) -> None:
        try:
            results[topic] = list(check())
        except Exception as error:  # noqa: BLE001 - whatever breaks must not hide what the other checks find
            reason = f"this check broke: {error!r}"
            results[topic] = [Finding(topic, "failure", reason, "report it with the output of: fovea doctor --json")]

    threads = {topic: threading.Thread(target=run, args=(topic, check), daemon=True) for topic, check in checks.items()}
    for thread in threads.values():
        thread.start()
    began_s = time.monotonic()
    limits_s = {topic: own_limits_s.get(topic, limit_s) for topic in checks}
    for topic, thread in threads.items():
        thread.join(max(0.0, began_s + limits_s[topic] - time.monotonic()))
    return [
        finding
        for topic in checks
        for finding in results.get(topic, [_late(topic, limits_s[topic], addresses.get(topic))])
    ]


def _late(topic: str, limit_s: float, setting: str | None) -> Finding:
    cure = f"check the network and the address{'' if setting is None else f' in {setting}'}"
    return Finding(topic, "failure", f"no answer within {limit_s:g} s", cure)


@dataclass(frozen=True)
class Configured:
    """`names` of the processes that exist, the first missing module of those that lack one, and the settings of those
    whose settings are valid; `complaints` are the findings about the others."""

    names: Sequence[str]
    missing: Mapping[str, str]
    settings: Mapping[str, ProcessSettings]
    complaints: Sequence[Finding]

    @property
    def to_start(self) -> list[str]:
        """The processes that `fovea up` would start, or all where it would start none."""
        return [name for name in self.names if name not in self.missing] or list(self.names)

    def values(self, setting: str) -> dict[Any, list[str]]:
        """Group the processes by the value of a setting; those without it, or with None, are left out."""
        grouped: dict[Any, list[str]] = {}
        for name, settings in self.settings.items():
            value = getattr(settings, setting, None)
            if value is not None:
                grouped.setdefault(value, []).append(name)
        return grouped


def read_configured() -> Configured:
    """Read the settings of all processes from the environment."""
    names = existing_names()
    settings: dict[str, ProcessSettings] = {}
    complaints: list[Finding] = []
    for name in names:
        settings_class = _settings_class(name)
        if settings_class is None:
            continue
        try:
            settings[name] = read_settings(settings_class)
        except SettingsError as refused:
            complaints += [_complaint(name, line) for line in str(refused).splitlines()]
    missing = {name: module for name in names if (module := missing_module(name)) is not None}
    return Configured(names, missing, settings, _once(complaints))


def served_models(settings: ProcessSettings) -> Sequence[tuple[str, str]]:
    """Return the name and alias of every model that a process serves."""
    return settings.followed if isinstance(settings, ModelSettings) else ()


def _settings_class(name: str) -> type[ProcessSettings] | None:
    """Return the class of a process's settings, None where packages that its module imports are missing."""
    module = f"{PACKAGES[name][0]}.settings"
    if find_spec(module) is None:
        return None
    try:
        found = vars(importlib.import_module(module)).values()
    except ModuleNotFoundError:
        return None
    prefix = f"FOVEA_{name.upper()}_"
    classes = (one for one in found if isinstance(one, type) and issubclass(one, ProcessSettings))
    return next((one for one in classes if one.model_config.get("env_prefix") == prefix), None)


def _complaint(name: str, line: str) -> Finding:
    variable = line.partition(" ")[0].rstrip(":")
    return Finding("settings", "failure", f"{name} would not start: {line}", f"unset {variable}")


def _once(complaints: Sequence[Finding]) -> list[Finding]:
    """Keep one of the complaints that several processes have about one variable."""
    return list({finding.cure: finding for finding in reversed(complaints)}.values())[::-1]
