"""Every name in the chart exists: ports, paths, settings, metrics, commands, Services, Secrets and labels."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from gateway.routes import ROUTES
from services.core.metrics import Metrics
from tests.deploy import kubernetes_names as names
from tests.deploy.kubernetes_manifests import (
    DEPLOYMENTS,
    EVERYTHING,
    JOBS,
    README,
    ROOT,
    Manifests,
    Object,
    deployment,
    deployment_text,
    jobs,
    load,
    selects,
)
from tests.deploy.kubernetes_queries import check_query, matchers

PATHS = {path for route in ROUTES for path in (route.path.removesuffix("/**"), f"/v1{route.path.removesuffix('/**')}")}
CHECKS: tuple[Callable[[Manifests], list[str]], ...] = (
    names.check_settings,
    names.check_commands,
    names.check_ports_and_probes,
    names.check_services,
    names.check_addresses,
    names.check_selectors,
    names.check_images,
    names.check_folders,
    names.check_policy_ports,
)
SERVICES = names.SETTINGS.keys() - {"gateway"}
# Of vLLM 0.11 and later; tests/vllm_plugin asks a running one for them.
VLLM_METRICS = {"vllm:kv_cache_usage_perc", "vllm:num_requests_waiting"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", EVERYTHING)
def test_what_a_deployment_names_exists(name: str, check: Callable[[Manifests], list[str]]) -> None:
    assert check(deployment(name)) == []


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_routes_lead_to_the_gateway_by_paths_that_it_has(name: str) -> None:
    assert names.check_routes(deployment(name), PATHS) == []


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_every_process_of_fovea_is_deployed(name: str) -> None:
    assert {pod.program for pod in deployment(name).processes()} == names.SETTINGS.keys()


def test_redis_is_the_one_that_compose_runs() -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name in DEPLOYMENTS:
        assert deployment(name).pod("redis").container["image"] == compose["services"]["redis"]["image"]


def queries(manifests: Manifests) -> list[str]:
    """Every query that scales something."""
    triggers = [one for scaled in manifests.of_kind("ScaledObject") for one in scaled["spec"]["triggers"]]
    return [one["metadata"]["query"] for one in triggers if one["type"] == "prometheus"]


def check_scaling_queries(manifests: Manifests) -> list[str]:
    return [problem for query in queries(manifests) for problem in check_query(query, allowed=VLLM_METRICS)]


@pytest.mark.parametrize("name", ["gpu", "production", "cluster"])
def test_what_scales_asks_for_metrics_labels_and_values_that_exist(name: str) -> None:
    manifests = deployment(name)
    assert len(queries(manifests)) >= 3
    assert check_scaling_queries(manifests) == []
    known = {
        "namespace": {"fovea"},
        "app_kubernetes_io_instance": {pod.name for pod in manifests.processes()},
        "service": SERVICES,
        "code": {"2.."},
    }
    for query in queries(manifests):
        assert all(value in known[label] for _, label, value in matchers(query)), query


@pytest.mark.parametrize("name", ["gpu", "production", "cluster"])
def test_a_service_is_scaled_by_what_those_gateways_have_that_send_to_it(name: str) -> None:
    manifests = deployment(name)
    for scaled in manifests.of_kind("ScaledObject"):
        target = manifests.pod(scaled["spec"]["scaleTargetRef"]["name"])
        for query in (one for one in queries(Manifests((scaled,))) if "fovea_gateway" in one):
            asked = {value for _, label, value in matchers(query) if label == "app_kubernetes_io_instance"}
            sending = {
                pod.labels["app.kubernetes.io/instance"]
                for pod in manifests.processes()
                if pod.program == "gateway"
                for url in names.settings_of(manifests, pod).urls()[target.program]
                if url == f"http://{target.labels['pool']}:{target.ports['http']}"
            }
            assert asked == sending, query


def check_targets(manifests: Manifests) -> list[str]:
    """Check that scaled workloads exist, are scaled once, and have no replicas that each apply would reset."""
    wrong = []
    targets = []
    for one in manifests.of_kind("ScaledObject", "HorizontalPodAutoscaler"):
        reference = one["spec"]["scaleTargetRef"]
        targets.append(reference["name"])
        target = manifests.get(reference.get("kind", "Deployment"), reference["name"])
        if target is None:
            wrong.append(f"there is no {reference['name']} to scale")
        elif "replicas" in target["spec"]:
            wrong.append(f"{reference['name']} is scaled and has replicas")
        for trigger in one["spec"].get("triggers", ()):
            # what the gateways have for a service, or what its own pods say
            query = trigger["metadata"].get("query", trigger["metadata"].get("valueLocation"))
            own = "service" if query and "fovea_gateway" in query else "app_kubernetes_io_instance"
            if query and {value for _, label, value in matchers(query) if label == own} != {reference["name"]}:
                wrong.append(f"{reference['name']} is scaled by another's load")
    return wrong + [f"{name} is scaled twice" for name in set(targets) if targets.count(name) > 1]


@pytest.mark.parametrize("name", ["gpu", "production", "production-canary", "cluster"])
def test_what_is_scaled_exists_and_is_scaled_by_its_own_load(name: str) -> None:
    assert check_targets(deployment(name)) == []


@pytest.mark.parametrize("name", ["gpu", "production", "cluster"])
def test_prometheus_scrapes_every_process_under_the_job_that_queries_name(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        (monitor,) = [one for one in manifests.of_kind("PodMonitor") if selects(one["spec"]["selector"], pod.labels)]
        # The label's value becomes `job`, and a Service's own `service` stays away from the gateway's.
        assert pod.labels[monitor["spec"]["jobLabel"]] == pod.container["command"][2]
        assert monitor["spec"]["podTargetLabels"] == ["app.kubernetes.io/instance"]
        endpoints = {one["port"]: one for one in monitor["spec"]["podMetricsEndpoints"]}
        assert endpoints.keys() == ({"http"} if pod.program == "gateway" else {"http", "vllm"})
        endpoint = endpoints["http"]
        assert endpoint["port"] in pod.ports
        assert endpoint["path"] == "/metrics"
        # A gateway with keys shows its metrics to a key of the scope `metrics` alone.
        assert ("authorization" in endpoint) == (
            getattr(names.settings_of(manifests, pod), "keys_file", None) is not None
        )
    assert b"fovea_gateway_inflight_requests" in Metrics("gateway").render()


def test_every_secret_that_a_manifest_needs_is_made_by_the_readme_and_no_other() -> None:
    needed = set().union(*map(names.secrets, map(deployment, EVERYTHING)))
    assert needed == names.secrets_that_the_readme_makes()


@pytest.mark.parametrize("name", EVERYTHING)
def test_no_secret_has_a_value_in_the_repository(name: str) -> None:
    assert deployment(name).of_kind("Secret") == []


def test_only_the_demonstration_runs_without_keys() -> None:
    for name in DEPLOYMENTS:
        manifests = deployment(name)
        gateways = [pod for pod in manifests.processes() if pod.program == "gateway"]
        has_keys = {names.settings_of(manifests, pod).keys_file is not None for pod in gateways}
        assert has_keys == {name != "demo"}


def test_the_canary_follows_the_alias_that_the_guide_publishes_under_and_gets_requests_by_its_own_name_alone() -> None:
    manifests = deployment("production-canary")
    canary, stable = manifests.pod("embed-canary"), manifests.pod("embed")
    alias = names.settings_of(manifests, canary).alias
    assert names.settings_of(manifests, stable).alias == "latest"
    for page in (ROOT / "docs" / "guide" / "operate.md", README):
        assert f"--alias {alias}" in page.read_text()
    behind = {
        service["metadata"]["name"]: service["spec"]["selector"].items() for service in manifests.of_kind("Service")
    }
    # No request that did not ask for the candidate may get its vectors.
    assert [name for name, selector in behind.items() if selector <= canary.labels.items()] == ["embed-canary"]
    assert not behind["embed-canary"] <= stable.labels.items()
    assert names.settings_of(manifests, manifests.pod("gateway")).canary_urls == {
        "embed": ("http://embed-canary:8103",)
    }
    for name in ("gpu", "production"):
        assert "FOVEA_GATEWAY_CANARY_URLS" not in deployment_text(name)


def test_the_nodes_of_a_training_find_the_first_by_the_name_that_its_service_gives_it() -> None:
    manifests = jobs()
    (pod,) = [pod for pod in manifests.pods() if pod.name.startswith("train-two-nodes-")]
    job = pod.workload["spec"]
    options = dict(one.removeprefix("--").split("=", 1) for one in pod.container["command"] if "=" in one)
    service = manifests.get("Service", pod.spec["subdomain"])
    assert service is not None
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert selects({"matchLabels": service["spec"]["selector"]}, pod.labels)
    # What the Job controller calls the host of its first pod.
    assert options["master-addr"] == f"{pod.name}-0.{service['metadata']['name']}"
    assert options["master-port"] == str(service["spec"]["ports"][0]["port"])
    assert job["completionMode"] == "Indexed"
    assert int(options["nnodes"]) == job["completions"] == job["parallelism"]
    assert options["node-rank"] == "$(JOB_COMPLETION_INDEX)"
    assert "JOB_COMPLETION_INDEX" in [one["name"] for one in pod.container["env"]]


def test_a_training_runs_in_the_image_of_jobs_and_has_a_process_for_each_gpu_and_a_disk_to_write_to() -> None:
    for pod in (pod for pod in jobs().pods() if pod.program == "train"):
        assert pod.container["image"] == JOBS["images"]["jobs"]
        options = dict(one.removeprefix("--").split("=", 1) for one in pod.container["command"] if "=" in one)
        assert int(options["nproc-per-node"]) == pod.container["resources"]["limits"]["nvidia.com/gpu"]
        (runs,) = [one["mountPath"] for one in pod.container["volumeMounts"] if one["name"] == "runs"]
        assert Path(options["output"]).parent == Path(runs)


def test_only_one_process_of_a_deployment_can_hold_collections_that_are_not_shared() -> None:
    for name in (one for one in DEPLOYMENTS if one != "cluster"):
        manifests = deployment(name)
        holders = [
            pod
            for pod in manifests.processes()
            if pod.program == "embed" and names.settings_of(manifests, pod).max_collections > 0
        ]
        (holder,) = holders
        assert holder.workload["spec"]["replicas"] == 1
        is_replaced_in_place = (
            holder.workload["kind"] == "StatefulSet" or holder.workload["spec"]["strategy"]["type"] == "Recreate"
        )
        assert is_replaced_in_place
        scaled: list[Object] = manifests.of_kind("ScaledObject")
        assert holder.name not in [one["spec"]["scaleTargetRef"]["name"] for one in scaled]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_gateway_knows_a_process_that_has_collections_for_what_names_their_images(name: str) -> None:
    manifests = deployment(name)
    num_collections = {
        pod.labels["pool"]: names.settings_of(manifests, pod).max_collections
        for pod in manifests.processes()
        if pod.program == "embed"
    }
    for pod in manifests.processes():
        if pod.program == "gateway":
            settings = names.settings_of(manifests, pod)
            asked = settings.collections_urls or settings.embed_urls
            assert all(num_collections[urlsplit(url).hostname or ""] > 0 for url in asked), pod.name


@pytest.mark.parametrize(
    ("check", "breakage"),
    [
        (names.check_ports_and_probes, ("containerPort: 8103", "containerPort: 8113")),
        (names.check_services, ("containerPort: 8103", "containerPort: 8113")),
        (names.check_addresses, ("http://embed:8103", "http://embed:8113")),
        (names.check_policy_ports, ("port: 8080", "port: 8081")),
        (names.check_ports_and_probes, ("path: /startupz", "path: /startup")),
        (names.check_settings, ("FOVEA_DRAIN_DELAY_S", "FOVEA_DRAIN_DELAYS_S")),
        (names.check_settings, ("value: cuda", "value: gpu")),
        (check_scaling_queries, ("fovea_gateway_queued_requests", "fovea_gateway_waiting_requests")),
        (check_scaling_queries, ('service="embed"', 'upstream="embed"')),
        (check_scaling_queries, ("app_kubernetes_io_instance=", "app_instance=")),
        (check_targets, ("scaleTargetRef:\n    name: embed", "scaleTargetRef:\n    name: embedder")),
        (names.check_commands, ("- serve\n        - embed", "- serve\n        - embedd")),
        (names.check_selectors, ("pool: embed", "app.kubernetes.io/instance: score")),
        (names.check_images, ("0.1.0-cuda", "latest")),
        (names.check_folders, ("mountPath: /var/cache/fovea", "mountPath: /var/cache/models")),
    ],
)
def test_a_broken_name_is_found(check: Callable[[Manifests], list[str]], breakage: tuple[str, str]) -> None:
    text = deployment_text("production")
    assert breakage[0] in text
    assert check(load(text.replace(*breakage))) != []
