"""The profile `cluster`: every pod of embed answers for all collections, and no pod alone holds anything."""

import json
import re
from urllib.parse import urlsplit

from tests.core import milvus_server
from tests.deploy.kubernetes_manifests import (
    MILVUS_PARTS,
    README,
    ROOT,
    SITE,
    Manifests,
    Object,
    Pod,
    deployment,
    render,
    selects,
)
from tests.deploy.kubernetes_names import settings_of
from tests.deploy.kubernetes_network import NAME, Network
from tests.deploy.test_k8s_security import NAME_SERVERS

# By what an operator's pods ask those that they look after, from its own namespace.
OPERATORS = {
    "Cluster": ({"app.kubernetes.io/name": "cloudnative-pg"}, {NAME: "cnpg-system"}),
    "Milvus": ({"app.kubernetes.io/name": "milvus-operator"}, {NAME: "milvus-operator"}),
}


def cluster() -> Manifests:
    return deployment("cluster")


def resource(kind: str) -> Object:
    (found,) = cluster().of_kind(kind)
    return found


def operated(kind: str, part: str = "") -> list[Pod]:
    return [pod for pod in cluster().operated() if pod.workload["kind"] == kind and pod.name.endswith(part)]


def test_embed_finds_the_databases_and_the_bucket_under_the_names_that_they_have() -> None:
    settings = settings_of(cluster(), cluster().pod("embed"))
    assert urlsplit(settings.collections_url).hostname == f"{resource('Cluster')['metadata']['name']}-rw.fovea"
    name, namespace = resource("Milvus")["metadata"]["name"], resource("Milvus")["metadata"]["namespace"]
    assert settings.vectors_url == f"http://{name}-milvus.{namespace}.svc:19530"
    assert settings.collections_store_url == SITE["collections"]["url"]
    secrets = {
        one["name"]: one.get("valueFrom", {}).get("secretKeyRef", {}) for one in cluster().pod("embed").container["env"]
    }
    assert secrets["FOVEA_EMBED_COLLECTIONS_URL"] == {"name": "postgres-app", "key": "uri"}
    # It writes images, and the others write nothing.
    writers = [
        pod.name
        for pod in cluster().processes()
        if "fovea-collections" in str(pod.container.get("env")) or "writer" in str(pod.container.get("env"))
    ]
    assert writers == ["embed"]


def test_embed_has_no_disk_of_its_own_and_any_number_of_pods() -> None:
    kept = cluster().of_kind("PersistentVolumeClaim", "StatefulSet")
    assert [one["metadata"]["name"] for one in kept] == ["collections-backups", "vllm-cache"]
    spec = cluster().pod("embed").workload["spec"]
    assert "replicas" not in spec
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    # States of images are not kept, so that nobody can fill it.
    assert settings_of(cluster(), cluster().pod("embed")).collection_state_bytes == 0
    for pod in cluster().processes():
        if pod.program == "gateway":
            assert settings_of(cluster(), pod).collections_urls == ()


def test_nothing_is_down_where_a_pod_is_down() -> None:
    for scaled in cluster().of_kind("ScaledObject"):
        assert scaled["spec"]["minReplicaCount"] >= 2
    assert {one["spec"]["scaleTargetRef"]["name"] for one in cluster().of_kind("ScaledObject")} == {
        # without Redis results are computed again, and each gateway counts by itself
        pod.name
        for pod in cluster().processes()
    }
    components = resource("Milvus")["spec"]["components"]
    assert components.keys() >= MILVUS_PARTS
    assert all(components[part]["replicas"] >= 2 for part in MILVUS_PARTS)
    dependencies = resource("Milvus")["spec"]["dependencies"]
    assert dependencies["etcd"]["inCluster"]["values"]["replicaCount"] >= 3
    queue = dependencies["pulsar"]["inCluster"]["values"]
    assert {name: part["replicaCount"] for name, part in queue.items() if "replicaCount" in part} == {
        "zookeeper": 3,
        "bookkeeper": 3,
        "broker": 2,
        "proxy": 2,
    }
    assert dependencies["storage"]["external"]


def test_the_memory_that_milvus_has_for_vectors_is_the_operator_s_to_choose() -> None:
    asked = {"collections": {"milvus": {"queryNode": {"replicas": 5, "memory": "64Gi"}}}}
    (milvus,) = render(("production", "cluster"), SITE, asked).of_kind("Milvus")
    node = milvus["spec"]["components"]["queryNode"]
    assert node["replicas"] == 5
    assert node["resources"]["requests"]["memory"] == node["resources"]["limits"]["memory"] == "64Gi"


def test_what_postgresql_acknowledges_is_on_two_disks_of_two_nodes() -> None:
    spec = resource("Cluster")["spec"]
    assert spec["instances"] >= 3
    assert spec["postgresql"]["synchronous"] == {
        "method": "any",
        "number": 1,
        "dataDurability": "required",
        "failoverQuorum": True,
    }
    assert spec["affinity"]["podAntiAffinityType"] == "required"
    assert spec["affinity"]["topologyKey"] == "kubernetes.io/hostname"
    assert spec["bootstrap"]["initdb"]["encoding"] == "UTF8"


def test_milvus_is_the_one_of_the_tests_and_runs_as_there() -> None:
    version = re.search(r"^milvus==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert version is not None
    assert resource("Milvus")["spec"]["components"]["image"] == f"milvusdb/milvus:v{version[1]}"
    for name, value in milvus_server.DEPLOYED.items():
        configured = resource("Milvus")["spec"]["config"]
        for part in name.split("."):
            configured = configured[part]
        assert json.dumps(configured) == value


def test_a_drained_node_takes_one_pod_of_a_part_at_a_time() -> None:
    budgets = [one["spec"] for one in cluster().of_kind("PodDisruptionBudget")]
    # CloudNativePG makes its own.
    for pod in (*cluster().processes(), *operated("Milvus")):
        (budget,) = [one for one in budgets if selects(one["selector"], pod.labels)]
        assert budget.get("maxUnavailable", budget.get("minAvailable")) == 1, pod.name


def test_only_embed_and_their_operators_reach_the_databases() -> None:
    network = Network(cluster())
    (postgres,), (proxy,) = operated("Cluster"), operated("Milvus", "proxy")
    asked = {(postgres.name, 5432), (proxy.name, 19530)}
    reached = {
        (pod.program, target.name, port)
        for pod in cluster().pods()
        for target in cluster().operated()
        for port in target.ports.values()
        if network.may(pod, target, port)
    }
    assert reached == {("embed", *one) for one in asked} | {("backup", postgres.name, 5432)}
    for target in cluster().operated():
        labels, namespace = OPERATORS[target.workload["kind"]]
        for port in target.ports.values():
            assert network.enters(target, labels, port, namespace), target.name
            assert not network.enters(target, {"app": "any"}, port, {NAME: "other"}), target.name
            assert all(network.may(source, target, port) for source in operated(target.workload["kind"]))


def test_the_databases_leave_for_what_they_need_alone() -> None:
    network = Network(cluster())
    beyond = {
        pod.name: {
            (way["to"].get("ipBlock", {}).get("cidr", "cluster"), port["port"])
            for way in network.ways_out(pod)
            for port in way["ports"]
        }
        for pod in cluster().operated()
    }
    store = {(peer["ipBlock"]["cidr"], 443) for rule in SITE["store"]["egress"] for peer in rule["to"]}
    (postgres,) = operated("Cluster")
    assert beyond.pop(postgres.name) == NAME_SERVERS | {("203.0.113.1/32", 6443)}
    assert len(beyond) == len(MILVUS_PARTS)
    assert all(ways == NAME_SERVERS | store for ways in beyond.values())


def test_the_guide_makes_the_namespaces_as_closed_as_their_pods_allow() -> None:
    """Their Secrets come before the release, so that it can't make them."""
    assert cluster().of_kind("Namespace") == []
    labelled = re.findall(r"label namespace (\S+) pod-security.kubernetes.io/enforce=(\w+)", README.read_text())
    assert dict(labelled) == {"fovea": "restricted", "fovea-milvus": "baseline"}
    assert resource("Milvus")["metadata"]["namespace"] == "fovea-milvus"
