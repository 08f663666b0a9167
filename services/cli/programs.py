"""The processes that make up Fovea: their packages, addresses and ports."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

# Each process's package and the default of its `port` setting.
PACKAGES = {
    "gateway": ("gateway", 8080),
    "predict": ("services.predict", 8101),
    "generate": ("services.generate", 8102),
    "embed": ("services.embed", 8103),
    "score": ("services.score", 8104),
}
# The first requests come while the services are still loading.
WAIT, WAIT_S = "FOVEA_GATEWAY_WAIT_FOR_SERVICE_S", "30"
# Where `fovea curate review` listens unless it is told otherwise.
REVIEW, REVIEW_PORT = "FOVEA_GATEWAY_REVIEW_URL", "8090"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LOG_FORMAT = "FOVEA_LOG_FORMAT"


@dataclass(frozen=True)
class Program:
    """A package to run with `python -m`.

    `port_variable` is the setting to change where the port is in use. `needs` names checks of its `/readyz` that must
    pass besides the whole: the gateway is ready without services, but `fovea up` is not. `probe` is the one path that
    a program which is not Fovea's answers in place of all of ours.
    """

    name: str
    package: str
    host: str
    port: int
    port_variable: str
    environment: dict[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    probe: str = ""

    @property
    def url(self) -> str:
        return f"http://{self.reachable_host}:{self.port}"

    @property
    def reachable_host(self) -> str:
        """The host to connect to from this machine: an unspecified address is for listening only."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)


class BadPort(ValueError):
    """An invalid port, or one that two processes share; the message names the variables and the value."""


def existing_names() -> list[str]:
    """Return the processes that this installation has, the gateway first; only their packages are imported."""
    return [
        name
        for name, (package, _) in PACKAGES.items()
        if find_spec(package) is not None and find_spec(f"{package}.__main__") is not None
    ]


def plan_programs(names: Sequence[str], environment: Mapping[str, str]) -> list[Program]:
    """Return the named processes, on the addresses that the environment gives them.

    The gateway is given the services' addresses, unless the environment has them, and none for missing services. It
    lets requests wait for services that are starting. One that only this machine reaches finds a review that is started
    beside it. Port 0 becomes a free one. Raises BadPort.
    """
    services = [_program(name, environment) for name in names if name != "gateway"]
    if "gateway" not in names:
        return _on_their_own_ports(services)
    urls = {service.name: service.url for service in services}
    upstreams = {f"FOVEA_GATEWAY_{name.upper()}_URLS": urls.get(name, "") for name in PACKAGES if name != "gateway"}
    gateway = _program("gateway", environment)
    defaults = {**upstreams, WAIT: WAIT_S}
    if gateway.host in LOOPBACK:
        defaults[REVIEW] = f"http://127.0.0.1:{environment.get('FOVEA_CURATE_PORT') or REVIEW_PORT}"
    told = {name: value for name, value in defaults.items() if name not in environment}
    gateway = replace(gateway, environment={**gateway.environment, **told}, needs=tuple(urls))
    return _on_their_own_ports([gateway, *services])


def _on_their_own_ports(programs: list[Program]) -> list[Program]:
    """Return the programs. Raises BadPort if two have the same port, even of different addresses."""
    first: dict[int, Program] = {}
    for program in programs:
        other = first.setdefault(program.port, program)
        if other is not program:
            raise BadPort(f"{other.port_variable} and {program.port_variable} are both {program.port}.")
    return programs


def _program(name: str, environment: Mapping[str, str]) -> Program:
    package, default_port = PACKAGES[name]
    own_prefix = f"FOVEA_{name.upper()}_"
    port_variable = f"{own_prefix}PORT"
    host = environment.get(f"{own_prefix}HOST") or environment.get("FOVEA_HOST") or "127.0.0.1"
    port = port_in(environment, port_variable, default_port, host)
    settings = {f"{own_prefix}HOST": host, port_variable: str(port), **_log_format(environment)}
    return Program(name, package, host, port, port_variable, settings)


def port_in(environment: Mapping[str, str], variable: str, default: int, host: str = "127.0.0.1") -> int:
    """Return the port that a variable names, a free one for 0. Raises BadPort."""
    given = environment.get(variable) or str(default)
    if not given.isdecimal() or int(given) > 65535:
        raise BadPort(f"{variable} must be a port number, not {given!r}.")
    return int(given) or _free_port(host)


def has_nvidia_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU, as far as can be told without its libraries."""
    return shutil.which("nvidia-smi") is not None or Path("/dev/nvidiactl").exists()


def gpu_free_bytes() -> int | None:
    """Return the free memory of the first GPU, None if nvidia-smi tells none."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout
        return int(told.split()[0]) * 1024**2
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def _log_format(environment: Mapping[str, str]) -> dict[str, str]:
    """The processes write to a pipe, so `auto` is decided by where this process's output goes."""
    is_unset = environment.get(LOG_FORMAT, "auto") == "auto"
    return {LOG_FORMAT: "console"} if is_unset and sys.stdout.isatty() else {}


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener:
        port: int = listener.getsockname()[1]
        return port
