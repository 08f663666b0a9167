"""The one file that asks for what only an operator can know: nothing in it has a default, and what lacks it fails."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy import kubernetes_names as names
from tests.deploy.kubernetes_manifests import (
    JOBS,
    K8S,
    OVERLAYS,
    SITE,
    Manifests,
    Pod,
    build,
    overlay,
    own_overlay,
    render,
    with_plain_autoscalers,
    with_site,
)
from tests.deploy.kubernetes_network import Network

UNITS = {"Mi": 2**20, "Gi": 2**30}
NEEDED_ON_GPUS = (
    "images.gateway",
    "images.service",
    "images.vllm",
    "store.url",
    "store.egress",
    "models.predict",
    "models.generate",
    "models.embed",
    "models.score",
    "monitoring.release",
)
NEEDED = {
    "overlays/gpu": NEEDED_ON_GPUS,
    "overlays/production": (*NEEDED_ON_GPUS, "route.host", "route.gatewayClass"),
    "overlays/cluster": (
        *NEEDED_ON_GPUS,
        "route.host",
        "route.gatewayClass",
        "collections.url",
        "milvus.endpoint",
        "milvus.bucket",
        "milvus.region",
        "apiServer.egress",
    ),
    "train": ("images.service", "store.url", "store.egress"),
    "import": ("images.service", "store.url", "store.egress"),
}
WITH_TRACES = """\
namespace: fovea
resources: [{overlays}/production]
components: [{components}/telemetry]
"""


def site_file(k8s: Path) -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((k8s / "site" / "site.yaml").read_text())["spec"]
    return spec


def without(field: str) -> dict[str, Any]:
    """The Site with one field left empty."""
    site = copy.deepcopy(SITE)
    group, name = field.split(".")
    site[group][name] = None
    return site


@pytest.mark.parametrize(
    ("folder", "field"), [(folder, field) for folder, needed in NEEDED.items() for field in needed]
)
def test_what_is_not_said_stops_the_build_and_is_named(folder: str, field: str, tmp_path: Path) -> None:
    built = build(with_site(tmp_path.resolve(), without(field)) / folder)
    assert built.returncode != 0
    assert f"`spec.{field}` is missing for replacement source Site" in built.stderr


def test_the_file_asks_for_every_field_and_has_a_value_for_none() -> None:
    asked = site_file(K8S)
    assert {group: dict.fromkeys(fields) for group, fields in SITE.items()} == asked


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name != "cpu-demo"])
def test_as_it_is_in_the_repository_nothing_can_be_applied_to_a_cluster_by_accident(name: str) -> None:
    assert build(K8S / "overlays" / name).returncode != 0


def test_the_demonstration_needs_nothing_said_and_runs_images_that_are_on_the_node_or_nowhere() -> None:
    assert build(K8S / "overlays" / "cpu-demo").returncode == 0
    for pod in overlay("cpu-demo").processes():
        assert pod.container["image"].startswith("localhost/")
        assert pod.container["imagePullPolicy"] == "Never"


@pytest.mark.parametrize("name", ["gpu", "production", "production-canary"])
def test_a_gpu_computes_what_the_operator_named_and_no_starter_unasked(name: str) -> None:
    manifests = overlay(name)
    for pod in manifests.processes():
        settings = names.settings_of(manifests, pod)
        if pod.program != "gateway":
            assert ",".join(settings.models) == SITE["models"][pod.program]


def claim_of_collections(manifests: Manifests) -> dict[str, Any]:
    """The claim whose disk the one process with collections writes to."""
    (holder,) = [
        pod
        for pod in manifests.processes()
        if pod.program == "embed" and names.settings_of(manifests, pod).max_collections > 0
    ]
    folder = str(names.settings_of(manifests, holder).collections_dir)
    (mounted,) = [one["name"] for one in holder.container["volumeMounts"] if one["mountPath"] == folder]
    (volume,) = [one for one in holder.spec["volumes"] if one["name"] == mounted]
    claim = manifests.get("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    assert claim is not None
    return claim


def test_collections_stay_on_their_disk_when_a_deployment_becomes_another() -> None:
    claims = {name: claim_of_collections(overlay(name)) for name in OVERLAYS if name != "cluster"}
    assert {claim["metadata"]["name"] for claim in claims.values()} == {"embed-collections"}
    # A claim that has more than is asked for refuses the whole object.
    assert claims["gpu"] == claims["production"] == claims["production-canary"]


@pytest.mark.parametrize("name", ["gpu", "production"])
def test_prometheus_of_kube_prometheus_stack_selects_every_monitor_and_rule(name: str) -> None:
    selected = overlay(name).of_kind("PodMonitor", "PrometheusRule")
    assert len(selected) == 3
    for one in selected:
        assert one["metadata"]["labels"]["release"] == SITE["monitoring"]["release"]


def test_traces_reach_the_collector_that_the_operator_names(tmp_path: Path) -> None:
    manifests = own_overlay(tmp_path, WITH_TRACES)
    network = Network(manifests)
    (rule,) = SITE["telemetry"]["egress"]
    for pod in manifests.pods():
        leads_there = {"ports": rule["ports"], "to": rule["to"][0]} in network.ways_out(pod)
        assert leads_there == (pod.program in names.SETTINGS), pod.name
    for pod in manifests.processes():
        assert names.settings_of(manifests, pod).telemetry
        assert manifests.environment(pod)["OTEL_EXPORTER_OTLP_ENDPOINT"] == SITE["telemetry"]["endpoint"]


def num_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def disks(pod: Pod) -> dict[str, int]:
    """The size limit of each volume on the node's disk."""
    volumes = [one for one in pod.spec.get("volumes", ()) if one.get("emptyDir", {}).get("medium", "") == ""]
    return {one["name"]: num_bytes(one["emptyDir"]["sizeLimit"]) for one in volumes if "emptyDir" in one}


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_a_pod_asks_for_the_disk_that_its_volumes_may_take_and_its_copies_of_checkpoints_stay_within(name: str) -> None:
    manifests = render(K8S / name) if name in JOBS else overlay(name)
    for pod in manifests.pods():
        # A container that does not stay may use what is free meanwhile.
        beside = [one for one in pod.spec.get("initContainers", ()) if one.get("restartPolicy") == "Always"]
        parts, taken = [one["resources"] for one in (pod.container, *beside)], sum(disks(pod).values())
        asked, limit = (
            sum(num_bytes(one[kind]["ephemeral-storage"]) for one in parts) for kind in ("requests", "limits")
        )
        assert limit >= asked
        assert limit >= taken, pod.name
        # The demonstration's one node may be a laptop, and starters are small.
        assert asked >= (taken if name != "cpu-demo" else 1), pod.name
        if "checkpoints" in disks(pod):
            kept = names.settings_of(manifests, pod).checkpoint_cache_max_bytes
            # Beside the files there are manifests, and blocks that are not full.
            assert kept <= 0.95 * disks(pod)["checkpoints"], pod.name


def secrets_of_the_store(pod: Pod) -> set[str]:
    sources = [one.get("valueFrom", {}).get("secretKeyRef", {}) for one in pod.container.get("env", ())]
    return {one["name"] for one in sources if one.get("key", "").startswith("AWS_")}


def test_services_read_the_store_with_credentials_of_their_own_and_jobs_write_with_others() -> None:
    production, jobs = overlay("production-canary"), [render(K8S / name) for name in JOBS]
    for pod in production.processes():
        assert secrets_of_the_store(pod) == (set() if pod.program == "gateway" else {"fovea-store"}), pod.name
    for pod in (pod for job in jobs for pod in job.pods()):
        assert secrets_of_the_store(pod) == {"fovea-store-writer"}, pod.name


@pytest.mark.parametrize("name", [*OVERLAYS, "hpa"])
def test_metrics_server_is_named_as_needed_where_something_scales_by_cpu(name: str, tmp_path: Path) -> None:
    manifests = with_plain_autoscalers(tmp_path) if name == "hpa" else overlay(name)
    triggers = [one["type"] for scaled in manifests.of_kind("ScaledObject") for one in scaled["spec"]["triggers"]]
    triggers += [
        one.get("resource", {}).get("name")
        for scaled in manifests.of_kind("HorizontalPodAutoscaler")
        for one in scaled["spec"]["metrics"]
    ]
    said = (K8S / "components" / "hpa" / "kustomization.yaml").read_text() if name == "hpa" else needs(name)
    assert ("metrics-server" in said) == ("cpu" in triggers)


def needs(name: str) -> str:
    """The needs of an overlay by the README, with those of the overlay that it names."""
    row = re.search(rf"^\| `{name}` \|.*\|(.*)\|$", (K8S / "README.md").read_text(), re.MULTILINE)
    assert row is not None
    same = re.search(r"what `([\w-]+)` needs", row[1])
    return row[1] + (needs(same[1]) if same else "")
