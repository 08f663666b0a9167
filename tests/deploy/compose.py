"""docker-compose.yml as compose reads it: variables filled in, and what each service then is."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from services.cli.programs import PACKAGES
from tests.deploy.dockerfiles import ROOT, Dockerfile

TEXT = (ROOT / "docker-compose.yml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()
# `${NAME}`, `${NAME:-default}`, `${NAME:?message}`, or `$$` for a dollar.
VARIABLE = re.compile(r"\$(?:\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}|(?P<dollar>\$))")
IMAGES = {
    "localhost/fovea-gateway": (Dockerfile("gateway.Dockerfile"), "gateway"),
    "localhost/fovea-service": (Dockerfile("service.Dockerfile"), "cpu"),
    "localhost/fovea-jobs": (Dockerfile("service.Dockerfile"), "cpu"),
    "localhost/fovea-vllm": (Dockerfile("vllm.Dockerfile"), "cuda"),
}


class Refused(Exception):
    """A variable that must be given is not."""


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Interpolate variables in a value as compose does. Raises Refused."""
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    return VARIABLE.sub(lambda found: _value_of(found, variables), value) if isinstance(value, str) else value


def _value_of(found: re.Match[str], variables: Mapping[str, str]) -> str:
    if found["dollar"]:
        return "$"
    given = variables.get(found["name"], "")
    if not given and found["kind"] != "-":
        raise Refused(f"{found['name']}: {found['rest']}")
    return given or found["rest"]


def assignments(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))


# What .env.example gives, and what it shows as an example.
GIVEN = assignments(EXAMPLE)
SUGGESTED = assignments(re.sub(r"^#(?=\w+=)", "", EXAMPLE, flags=re.MULTILINE))
# An operator's .env: every empty line filled in.
FILLED = {name: value or "0a1b2c3d4e5f" for name, value in GIVEN.items()}
FILE: dict[str, Any] = interpolated(yaml.safe_load(TEXT), FILLED)
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
# Which process of Fovea a service of the file is; others run something else.
PROCESS = {
    name: "gateway" if name == "gateway" else service["command"][1]
    for name, service in SERVICES.items()
    if name == "gateway" or (service.get("command") or [""])[0] == "serve"
}


def environment(name: str, variables: Mapping[str, str] = FILLED) -> dict[str, str]:
    """Return the environment of the service's process, the image's own included."""
    service = SERVICES[name]
    own = IMAGES.get(service["image"].partition(":")[0])
    settings = {
        key: variables.get(key) if value is None else value for key, value in service.get("environment", {}).items()
    }
    of_image = own[0].environment(own[1]) if own else {}
    return of_image | {key: value for key, value in settings.items() if value is not None}


def port_of(process: str) -> int:
    return PACKAGES[process][1]


def mounts(name: str) -> dict[str, str]:
    """Source by target: a folder or file of the repository (`./…`), or a volume."""
    triples = [mount.split(":") for mount in SERVICES[name].get("volumes", [])]
    return {parts[1]: parts[0] for parts in triples}


def seconds(duration: str) -> float:
    assert duration.endswith("s"), duration
    return float(duration.removesuffix("s"))
