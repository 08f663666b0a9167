"""A running Fovea under a scraping Prometheus, once for all tests that look at it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.access import KeyFile, digest
from gateway.settings import KeyRecord
from tests.contract.processes import SERVICES
from tests.contract.running_fovea import running_fovea
from tests.monitoring.load import ASK, Client
from tests.monitoring.prometheus_server import Prometheus, moved_configuration, running_prometheus

KEYS = {"website": "key-of-a-website", "prometheus": "key-of-prometheus"}


def write_keys(path: Path) -> Path:
    """Keys for a client of all services, and for a scraper that may read the gateway's metrics and nothing else."""
    scopes = {"website": frozenset(SERVICES), "prometheus": frozenset({"metrics"})}
    records = [KeyRecord(name=name, sha256=digest(key), scopes=scopes[name]) for name, key in KEYS.items()]
    path.write_text(KeyFile(keys=tuple(records)).model_dump_json())
    return path


@pytest.fixture(scope="package")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Every service that has a process was asked in every way, before and between scrapes; its gateway wants keys."""
    folder = tmp_path_factory.mktemp("monitoring")
    keys = {"FOVEA_GATEWAY_KEYS_FILE": str(write_keys(folder / "keys.json"))}
    with running_fovea(folder / "fovea", *SERVICES, gateway=keys) as fovea:
        configuration = moved_configuration(fovea.addresses(), interval_s=1)
        with running_prometheus(folder / "prometheus", configuration, KEYS["prometheus"]) as prometheus:
            prometheus.wait_for(set(fovea.addresses()))
            client = Client(fovea.url, KEYS["website"])
            # Twice: a series that appears with its first event has no rate before the second.
            for _ in range(2):
                for name in SERVICES:
                    ASK[name](client)
                prometheus.wait_for_scrapes()
            client.close()
            yield prometheus.once_scraped(set(fovea.addresses()))
