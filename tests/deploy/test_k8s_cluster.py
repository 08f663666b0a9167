"""The profile `cluster`: every pod of embed answers for all collections, and no pod alone holds anything."""

import re
from urllib.parse import urlsplit

from tests.deploy.kubernetes_manifests import (
    README,
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

# By what the operator's pod asks those that it looks after, from its own namespace.
OPERATOR = ({"app.kubernetes.io/name": "cloudnative-pg"}, {NAME: "cnpg-system"})


def cluster() -> Manifests:
    return deployment("cluster")


def resource(kind: str) -> Object:
    (found,) = cluster().of_kind(kind)
    return found


def postgres() -> Pod:
    (pod,) = [pod for pod in cluster().operated() if pod.workload["kind"] == "Cluster"]
    return pod


def test_embed_finds_the_database_and_the_bucket_under_the_names_that_they_have() -> None:
    settings = settings_of(cluster(), cluster().pod("embed"))
    assert urlsplit(settings.collections_url).hostname == f"{resource('Cluster')['metadata']['name']}-rw.fovea"
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


def test_the_database_has_pgvector_from_the_start() -> None:
    spec = resource("Cluster")["spec"]
    # Of CloudNativePG's images this one has it; the database's owner may not create it.
    assert "-standard-" in spec["imageName"]
    assert spec["bootstrap"]["initdb"]["postInitApplicationSQL"] == ["CREATE EXTENSION vector"]


def test_the_memory_in_which_vectors_are_searched_is_the_operator_s_to_choose() -> None:
    asked = {"collections": {"postgres": {"resources": {"memory": "64Gi"}}}}
    (database,) = render(("production", "cluster"), SITE, asked).of_kind("Cluster")
    given = database["spec"]["resources"]
    assert given["requests"]["memory"] == given["limits"]["memory"] == "64Gi"


def test_a_drained_node_takes_one_pod_of_a_part_at_a_time() -> None:
    budgets = [one["spec"] for one in cluster().of_kind("PodDisruptionBudget")]
    # CloudNativePG makes its own.
    for pod in cluster().processes():
        (budget,) = [one for one in budgets if selects(one["selector"], pod.labels)]
        assert budget.get("maxUnavailable", budget.get("minAvailable")) == 1, pod.name


def test_only_embed_its_backup_and_the_operator_reach_the_database() -> None:
    network, target = Network(cluster()), postgres()
    reached = {
        (pod.program, port)
        for pod in cluster().pods()
        for port in target.ports.values()
        if network.may(pod, target, port)
    }
    assert reached == {("embed", 5432), ("backup", 5432)}
    labels, namespace = OPERATOR
    for port in target.ports.values():
        assert network.enters(target, labels, port, namespace)
        assert not network.enters(target, {"app": "any"}, port, {NAME: "other"})
        assert network.may(target, target, port)


def test_the_database_leaves_for_what_it_needs_alone() -> None:
    beyond = {
        (way["to"].get("ipBlock", {}).get("cidr", "cluster"), port["port"])
        for way in Network(cluster()).ways_out(postgres())
        for port in way["ports"]
    }
    assert beyond == NAME_SERVERS | {("203.0.113.1/32", 6443)}


def test_the_guide_makes_the_namespace_as_closed_as_its_pods_allow() -> None:
    """Its Secrets come before the release, so that it can't make it."""
    assert cluster().of_kind("Namespace") == []
    labelled = re.findall(r"label namespace (\S+) pod-security.kubernetes.io/enforce=(\w+)", README.read_text())
    assert labelled == [("fovea", "restricted")]
