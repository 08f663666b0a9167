"""The committed scrape configuration, as promtool and a Prometheus take it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from services.core.metrics import Metrics
from tests.contract.processes import SERVICES
from tests.contract.running_fovea import PORTS
from tests.monitoring.prometheus_server import CHART, MONITORING, Prometheus, needs_prometheus, needs_promtool

SETTINGS_PAGE = MONITORING.parent / "docs" / "reference" / "settings.md"


@needs_promtool
def test_the_configuration_is_prometheus_s_once_the_gateway_s_key_lies_beside_it(tmp_path: Path) -> None:
    for file in (MONITORING / "prometheus.yml", CHART / "alerts.yml"):
        shutil.copy(file, tmp_path)
    command = ["promtool", "check", "config", "prometheus.yml"]
    without = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "metrics.key" in without.stdout + without.stderr
    (tmp_path / "metrics.key").write_text("a key")
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "1 rule files found" in checked.stdout


def test_the_gateway_and_every_service_are_scraped_where_they_listen_by_default() -> None:
    defaults = dict(re.findall(r"`FOVEA_([A-Z]+)_PORT` \| int \| `(\d+)`", SETTINGS_PAGE.read_text()))
    assert {name: PORTS[name.lower()] for name in defaults} == {name: int(port) for name, port in defaults.items()}
    assert set(SERVICES) < set(PORTS)
    configuration = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    scraped = {one["job_name"]: one["static_configs"][0]["targets"] for one in configuration["scrape_configs"]}
    assert scraped == {name: [f"{name}:{port}"] for name, port in PORTS.items()}


@needs_prometheus
@pytest.mark.slow
def test_prometheus_reads_every_process_and_the_gateway_by_its_key(scraped: Prometheus) -> None:
    assert scraped.healthy() == {f"{name}:{PORTS[name]}" for name in ("gateway", *SERVICES)}
    own = {sample.labels["job"] for sample in scraped.query("fovea_inflight_requests")}
    assert own == {"gateway", *SERVICES}
    refused = scraped.query('fovea_rejected_total{job="gateway", reason="unauthenticated"}')
    assert [sample.value for sample in refused] == [0]


@needs_prometheus
@pytest.mark.slow
def test_what_prometheus_holds_of_us_is_what_the_code_lists(scraped: Prometheus) -> None:
    listed = {family.name for family in Metrics("any").registry.collect()}
    held = {sample.labels["__name__"] for sample in scraped.query('{__name__=~"fovea_.+"}')}
    bare = {re.sub(r"_(total|bucket|sum|count|created)$", "", name) for name in held}
    assert bare <= {re.sub(r"_(total|created)$", "", name) for name in listed}
