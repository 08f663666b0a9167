"""Arguments that unfinished work was begun with, compared with those of the command that would continue it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.core.refusals import Refused


def differences(begun: Mapping[str, Any], now: Mapping[str, Any], options: Mapping[str, str]) -> str:
    """Describe the values that differ; empty if none do. JSON values by name.

    `options` gives the command's option for a name or for its last part; a value without one is called by its name.
    Each option is described once.
    """
    told: dict[str, str] = {}
    for name in sorted(begun.keys() | now):
        before, after = begun.get(name), now.get(name)
        if before != after:
            option = options.get(name) or options.get(name.rpartition(".")[2], name)
            told.setdefault(option, f"{option} was {json.dumps(before)}, and is {json.dumps(after)}")
    return "; ".join(told.values())


def other_arguments(
    path: Path, begun: Mapping[str, Any], now: Mapping[str, Any], options: Mapping[str, str]
) -> Refused:
    """The refusal to continue from a state that belongs to a run with other arguments, as `differences` tells them."""
    told = differences(begun, now, options)
    return Refused(f"{path} belongs to a run with other arguments ({told}): remove it or choose another output folder")


def option_names(*names: str) -> dict[str, str]:
    """Give each name the option that is spelt like it."""
    return {name: f"--{name.replace('_', '-')}" for name in names}


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested objects to paths: {"a": {"b": 1}} → {"a.b": 1}."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}.{inner}": one for inner, one in flat(value).items()}
        else:
            found[name] = value
    return found
