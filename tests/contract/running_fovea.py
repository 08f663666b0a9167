"""The gateway and every service that has a process, with their starters, as `fovea up` starts them."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.cli.programs import PACKAGES
from tests.contract.processes import SERVICES, Process, start_process

PORTS = {name: port for name, (_, port) in PACKAGES.items()}


@dataclass
class Fovea:
    """`environment` is what every process is started with; `processes` are by name, the gateway's among them."""

    folder: Path
    environment: dict[str, str]
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.processes["gateway"].url

    def addresses(self) -> dict[str, str]:
        """Return the addresses of the scrape configuration's targets."""
        return {
            f"{name}:{port}": f"127.0.0.1:{self.processes[name].port}"
            for name, port in PORTS.items()
            if name in self.processes
        }

    def start(
        self,
        service: str,
        settings: Mapping[str, str] | None = None,
        *,
        instance: str = "",
        module: str = "",
        port: int = 0,
    ) -> Process:
        """Returns once it listens. A second process of a service has another `instance`."""
        name = instance or service
        log = self.folder / f"{name}-{len(list(self.folder.glob(f'{name}-*.log')))}.log"
        module = module or PACKAGES[service][0]
        environment = {**self.environment, f"FOVEA_{service.upper()}_PORT": str(port), **(settings or {})}
        self.processes[name] = process = start_process(module, log, environment)
        return process

    def start_gateway(self, settings: Mapping[str, str] | None = None, *, port: int = 0) -> Process:
        """A gateway that knows the services started before it, and no others."""
        running = [name for name in SERVICES if name in self.processes]
        urls = {f"FOVEA_GATEWAY_{name.upper()}_URLS": self.processes[name].url for name in running}
        return self.start("gateway", {**urls, **(settings or {})}, port=port)

    def kill(self) -> None:
        for process in self.processes.values():
            process.process.kill()
            process.process.wait()


def settings_of_a_test(folder: Path) -> dict[str, str]:
    """Everything that a process keeps lies in `folder`, and it computes on one core."""
    return {
        "FOVEA_STORE_URL": (folder / "store").as_uri(),
        "FOVEA_CHECKPOINT_CACHE_DIR": str(folder / "checkpoints"),
        "FOVEA_EMBED_COLLECTIONS_DIR": str(folder / "collections"),
        **{f"FOVEA_{name.upper()}_DEVICE": "cpu" for name in SERVICES},
        **{f"FOVEA_{name.upper()}_NUM_THREADS": "1" for name in SERVICES},
    }


@contextmanager
def running_fovea(
    folder: Path, *services: str, gateway: Mapping[str, str] | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Fovea]:
    """These services and the gateway before them, ready; `settings` are for all, `gateway` for that one alone."""
    folder.mkdir(parents=True, exist_ok=True)
    fovea = Fovea(folder, {**settings_of_a_test(folder), **(settings or {})})
    with ExitStack() as stack:
        stack.callback(fovea.kill)
        for name in services:
            fovea.start(name)
        fovea.start_gateway(gateway)
        for process in list(fovea.processes.values()):
            process.wait_until_ready()
        yield fovea
