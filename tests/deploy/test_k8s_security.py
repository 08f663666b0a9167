"""Pods may do little and reach few."""

from typing import Any

import pytest

from tests.deploy.kubernetes_manifests import JOBS, K8S, OVERLAYS, SITE, Manifests, Pod, overlay, render
from tests.deploy.kubernetes_names import SETTINGS
from tests.deploy.kubernetes_network import Network

SERVICES = SETTINGS.keys() - {"gateway"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
GPU = "nvidia.com/gpu"
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}


def deployment(name: str) -> Manifests:
    return render(K8S / name) if name in JOBS else overlay(name)


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_pods_run_as_nobody_in_particular_and_may_do_nothing(name: str) -> None:
    for pod in deployment(name).pods():
        spec, container = pod.spec, pod.container
        assert spec["automountServiceAccountToken"] is False, pod.name
        # A Service's variables could look like settings that nobody knows, which stop a start.
        assert spec["enableServiceLinks"] is False, pod.name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["securityContext"]["runAsUser"] == (999 if pod.program == "redis" else 10001)
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        # NVIDIA's hooks write into the root of a container with a GPU.
        assert container["securityContext"]["readOnlyRootFilesystem"] is (
            GPU not in container["resources"]["limits"]
        ), pod.name
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("name", ["gpu", "production", "production-canary", "cluster", *JOBS])
def test_every_service_and_training_has_gpus_where_there_are_some(name: str) -> None:
    for pod in deployment(name).pods():
        assert has_gpu(pod) == (pod.program in {*SERVICES, "train"}), pod.name
        if has_gpu(pod):
            (resources,) = gpus(pod)
            assert resources["requests"][GPU] == resources["limits"][GPU]
            assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod.spec["tolerations"]


def test_the_demonstration_asks_for_no_gpu() -> None:
    assert not any(has_gpu(pod) for pod in overlay("cpu-demo").pods())


def has_gpu(pod: Pod) -> bool:
    return bool(gpus(pod))


def gpus(pod: Pod) -> list[Any]:
    """The resources of each container with a GPU: generate's is vLLM's, beside it."""
    containers = [pod.container, *pod.spec.get("initContainers", ())]
    return [one["resources"] for one in containers if GPU in one["resources"]["limits"]]


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_a_pod_that_no_policy_names_neither_reaches_nor_is_reached(name: str) -> None:
    manifests = overlay("production") if name in JOBS else overlay(name)
    policies = [one for one in manifests.of_kind("NetworkPolicy") if one["metadata"]["namespace"] == "fovea"]
    everything = [one for one in policies if one["spec"]["podSelector"] == {}]
    denied = {kind for one in everything if not one["spec"].get("egress") for kind in one["spec"]["policyTypes"]}
    assert denied == {"Ingress", "Egress"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_reach_those_that_they_need_and_no_others(name: str) -> None:
    manifests = overlay(name)
    network = Network(manifests)
    pods = manifests.pods()
    reached = {
        (source.program, target.program)
        for source in pods
        for target in pods
        for port in target.ports.values()
        if source is not target and network.may(source, target, port)
    }
    expected = {("gateway", service) for service in SERVICES}
    expected |= {(process, "redis") for process in SETTINGS}
    # Anybody may enter the gateway; nobody else in here may leave for it.
    assert reached == expected


@pytest.mark.parametrize("name", OVERLAYS)
def test_only_the_gateway_is_reached_from_elsewhere(name: str) -> None:
    manifests = overlay(name)
    network = Network(manifests)
    for pod in manifests.pods():
        (port,) = pod.ports.values()
        assert network.enters(pod, {"app": "any"}, port, {"kubernetes.io/metadata.name": "other"}) == (
            pod.program == "gateway"
        )
        assert not network.enters(pod, {"app": "any"}, 9999, {"kubernetes.io/metadata.name": "other"})


@pytest.mark.parametrize("name", ["gpu", "production", "production-canary", "cluster"])
def test_prometheus_reaches_what_it_scrapes(name: str) -> None:
    manifests = overlay(name)
    network = Network(manifests)
    for pod in manifests.processes():
        (port,) = pod.ports.values()
        assert network.enters(pod, PROMETHEUS, port, MONITORING)
        assert network.enters(pod, {"app": "any"}, port, MONITORING) == (pod.program == "gateway")


@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS])
def test_beyond_its_namespace_a_pod_reaches_name_servers_and_the_store_alone(name: str) -> None:
    manifests = deployment(name)
    if name in JOBS:
        # They run beside a deployment, under its policies too.
        manifests = Manifests((*manifests.objects, *overlay("production").of_kind("NetworkPolicy")))
    network = Network(manifests)
    # A store may have more than one address.
    store = {
        (peer["ipBlock"]["cidr"], port["port"])
        for rule in SITE["store"]["egress"]
        for peer in rule["to"]
        for port in rule["ports"]
    }
    assert len(store) == 2
    for pod in manifests.pods():
        beyond = {
            ("cluster" if "namespaceSelector" in way["to"] else way["to"]["ipBlock"]["cidr"], port["port"])
            for way in network.ways_out(pod)
            for port in way["ports"]
        }
        uses_store = name != "cpu-demo" and pod.program in {*SERVICES, *JOBS}
        hub = {("0.0.0.0/0", 443)} if pod.program == "import" else set()
        vectors = {("cluster", 19530)} if (name, pod.program) == ("cluster", "embed") else set()
        assert beyond == {("cluster", 53)} | hub | vectors | (store if uses_store else set()), pod.name


def test_pods_that_train_together_reach_each_other_and_nobody_else_reaches_them() -> None:
    jobs, production = render(K8S / "train"), overlay("production")
    network = Network(Manifests((*jobs.objects, *production.objects)))
    one, other = jobs.pods()
    assert network.may(one, other, 29500)
    assert network.may(other, one, 41234)
    assert not any(network.may(pod, one, 29500) for pod in production.pods())
    assert not any(network.may(one, pod, port) for pod in production.pods() for port in pod.ports.values())
