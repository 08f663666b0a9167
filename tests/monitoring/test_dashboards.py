"""Dashboards query metrics that exist, and a Prometheus that scrapes a running Fovea answers all queries."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.monitoring.prometheus_server import CHART, MONITORING, Prometheus, needs_prometheus
from tests.monitoring.promql import metrics_in, unknown_in

DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))
# Grafana's values for its variables; the whole test fits in an hour, however slow the machine.
VARIABLES = {"$__rate_interval": "1h", "$job": ".*"}


def panels(dashboard: Path) -> list[dict[str, Any]]:
    """Without the rows that head them."""
    return [panel for panel in json.loads(dashboard.read_text())["panels"] if panel["type"] != "row"]


QUERIES = [
    pytest.param(target["expr"], id=f"{dashboard.stem}: {panel['title']} {target['refId']}")
    for dashboard in DASHBOARDS
    for panel in panels(dashboard)
    for target in panel["targets"]
]


def test_there_is_a_dashboard_of_everything_one_of_answers_and_one_of_checkpoints() -> None:
    assert [dashboard.stem for dashboard in DASHBOARDS] == ["fovea-checkpoints", "fovea-generate", "fovea-overview"]
    asked = set().union(*(metrics_in(str(query.values[0])) for query in QUERIES))
    assert len(asked) > 30


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_only_metrics_and_labels_that_exist(query: str) -> None:
    assert metrics_in(query)
    assert unknown_in(query) == set()


@pytest.mark.parametrize(
    ("query", "unknown"),
    [
        ("rate(fovea_request_total[1m])", {"fovea_request_total"}),
        ("sum by (path) (fovea_queue_depth)", {"path"}),
        ('fovea_queue_depth{service="embed"}', {"service"}),
        ("fovea_request_seconds", {"fovea_request_seconds"}),
    ],
)
def test_a_name_that_does_not_exist_is_found(query: str, unknown: set[str]) -> None:
    assert unknown_in(query) == unknown


@needs_prometheus
@pytest.mark.slow
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_returns_data_of_a_running_fovea(query: str, scraped: Prometheus) -> None:
    for variable, value in VARIABLES.items():
        query = query.replace(variable, value)
    found = scraped.query(query)
    assert any(math.isfinite(sample.value) for sample in found), found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_lie_beside_each_other_and_take_their_data_from_where_the_reader_chooses(dashboard: Path) -> None:
    document = json.loads(dashboard.read_text())
    assert document["uid"] == dashboard.stem
    everything = document["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    sources = re.findall(r'"datasource": (\{[^}]*\})', dashboard.read_text().replace("${datasource}", "chosen"))
    assert sources
    assert {json.loads(source)["uid"] for source in sources} == {"chosen"}
    variables = {variable["name"] for variable in document["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]+)", dashboard.read_text()))
    assert used == variables


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_alerts_and_settings_that_a_panel_names_exist(dashboard: Path) -> None:
    files = [yaml.safe_load((CHART / name).read_text()) for name in ("alerts.yml", "cluster-alerts.yml")]
    named = set(re.findall(r"\bFovea[A-Z][A-Za-z]+", dashboard.read_text()))
    assert named <= {rule["alert"] for file in files for rule in file["groups"][0]["rules"]}


def test_grafana_finds_the_dashboards_and_the_source_of_their_data() -> None:
    provisioning = MONITORING / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "fovea.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/var/lib/grafana/dashboards"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["uid"], source["isDefault"]) == ("prometheus", "prometheus", True)
