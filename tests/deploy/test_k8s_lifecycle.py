"""Times of the manifests that must fit one another and the code's: starting, stopping, scaling, answering."""

from pathlib import Path
from typing import Any

import pytest

from gateway.access import KeyRing, digest
from gateway.admission import RECENT_S
from gateway.settings import GatewaySettings
from gateway.upstream import PROBE_TIMEOUT
from services.core.serving.server import ACCEPT_GRACE_S, IDLE_GRACE_S
from tests.deploy.kubernetes_manifests import (
    DEPLOYMENTS,
    ON_GPUS,
    SITE,
    Manifests,
    Pod,
    deployment,
    deployment_text,
    load,
    render,
)
from tests.deploy.kubernetes_names import settings_of

# What closing the cache, the compute thread and the indexes may take after the last answer.
LEAVING_S = 5.0
# What finding a node that has a GPU to spare, and pulling an image of several GB there, may take.
PLACING_S = 300.0
# CoreDNS keeps an answer for so long.
DNS_KEEPS_S = 30.0


def stopping_s(manifests: Manifests, pod: Pod) -> float:
    """The longest that a pod takes from its deletion to its end, by the code and the settings."""
    settings = settings_of(manifests, pod)
    hook_s = pod.container["lifecycle"]["preStop"]["sleep"]["seconds"]
    draining_s = settings.drain_delay_s + ACCEPT_GRACE_S + IDLE_GRACE_S + settings.drain_timeout_s
    return float(hook_s + draining_s + LEAVING_S)


def starting_s(pod: Pod) -> float:
    """Return the seconds that a pod may take to start before it is killed, with what starts before its container."""
    probes = [one["startupProbe"] for one in pod.spec.get("initContainers", ()) if "startupProbe" in one]
    return float(
        sum(probe["periodSeconds"] * probe["failureThreshold"] for probe in (*probes, pod.container["startupProbe"]))
    )


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_first_version_that_hangs_is_refused_before_its_pod_is_killed(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        if pod.program != "gateway":
            assert settings_of(manifests, pod).load_timeout_s < starting_s(pod), pod.name


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_rollout_has_failed_when_a_pod_has_had_its_time_to_start_and_not_before(name: str) -> None:
    for pod in deployment(name).processes():
        if pod.workload["kind"] == "Deployment" and pod.program != "gateway":
            deadline_s = pod.workload["spec"]["progressDeadlineSeconds"]
            assert PLACING_S + starting_s(pod) < deadline_s <= PLACING_S + starting_s(pod) + 120, pod.name


@pytest.mark.parametrize("name", ON_GPUS)
def test_no_alert_says_that_a_pod_is_down_which_still_has_time_to_start(name: str) -> None:
    manifests = deployment(name)
    rules = manifests.of_kind("PrometheusRule")[0]["spec"]["groups"][0]["rules"]
    patience_s = {rule["alert"]: rule["for"] for rule in rules if "for" in rule}
    longest_s = PLACING_S + max(starting_s(pod) for pod in manifests.processes())
    for alert in ("FoveaTargetDown", "FoveaModelNotReady"):
        assert int(patience_s[alert].removesuffix("s")) > longest_s
    assert patience_s["FoveaGatewayDown"] == "2m"


def test_one_value_moves_all_times_of_a_start() -> None:
    slow = render(("gpu",), SITE, {"services": {"predict": {"startSeconds": 4000}}})
    assert starting_s(slow.pod("predict")) == 4000
    assert settings_of(slow, slow.pod("predict")).load_timeout_s == 3970
    scaled = slow.get("ScaledObject", "predict")
    assert scaled is not None
    assert scaled["spec"]["initialCooldownPeriod"] > PLACING_S + 4000
    (gateway,) = gateways(slow)
    assert gateway.wake_s["predict"] > PLACING_S + 4000
    assert gateway.max_request_timeout_s >= gateway.request_timeout_s + gateway.wake_s["predict"]
    rules = slow.of_kind("PrometheusRule")[0]["spec"]["groups"][0]["rules"]
    assert {rule["for"] for rule in rules if rule["alert"] == "FoveaTargetDown"} == {"4360s"}


def test_every_alert_links_to_the_page_where_the_runbooks_are_published() -> None:
    published = {"monitoring": {"runbooks": "https://docs.example.org/runbooks/"}}
    groups = render(("gpu",), SITE, published, namespace="models").of_kind("PrometheusRule")[0]["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    for rule in rules:
        assert rule["annotations"]["runbook_url"] == f"https://docs.example.org/runbooks/{rule['alert']}.md"
    # Volumes and autoscalers are those of the release.
    volumes = [rule["expr"] for rule in rules if "kubelet_volume" in rule["expr"]]
    assert ['namespace="models"' in one and 'namespace="fovea"' not in one for one in volumes] == [True]


@pytest.mark.parametrize("profiles", [("production",), ("production", "cluster")])
def test_a_full_volume_is_told_in_the_namespace_of_the_release(profiles: tuple[str, ...]) -> None:
    manifests = render(profiles, SITE, namespace="models")
    rules = [rule for group in manifests.of_kind("PrometheusRule")[0]["spec"]["groups"] for rule in group["rules"]]
    (volumes,) = [rule["expr"] for rule in rules if rule["alert"] == "FoveaVolumeFull"]
    claims = '{namespace="models"}'
    assert (
        volumes.split()
        == f"kubelet_volume_stats_available_bytes{claims} / kubelet_volume_stats_capacity_bytes{claims} < 0.1".split()
    )


def gateways(manifests: Manifests) -> list[Any]:
    return [settings_of(manifests, pod) for pod in manifests.processes() if pod.program == "gateway"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_no_pod_is_killed_before_it_has_drained(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        assert pod.spec["terminationGracePeriodSeconds"] >= stopping_s(manifests, pod), pod.name


@pytest.mark.parametrize(
    ("setting", "longer"),
    [
        ("FOVEA_DRAIN_TIMEOUT_S: '60'", "FOVEA_DRAIN_TIMEOUT_S: '70'"),
        ("sleep:\n              seconds: 2", "sleep:\n              seconds: 12"),
    ],
)
def test_a_longer_drain_without_a_longer_grace_is_found(setting: str, longer: str) -> None:
    text = deployment_text("production")
    assert setting in text
    manifests = load(text.replace(setting, longer))
    pod = manifests.pod("predict")
    assert stopping_s(manifests, pod) > pod.spec["terminationGracePeriodSeconds"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_the_gateway_notices_that_a_service_stops_before_it_refuses_connections(name: str) -> None:
    manifests = deployment(name)
    probe_timeout_s = PROBE_TIMEOUT.total or 0
    slowest_s = max(one.probe_interval_s for one in gateways(manifests)) + probe_timeout_s
    for pod in manifests.processes():
        if pod.program != "gateway":
            assert settings_of(manifests, pod).drain_delay_s >= slowest_s, pod.name


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_request_that_names_no_deadline_outlives_a_drain_of_the_gateway_and_of_its_service(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        settings = settings_of(manifests, pod)
        assert settings.drain_timeout_s >= settings.request_timeout_s, pod.name


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_whatever_balances_over_gateways_sees_one_leave_while_it_still_answers(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        probe = pod.container["readinessProbe"]
        noticed_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
        if pod.program == "gateway":
            assert settings_of(manifests, pod).drain_delay_s >= noticed_s


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_requests_wait_for_a_service_whose_only_pod_is_replaced_and_have_time_left_when_it_is_back(name: str) -> None:
    manifests = deployment(name)
    for settings in gateways(manifests):
        assert settings.wait_for_service_s > 0
        assert settings.request_timeout_s > settings.wait_for_service_s


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_stalled_process_is_restarted_and_a_busy_one_is_not(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        probe = pod.container["livenessProbe"]
        # `/livez` itself waits for FOVEA_STALL_TIMEOUT_S; what the probe adds is for an event loop that hangs.
        assert probe["failureThreshold"] >= 3
        assert probe["timeoutSeconds"] >= 5


@pytest.mark.parametrize("name", ["gpu", "production"])
def test_scaling_waits_longer_than_a_pod_may_take_to_start_and_mistrusts_silence(name: str) -> None:
    manifests = deployment(name)
    scaled = [one for one in manifests.of_kind("ScaledObject") if one["metadata"]["name"] != "gateway"]
    assert len(scaled) >= 3
    for one in scaled:
        spec = one["spec"]
        pod = manifests.pod(spec["scaleTargetRef"]["name"])
        arrivals = [one for one in spec["triggers"] if one["type"] == "metrics-api"]
        patience_s = spec["cooldownPeriod"] + (RECENT_S if arrivals else 0)
        assert patience_s > PLACING_S + starting_s(pod) + spec["pollingInterval"], pod.name
        assert spec["initialCooldownPeriod"] > PLACING_S + starting_s(pod), pod.name
        two_at_least = {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"}
        assert spec.get("fallback") == (None if spec["minReplicaCount"] == 0 else two_at_least)
        for trigger in spec["triggers"]:
            assert trigger in arrivals or trigger["metadata"]["ignoreNullValues"] == "false"
        assert spec["maxReplicaCount"] > spec["minReplicaCount"]


@pytest.mark.parametrize("name", ["gpu", "production"])
def test_what_scales_to_zero_has_its_requests_held_until_a_pod_is_there(name: str) -> None:
    manifests = deployment(name)
    idle = [one for one in manifests.of_kind("ScaledObject") if one["spec"]["minReplicaCount"] == 0]
    assert {one["metadata"]["name"] for one in idle} == ({"predict", "score"} if name == "gpu" else set())
    for one in idle:
        pod = manifests.pod(one["spec"]["scaleTargetRef"]["name"])
        for settings in gateways(manifests):
            noticed_s = settings.dns_refresh_s + DNS_KEEPS_S
            back_s = one["spec"]["pollingInterval"] + PLACING_S + starting_s(pod) + noticed_s
            assert settings.wake_s[pod.name] >= back_s
            assert settings.max_queued_requests > 0


def test_a_model_that_scales_to_zero_lengthens_the_deadlines_and_drains_of_no_other() -> None:
    pool = {"name": "rare", "service": "predict", "checkpoints": ["rare"], "scaleToZero": True, "startSeconds": 900}
    never = {"scaleToZero": False, "replicas": {"min": 1, "max": 8}}
    models = {
        "models": [*SITE["models"], {**pool, "replicas": {"min": 0, "max": 1}}],
        "services": {"predict": never, "score": never},
    }
    manifests = render(("gpu",), SITE, models)
    asleep = {"rare": PLACING_S + 900 + 50}
    for pod in manifests.processes():
        settings = settings_of(manifests, pod)
        assert settings.request_timeout_s == 60
        if pod.program == "gateway":
            assert (settings.wait_for_service_s, settings.wake_s) == (45, asleep)
            assert settings.drain_timeout_s == 60 + asleep["rare"]
        else:
            assert settings.drain_timeout_s == 60
            assert pod.spec["terminationGracePeriodSeconds"] == 75
        assert pod.spec["terminationGracePeriodSeconds"] >= stopping_s(manifests, pod)


def test_production_runs_two_pods_of_everything_that_can_have_two() -> None:
    manifests = deployment("production")
    least = {
        one["spec"]["scaleTargetRef"]["name"]: one["spec"]["minReplicaCount"]
        for one in manifests.of_kind("ScaledObject")
    }
    for pod in manifests.processes():
        if pod.name != "collections":
            assert least.get(pod.name, pod.workload["spec"].get("replicas")) >= 2, pod.name
    for budget in manifests.of_kind("PodDisruptionBudget"):
        assert budget["spec"].get("minAvailable", 1) == 1


@pytest.mark.parametrize("name", ["demo", "gpu"])
def test_the_only_pod_of_a_service_does_not_hold_up_the_drain_of_a_node(name: str) -> None:
    for budget in deployment(name).of_kind("PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1


def test_a_route_lets_a_request_take_as_long_as_fovea_does() -> None:
    manifests = deployment("production")
    longest_s = max(one.max_request_timeout_s for one in gateways(manifests))
    timeouts = [
        rule["timeouts"]
        for route in manifests.of_kind("HTTPRoute")
        for rule in route["spec"]["rules"]
        if "backendRefs" in rule
    ]
    assert len(timeouts) == 2
    for timeout in timeouts:
        assert {value.endswith("s") and float(value[:-1]) > longest_s for value in timeout.values()} == {True}


def test_keys_are_followed_through_the_kubelets_way_to_update_a_secret(tmp_path: Path) -> None:
    """A mounted Secret is a folder of links into a folder of that version, which a link names and a rename changes."""

    def mount(version: str, key: str) -> None:
        (tmp_path / version).mkdir()
        record = f'{{"name": "one", "sha256": "{digest(key)}", "scopes": ["embed"]}}'
        (tmp_path / version / "keys.json").write_text(f'{{"keys": [{record}]}}')
        (tmp_path / "..data_tmp").symlink_to(version)
        (tmp_path / "..data_tmp").rename(tmp_path / "..data")

    mount("..1", "fovea-old")
    (tmp_path / "keys.json").symlink_to("..data/keys.json")
    keys = KeyRing(GatewaySettings(keys_file=tmp_path / "keys.json"))
    assert keys.find("fovea-old") is not None
    assert not keys.reload()
    mount("..2", "fovea-new")
    assert keys.reload()
    assert keys.find("fovea-old") is None
    assert keys.find("fovea-new") is not None
