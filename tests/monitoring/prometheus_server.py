"""A real Prometheus over the committed scrape configuration, its targets moved to where they run in a test."""

import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.kept_port import kept_port

MONITORING = Path(__file__).parents[2] / "monitoring"
# Alerts and dashboards, where a cluster's chart has them too.
CHART = MONITORING.parent / "charts" / "fovea"
POLL_S = 0.1
# Longer than a scrape may take in a test.
SETTLED_AFTER_S = 3.0

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is not installed (Debian: apt-get install prometheus)"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian: apt-get install prometheus)"
)


@dataclass(frozen=True)
class Sample:
    """A sample of one series: its labels, its name among them, and its value at a time."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    """`at` is the Unix time that it is asked about; None: now."""

    url: str
    at: float | None = None

    def query(self, expression: str) -> list[Sample]:
        """Raises AssertionError with Prometheus's own words for an expression that it does not take."""
        return [Sample(one["metric"], float(one["value"][1])) for one in self._ask(expression)]

    def ranges(self, selector: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Raw samples of `metric[1m]` and the like: each series' labels, and its times and values."""
        return [
            (one["metric"], [(float(at), float(value)) for at, value in one["values"]]) for one in self._ask(selector)
        ]

    def healthy(self) -> set[str]:
        """The instances whose last scrape went well."""
        return {sample.labels["instance"] for sample in self.query("up == 1")}

    def wait_for(self, instances: set[str]) -> None:
        while not instances <= self.healthy():
            time.sleep(POLL_S)  # a scraper tells nobody when it has scraped

    def wait_for_scrapes(self) -> None:
        """Wait until every target has been scraped from now on."""
        now = time.time()
        while any(sample.value <= now for sample in self.query("timestamp(up)")):
            time.sleep(POLL_S)

    def once_scraped(self, instances: set[str]) -> "Prometheus":
        """As of a time from now on at which the last scrape of each went well: one that fails later changes nothing."""
        now = time.time()
        while True:
            # by now every scrape that began before has ended
            then = replace(self, at=time.time() - SETTLED_AFTER_S)
            if instances <= then.healthy() and all(sample.value > now for sample in then.query("timestamp(up)")):
                return then
            time.sleep(POLL_S)

    def _ask(self, expression: str) -> list[dict[str, Any]]:
        asked = {"query": expression, **({} if self.at is None else {"time": f"{self.at:.3f}"})}
        answer = requests.get(f"{self.url}/api/v1/query", params=asked, timeout=30).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result


def moved_configuration(addresses: Mapping[str, str], *, interval_s: float) -> dict[str, Any]:
    """The committed configuration for targets at other addresses, which keep their names as `instance`.

    `addresses` are by target, as `embed:8103`; those that are not named are left out.
    """
    configuration: dict[str, Any] = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    interval = f"{round(interval_s * 1000)}ms"
    configuration["global"] = {"scrape_interval": interval, "evaluation_interval": interval, "scrape_timeout": interval}
    for scraping in configuration["scrape_configs"]:
        targets = [target for group in scraping["static_configs"] for target in group["targets"]]
        scraping["static_configs"] = [
            {"targets": [addresses[target]], "labels": {"instance": target}}
            for target in targets
            if target in addresses
        ]
    return configuration


@contextmanager
def running_prometheus(
    folder: Path, configuration: Mapping[str, Any], metrics_key: str = "none"
) -> Iterator[Prometheus]:
    """Listens once this yields; nothing of it outlives the block."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(CHART / "alerts.yml", folder)
    (folder / "metrics.key").write_text(metrics_key)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(configuration)))
    with kept_port() as port:
        command = ["prometheus", "--config.file=prometheus.yml", f"--web.listen-address=127.0.0.1:{port}"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--storage.tsdb.path=data", "--log.level=warn"], cwd=folder, stdout=log, stderr=log
            )
        try:
            url = f"http://127.0.0.1:{port}"
            while not _is_ready(url):
                assert process.poll() is None, (folder / "log").read_text()
                time.sleep(POLL_S)  # a process that starts can only be polled
            yield Prometheus(url)
        finally:
            process.kill()
            process.wait()


def _is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/-/ready", timeout=5).status_code == 200
    except (requests.ConnectionError, requests.Timeout):
        return False
