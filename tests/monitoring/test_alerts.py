"""Each alert fires on a recording of the trouble that it warns of, is silent when all is well, and is explained."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.core.settings import ProcessSettings
from services.predict.settings import PredictSettings
from tests.deploy.kubernetes_manifests import SITE, render
from tests.monitoring.prometheus_server import CHART, MONITORING, needs_promtool
from tests.monitoring.promql import labels_by_metric, labels_in, metrics_in, unknown_in

ROOT = MONITORING.parent
RUNBOOKS = ROOT / "docs" / "runbooks"
RULES: list[dict[str, Any]] = yaml.safe_load((CHART / "alerts.yml").read_text())["groups"][0]["rules"]
UNIT_TESTS: list[dict[str, Any]] = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
CLUSTER_RULES: list[dict[str, Any]] = yaml.safe_load((CHART / "cluster-alerts.yml").read_text())["groups"][0]["rules"]
ALERTS = [rule["alert"] for rule in RULES]
each_rule = pytest.mark.parametrize("rule", RULES, ids=ALERTS)
each_rule_of_any = pytest.mark.parametrize("rule", [*RULES, *CLUSTER_RULES], ids=lambda rule: rule["alert"])


def promtool(*arguments: str, folder: Path = MONITORING) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def raised_by(test: dict[str, Any]) -> set[str]:
    """The alerts that a unit test expects, all of which fire in its end."""
    labels = " ".join(sample["labels"] for sample in test["promql_expr_test"][0]["exp_samples"])
    return set(re.findall(r'alertname="(\w+)"', labels))


@needs_promtool
def test_the_rules_are_prometheus_s_language() -> None:
    checked = promtool("check", "rules", "alerts.yml", folder=CHART)
    assert checked.returncode == 0, checked.stderr


@needs_promtool
def test_each_recording_raises_the_alerts_that_it_should_and_no_others() -> None:
    checked = promtool("test", "rules", "alerts_test.yml")
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
@pytest.mark.parametrize(
    ("was", "becomes"),
    [("fovea_oldest_queued_seconds > 15", "fovea_oldest_queued_seconds > 1500000"), ('code=~"5.."', 'code=~"4.."')],
)
def test_a_rule_that_fires_no_more_is_found(tmp_path: Path, was: str, becomes: str) -> None:
    rules = (CHART / "alerts.yml").read_text()
    assert was in rules
    folder = tmp_path / "charts" / "fovea"
    folder.mkdir(parents=True)
    (folder / "alerts.yml").write_text(rules.replace(was, becomes))
    (tmp_path / "monitoring").mkdir()
    shutil.copy(MONITORING / "alerts_test.yml", tmp_path / "monitoring")
    assert promtool("test", "rules", "alerts_test.yml", folder=tmp_path / "monitoring").returncode == 1


def chart_rules(folder: Path, namespace: str) -> Path:
    """The rules that Prometheus Operator gets of a release in this namespace."""
    found = render(("production",), SITE, namespace=namespace).get("PrometheusRule", "fovea")
    assert found is not None
    file = folder / "rules.yml"
    file.write_text(yaml.safe_dump(found["spec"]))
    return file


def firing(namespace: str, test: dict[str, Any], alerts: set[str]) -> dict[str, Any]:
    """The recording, made in a namespace beside another where all is well, with the alerts that it should raise."""
    series = [
        {**one, "series": one["series"].replace("{", f'{{namespace="{namespace}",', 1)} for one in test["input_series"]
    ]
    well = [
        {"series": f'up{{job="gateway",namespace="{one}"}}', "values": "1x200"} for one in {"one", "two"} - {namespace}
    ]
    (asked,) = test["promql_expr_test"]
    expected = {
        # What clients get is the trouble of the cluster's own alert too.
        "expr": 'group by (alertname, namespace) (ALERTS{alertstate="firing",alertname!="FoveaErrorBudgetBurn"})',
        "eval_time": asked["eval_time"],
        "exp_samples": [{"labels": f'{{alertname="{one}", namespace="{namespace}"}}', "value": 1} for one in alerts],
    }
    return {**test, "input_series": [*series, *well], "promql_expr_test": [expected]}


@needs_promtool
def test_a_release_s_alerts_tell_its_own_trouble_and_none_of_another_in_the_cluster(tmp_path: Path) -> None:
    rules = chart_rules(tmp_path, "one")
    # Pods in a cluster have longer to start than the recordings last.
    tests = [
        *(firing("one", test, raised_by(test) - {"FoveaTargetDown", "FoveaModelNotReady"}) for test in UNIT_TESTS),
        *(firing("two", test, set()) for test in UNIT_TESTS),
    ]
    file = {"rule_files": [rules.name], "evaluation_interval": "15s", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(file))
    checked = promtool("test", "rules", "test.yml", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def attempts(canary: dict[str, str], stable: dict[str, str]) -> dict[str, str]:
    """Attempts of the gateway at embed and at its canary, by code."""
    return {
        f'fovea_upstream_requests_total{{%s,job="gateway",service="{service}",code="{code}"}}': values
        for service, of_code in (("embed-canary", canary), ("embed", stable))
        for code, values in of_code.items()
    }


def replicas(*, desired: int, limited: int, least: int = 2) -> dict[str, str]:
    """An autoscaler of at most eight pods, and whether it says that it is limited."""
    of = "kube_horizontalpodautoscaler"
    return {
        f"{of}_status_desired_replicas{{%s}}": f"{desired}x60",
        f"{of}_spec_max_replicas{{%s}}": "8x60",
        f"{of}_spec_min_replicas{{%s}}": f"{least}x60",
        f'{of}_status_condition{{%s,condition="ScalingLimited",status="true"}}': f"{limited}x60",
        f'{of}_status_condition{{%s,condition="ScalingLimited",status="false"}}': f"{1 - limited}x60",
        f'{of}_status_condition{{%s,condition="AbleToScale",status="true"}}': "1x60",
    }


@needs_promtool
@pytest.mark.parametrize(
    ("alert", "series", "raises"),
    [
        ("FoveaVolumeFull", {"kubelet_volume_stats_available_bytes{%s}": "5x60"}, True),
        ("FoveaVolumeFull", {"kubelet_volume_stats_available_bytes{%s}": "50x60"}, False),
        ("FoveaReplicasAtMaximum", replicas(desired=8, limited=1), True),
        # Full and content; limited by how fast it may add pods; at the minimum, which is the maximum.
        ("FoveaReplicasAtMaximum", replicas(desired=8, limited=0), False),
        ("FoveaReplicasAtMaximum", replicas(desired=7, limited=1), False),
        ("FoveaReplicasAtMaximum", replicas(desired=8, limited=1, least=8), False),
        ("FoveaGpuErrors", {'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="node"}': "0x30 79x30"}, True),
        ("FoveaGpuErrors", {'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",Hostname="node"}': "0x50 1x10"}, True),
        ("FoveaGpuErrors", {'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",Hostname="node"}': "1x60"}, False),
        ("FoveaErrorBudgetBurn", {'fovea_requests_total{%s,job="gateway",code="503"}': "0+20x60"}, True),
        ("FoveaErrorBudgetBurn", {'fovea_requests_total{%s,job="gateway",code="503"}': "0+20x40 800x20"}, False),
        ("FoveaErrorBudgetBurn", {'fovea_requests_total{%s,job="gateway",code="503"}': "0+10x60"}, False),
        ("FoveaCanaryErrors", attempts(canary={"200": "0+95x60", "500": "0+5x60"}, stable={"200": "0+100x60"}), True),
        ("FoveaCanaryErrors", attempts(canary={"unreachable": "0+5x60"}, stable={}), True),
        ("FoveaCanaryErrors", {'fovea_canary_withdrawn{%s,job="gateway",service="embed-canary"}': "0x40 1x20"}, True),
        ("FoveaCanaryErrors", {'fovea_canary_withdrawn{%s,job="gateway",service="embed-canary"}': "1x40 0x20"}, False),
        (
            "FoveaCanaryErrors",
            attempts(canary={"200": "0+9x60", "503": "0+1x60"}, stable={"200": "0+98x60", "500": "0+2x60"}),
            True,
        ),
        # As often as stable, for clients' errors, less than one in a hundred, too few to tell, and no more.
        (
            "FoveaCanaryErrors",
            attempts(canary={"200": "0+9x60", "503": "0+1x60"}, stable={"200": "0+94x60", "503": "0+6x60"}),
            False,
        ),
        ("FoveaCanaryErrors", attempts(canary={"200": "0+5x60", "422": "0+5x60"}, stable={"200": "0+100x60"}), False),
        ("FoveaCanaryErrors", attempts(canary={"200": "0+995x60", "500": "0+5x60"}, stable={}), False),
        ("FoveaCanaryErrors", attempts(canary={"200": "0+1x60", "500": "0x50 1x10"}, stable={}), False),
        ("FoveaCanaryErrors", attempts(canary={"200": "0+9x60", "500": "0+5x30 150x30"}, stable={}), False),
    ],
)
def test_an_alert_of_the_cluster_fires_where_it_should_and_in_the_release_s_own_namespace(
    alert: str, series: dict[str, str], raises: bool, tmp_path: Path
) -> None:
    beside = {
        "kubelet_volume_stats_capacity_bytes{%s}": "100x60",
        'fovea_requests_total{%s,job="gateway",code="200"}': "0+1000x60",
    }
    # A GPU is its node's: each release tells of it.
    ways = {"one": raises, "two": raises and alert == "FoveaGpuErrors"}
    tests = []
    for namespace, fires in ways.items():
        labels = f'namespace="{namespace}",persistentvolumeclaim="store",horizontalpodautoscaler="keda-hpa-embed"'
        given = [{"series": name.replace("%s", labels), "values": values} for name, values in (beside | series).items()]
        asked = {
            "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})',
            "eval_time": "59m",
            "exp_samples": [{"labels": "{}", "value": 1}] if fires else [],
        }
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": [asked]})
    rules = chart_rules(tmp_path, "one")
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": [rules.name], "tests": tests}))
    checked = promtool("test", "rules", "test.yml", folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_recording_that_raises_it(alert: str) -> None:
    assert alert in set().union(*(raised_by(test) for test in UNIT_TESTS))


def test_a_recording_in_which_all_is_well_holds_every_job_and_raises_nothing() -> None:
    (well,) = [test for test in UNIT_TESTS if test["name"] == "all is well"]
    assert raised_by(well) == set()
    jobs = set(re.findall(r'up\{[^}]*job="(\w+)"', " ".join(one["series"] for one in well["input_series"])))
    assert jobs == {"gateway", "predict", "generate", "embed", "score"}


@each_rule
def test_an_alert_names_only_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
    assert metrics_in(rule["expr"])
    assert unknown_in(rule["expr"]) == set()


@each_rule
def test_a_summary_names_only_labels_that_the_alert_has(rule: dict[str, Any]) -> None:
    named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    expression = rule["expr"]
    grouped = labels_in(" ".join(re.findall(r"by \([^)]*\)", expression)))
    own = set().union(*(labels_by_metric()[metric] for metric in metrics_in(expression)))
    assert named
    assert named <= (grouped or own | {"job", "instance"})


@each_rule_of_any
def test_an_alert_has_a_severity_and_a_page_that_tells_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    page = ROOT / rule["annotations"]["runbook"]
    assert page == RUNBOOKS / f"{rule['alert']}.md"
    headings = re.findall(r"^#+ .*$", page.read_text(), re.MULTILINE)
    assert headings == [f"# {rule['alert']}", "## First look", "## Likely causes", "## What to do"]


def test_every_runbook_is_of_an_alert() -> None:
    assert sorted(page.stem for page in RUNBOOKS.glob("*.md")) == sorted(
        [*ALERTS, *(rule["alert"] for rule in CLUSTER_RULES)]
    )


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_what_a_runbook_names_exists(page: Path) -> None:
    text = page.read_text()
    dashboards = {
        path.stem: [panel["title"] for panel in json.loads(path.read_text())["panels"]]
        for path in (CHART / "dashboards").glob("*.json")
    }
    named = re.findall(r"Panels? (.*?) of\s+`(fovea-[a-z]+)`", text.replace("\n", " "))
    for panels, dashboard in named:
        assert set(re.findall(r"`([A-Z][^`]*)`", panels)) <= set(dashboards[dashboard])
    assert named or "curl" in text
    assert {(page.parent / link).resolve() for link in re.findall(r"\]\((Fovea\w+\.md)\)", text)} <= set(
        RUNBOOKS.glob("*.md")
    )
    settings = (ROOT / "docs" / "reference" / "settings.md").read_text()
    assert all(f"`{name}`" in settings for name in re.findall(r"FOVEA_[A-Z_]+", text))


def test_a_runbook_holds_no_number_but_status_codes() -> None:
    for page in RUNBOOKS.glob("*.md"):
        numbers = set(re.findall(r"\b\d+\b", re.sub(r"^\d\. ", "", page.read_text(), flags=re.MULTILINE)))
        assert numbers <= {"500", "503", "504"}, page


def test_the_thread_counts_as_stalled_when_its_liveness_probe_says_so() -> None:
    (rule,) = [rule for rule in RULES if rule["alert"] == "FoveaComputeThreadStalled"]
    (seconds,) = re.findall(r"heartbeat_timestamp_seconds > (\d+)", rule["expr"])
    assert float(seconds) == PredictSettings().stall_timeout_s


def test_work_that_counts_as_waiting_long_has_still_time_to_be_done() -> None:
    (rule,) = [rule for rule in RULES if rule["alert"] == "FoveaOldestQueued"]
    (seconds,) = re.findall(r"oldest_queued_seconds > (\d+)", rule["expr"])
    assert float(seconds) < ProcessSettings.model_fields["request_timeout_s"].default / 2


def series(workload: str, metric: str, values: str, **labels: str) -> dict[str, str]:
    """A series of a gateway in the cluster, in promtool's notation."""
    own = {"job": "gateway", "namespace": "fovea", "app_kubernetes_io_instance": workload, **labels}
    return {"series": f"{metric}{{{','.join(f'{name}={json.dumps(own[name])}' for name in own)}}}", "values": values}


def check_firing(folder: Path, recorded: list[dict[str, str]], firing: set[tuple[str, str]]) -> None:
    """Fail unless these alerts, with the workloads that they are of, fire after twenty minutes, and no others."""
    test = {
        "interval": "15s",
        "input_series": recorded,
        "promql_expr_test": [
            {
                "expr": "count by (alertname, app_kubernetes_io_instance)"
                ' (ALERTS{alertstate="firing", app_kubernetes_io_instance!=""})',
                "eval_time": "20m",
                "exp_samples": [
                    {"labels": f'{{alertname="{alert}", app_kubernetes_io_instance="{workload}"}}', "value": 1}
                    for alert, workload in sorted(firing)
                ],
            }
        ],
    }
    shutil.copy(CHART / "alerts.yml", folder)
    (folder / "test.yml").write_text(yaml.safe_dump({"rule_files": ["alerts.yml"], "tests": [test]}))
    checked = promtool("test", "rules", "test.yml", folder=folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
def test_what_only_one_of_several_gateways_has_lost_is_not_hidden_by_the_others(tmp_path: Path) -> None:
    """In the production overlay collections have a gateway and a process of their own, also called `embed`."""
    recorded = [
        series("gateway", "fovea_upstream_ready_addresses", "2x80", service="embed"),
        series("gateway", "fovea_gateway_unserved_requests_total", "0x80", service="embed"),
        series("gateway", "fovea_requests_total", "0+1000x80", code="200"),
        series("gateway-collections", "fovea_upstream_ready_addresses", "0x80", service="embed"),
        series("gateway-collections", "fovea_gateway_unserved_requests_total", "0+1x80", service="embed"),
        series("gateway-collections", "fovea_requests_total", "0+1x80", code="503"),
    ]
    lost = ("FoveaErrors", "FoveaServiceUnavailable")
    check_firing(tmp_path, recorded, {(alert, "gateway-collections") for alert in lost})


# What a gateway says of a service that scales to zero, in steps of 15 s up to the twentieth minute.
AT_ZERO = {
    "nobody has asked for it": ("0x80", "0x80", "0x80"),
    "it was asked for long ago and has gone to zero again": ("1x20 0x60", "5x20 0x60", "3x80"),
    "a request waits for its first pod, which takes eight minutes": ("0x80", "0x48 1x32", "0x80"),
}


@needs_promtool
@pytest.mark.parametrize(("ready", "recent", "unserved"), AT_ZERO.values(), ids=list(AT_ZERO))
def test_a_service_at_zero_wakes_nobody_unless_its_requests_are_refused(
    tmp_path: Path, ready: str, recent: str, unserved: str
) -> None:
    at_zero = [
        series("gateway", "fovea_upstream_ready_addresses", ready, service="predict"),
        series("gateway", "fovea_gateway_recent_requests", recent, service="predict"),
    ]
    silent = series("gateway", "fovea_gateway_unserved_requests_total", unserved, service="predict")
    check_firing(tmp_path, [*at_zero, silent], set())
    # One that waited as long as it may is told that nobody came.
    refused = series("gateway", "fovea_gateway_unserved_requests_total", "0x60 1x20", service="predict")
    check_firing(tmp_path, [*at_zero, refused], {("FoveaServiceUnavailable", "gateway")})


@needs_promtool
def test_a_service_that_is_asked_for_and_never_comes_is_an_outage_also_where_nobody_waits_for_a_refusal(
    tmp_path: Path,
) -> None:
    """Clients whose deadlines are shorter than the gateway's wait leave before they are refused."""
    recorded = [
        series("gateway", "fovea_upstream_ready_addresses", "0x80", service="score"),
        series("gateway", "fovea_gateway_recent_requests", "4x80", service="score"),
        series("gateway", "fovea_gateway_unserved_requests_total", "0x80", service="score"),
    ]
    check_firing(tmp_path, recorded, {("FoveaServiceUnavailable", "gateway")})
