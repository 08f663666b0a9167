"""The processes that make up Fovea: their packages, addresses and ports."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

# Each process's package and the default of its `port` setting.
PACKAGES = {
    "gateway": ("gateway", 8080),
    "predict": ("services.predict", 8101),
    "generate": ("services.generate", 8102),
    "embed": ("services.embed", 8103),
    "score": ("services.score", 8104),
}


@dataclass(frozen=True)
class Program:
    """A package to run with `python -m`; `port_variable` is the setting that a taken port is blamed on."""

    name: str
    package: str
    host: str
    port: int
    port_variable: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.reachable_host}:{self.port}"

    @property
    def reachable_host(self) -> str:
        """Where this machine reaches it: an unspecified address listens everywhere but is none to connect to."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)


class BadPort(ValueError):
    """Names the variable and what it held."""


def exists(name: str) -> bool:
    """Whether this installation has the process, without importing more of it than its package."""
    package, _ = PACKAGES[name]
    return find_spec(package) is not None and find_spec(f"{package}.__main__") is not None


def existing_programs(environment: Mapping[str, str]) -> list[Program]:
    """The processes that exist, on the addresses that the environment gives them; the gateway first.

    The gateway is told where the services are, unless the environment says so itself, and which there are not.
    Port 0 becomes a free one. Raises BadPort.
    """
    programs = [_program(name, environment) for name in PACKAGES if exists(name)]
    urls = {program.name: program.url for program in programs}
    upstreams = {f"FOVEA_GATEWAY_{name.upper()}_URLS": urls.get(name, "") for name in PACKAGES if name != "gateway"}
    programs[0].environment.update({name: url for name, url in upstreams.items() if name not in environment})
    return programs


def _program(name: str, environment: Mapping[str, str]) -> Program:
    package, default_port = PACKAGES[name]
    own_prefix = f"FOVEA_{name.upper()}_"
    port_variable = f"{own_prefix}PORT"
    host = environment.get(f"{own_prefix}HOST") or environment.get("FOVEA_HOST") or "127.0.0.1"
    given = environment.get(port_variable) or str(default_port)
    if not given.isdecimal() or int(given) > 65535:
        raise BadPort(f"{port_variable} must be a port number, not {given!r}.")
    port = int(given) or _free_port(host)
    settings = {f"{own_prefix}HOST": host, port_variable: str(port)}
    # A person reads these logs; whoever collects them says so.
    settings["FOVEA_LOG_FORMAT"] = environment.get("FOVEA_LOG_FORMAT", "console")
    return Program(name, package, host, port, port_variable, settings)


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port: int = listener.getsockname()[1]
        return port
