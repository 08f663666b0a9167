"""Pods may do little and reach few, and believe those whom the operator believes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.core.redis_server import RedisServer, make_authority, redis_executables
from tests.core.s3_servers import ACCESS_KEY_ID, SECRET_ACCESS_KEY, moto_server
from tests.deploy.kubernetes_manifests import (
    DEPLOYMENTS,
    EVERYTHING,
    JOBS,
    ON_GPUS,
    SITE,
    Manifests,
    Pod,
    deployment,
    find_all,
    gpus_of,
    jobs,
    render,
)
from tests.deploy.kubernetes_names import SETTINGS, settings_of
from tests.deploy.kubernetes_network import Network

SERVICES = SETTINGS.keys() - {"gateway"}
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
# kube-dns and OpenShift's in the cluster, and NodeLocal DNSCache on the node.
NAME_SERVERS = {("cluster", 53), ("cluster", 5353), ("169.254.20.10/32", 53)}
MONITORING = {"kubernetes.io/metadata.name": "monitoring"}


@pytest.mark.parametrize("name", EVERYTHING)
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
        assert container["securityContext"]["readOnlyRootFilesystem"] is (not gpus_of(container["resources"])), pod.name
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("name", [*ON_GPUS, "jobs"])
def test_every_service_and_training_has_gpus_where_there_are_some(name: str) -> None:
    for pod in deployment(name).pods():
        assert has_gpu(pod) == (pod.program in {*SERVICES, "train"}), pod.name
        if has_gpu(pod):
            (resources,) = gpus(pod)
            assert gpus_of(resources).items() <= resources["requests"].items()
            assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod.spec["tolerations"]


def test_the_demonstration_asks_for_no_gpu() -> None:
    assert not any(has_gpu(pod) for pod in deployment("demo").pods())


@pytest.mark.parametrize("name", ON_GPUS)
def test_gateways_sign_and_services_check_with_one_secret_and_redis_asks_for_a_password(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        file = settings_of(manifests, pod).signing_secret_file
        (mount,) = [one for one in pod.container["volumeMounts"] if one["mountPath"] == str(file.parent)]
        (volume,) = [one for one in pod.spec["volumes"] if one["name"] == mount["name"]]
        assert volume["secret"]["secretName"] == "fovea-signing"
        variables = [one["name"] for one in pod.container["env"]]
        # Kubernetes fills in variables that come before.
        assert variables.index("REDIS_PASSWORD") < variables.index("FOVEA_REDIS_URL")
    redis = manifests.pod("redis").container
    assert redis["command"][-2:] == ["--requirepass", "$(REDIS_PASSWORD)"]


@pytest.mark.parametrize("name", ["production", "production-canary", "cluster"])
def test_behind_a_route_clients_are_told_apart_by_the_address_that_its_proxies_forward(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        if pod.program == "gateway":
            assert settings_of(manifests, pod).trusted_proxies == tuple(SITE["route"]["trustedProxies"])


def has_gpu(pod: Pod) -> bool:
    return bool(gpus(pod))


def gpus(pod: Pod) -> list[Any]:
    """The resources of each container with a GPU: generate's is vLLM's, beside it."""
    containers = [pod.container, *pod.spec.get("initContainers", ())]
    return [one["resources"] for one in containers if gpus_of(one["resources"])]


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_pod_that_no_policy_names_neither_reaches_nor_is_reached(name: str) -> None:
    manifests = deployment(name)
    policies = [one for one in manifests.of_kind("NetworkPolicy") if "namespace" not in one["metadata"]]
    everything = [one for one in policies if one["spec"]["podSelector"] == {}]
    denied = {kind for one in everything if not one["spec"].get("egress") for kind in one["spec"]["policyTypes"]}
    assert denied == {"Ingress", "Egress"}


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pods_reach_those_that_they_need_and_no_others(name: str) -> None:
    manifests = deployment(name)
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


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_only_the_gateway_is_reached_from_elsewhere(name: str) -> None:
    manifests = deployment(name)
    network = Network(manifests)
    for pod in (pod for pod in manifests.pods() if pod.ports):
        (port,) = pod.ports.values()
        assert network.enters(pod, {"app": "any"}, port, {"kubernetes.io/metadata.name": "other"}) == (
            pod.program == "gateway"
        )
        assert not network.enters(pod, {"app": "any"}, 9999, {"kubernetes.io/metadata.name": "other"})


@pytest.mark.parametrize("name", ON_GPUS)
def test_prometheus_reaches_what_it_scrapes(name: str) -> None:
    manifests = deployment(name)
    network = Network(manifests)
    for pod in manifests.processes():
        (port,) = pod.ports.values()
        assert network.enters(pod, PROMETHEUS, port, MONITORING)
        assert network.enters(pod, {"app": "any"}, port, MONITORING) == (pod.program == "gateway")


@pytest.mark.parametrize("name", EVERYTHING)
def test_beyond_its_namespace_a_pod_reaches_name_servers_and_the_store_alone(name: str) -> None:
    manifests = deployment(name)
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
        uses_store = name != "demo" and pod.program in {*SERVICES, "import", "train", "backup"}
        hub = {("0.0.0.0/0", 443)} if pod.program == "import" else set()
        assert beyond == NAME_SERVERS | hub | (store if uses_store else set()), pod.name


def test_pods_that_train_together_reach_each_other_and_nobody_else_reaches_them() -> None:
    manifests = jobs()
    network = Network(manifests)
    one, other = (pod for pod in manifests.pods() if pod.program == "train")
    assert network.may(one, other, 29500)
    assert network.may(other, one, 41234)
    others = [pod for pod in manifests.pods() if pod.program != "train"]
    assert not any(network.may(pod, one, 29500) for pod in others)
    assert not any(network.may(one, pod, port) for pod in others for port in pod.ports.values())


AUTHORITIES: dict[str, Any] = {"caBundle": {"configMap": "authorities", "key": "all.pem"}}
BACKUP: dict[str, Any] = {"collections": {"backup": {"enabled": True}}}


def containers_that_speak_tls(manifests: Manifests) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every container of an image of Fovea with its pod, of jobs on Ray too."""
    for spec in find_all(list(manifests.objects), "spec"):
        for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
            if "fovea-" in container["image"] and "fovea-vllm" not in container["image"]:
                yield spec, container


@pytest.mark.parametrize(
    ("profiles", "values"), [((), {}), (("gpu",), JOBS), (("production",), {}), (("production", "cluster"), BACKUP)]
)
def test_every_process_believes_the_authorities_that_the_operator_names(
    profiles: tuple[str, ...], values: dict[str, Any]
) -> None:
    manifests = render(profiles, SITE if profiles else {}, values, AUTHORITIES)
    settings = manifests.get("ConfigMap", "fovea")
    assert settings is not None
    found = list(containers_that_speak_tls(manifests))
    assert len(found) >= len(manifests.processes())
    for spec, container in found:
        env = settings["data"] if "envFrom" in container else {}
        env = env | {one["name"]: one.get("value") for one in container["env"]}
        file = Path(env["SSL_CERT_FILE"])
        assert env["REQUESTS_CA_BUNDLE"] == str(file)
        (name,) = [one["name"] for one in container["volumeMounts"] if one["mountPath"] == str(file.parent)]
        (volume,) = [one for one in spec["volumes"] if one["name"] == name]
        assert volume["configMap"] == {"name": "authorities", "items": [{"key": "all.pem", "path": file.name}]}


def test_no_variable_names_authorities_where_the_operator_names_none() -> None:
    assert not any("SSL_CERT_FILE" in str(deployment(name).objects) for name in EVERYTHING)


@pytest.mark.process
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_by_what_the_chart_sets_the_store_and_redis_of_a_private_authority_are_reached(tmp_path: Path) -> None:
    authority, certificate = make_authority(tmp_path)
    manifests = render(("gpu",), SITE, AUTHORITIES)
    trusted = {
        name: str(authority)
        for name, value in manifests.environment(manifests.pod("embed")).items()
        if value == "/etc/fovea-ca/ca-bundle.crt"
    }
    system = redis_executables().get("system")
    redis = RedisServer(system, None, certificate=certificate) if system else None
    with moto_server(authority, certificate) as server:
        own = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
            "FOVEA_STORE_URL": server.url("store"),
            "HOME": str(tmp_path),
        }
        if redis is not None:
            redis.start()
            own["FOVEA_REDIS_URL"] = redis.url.partition("?")[0]
        try:
            listed, doctor = (run_fovea(own | trusted, *command) for command in (("store", "ls"), ("doctor", "--json")))
            refused = run_fovea(own, "store", "ls")
        finally:
            if redis is not None:
                redis.stop()
    assert listed.returncode == 0, listed.stderr
    assert "focallens-shapes" in listed.stdout
    assert refused.returncode == 1
    assert "set SSL_CERT_FILE to a file with the certificate of its authority" in refused.stderr
    if redis is not None:
        (told,) = [one for one in json.loads(doctor.stdout)["findings"] if one["topic"] == "redis"]
        assert told["status"] == "ok", told


def run_fovea(env: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("fovea")), *arguments]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, check=False)
