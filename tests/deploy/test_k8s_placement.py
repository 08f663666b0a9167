"""Pods are where their requests let the scheduler put them: no GPU stands idle for want of disk."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.deploy.kubernetes_manifests import SITE, Manifests, Pod, build, deployment, gpus_of, merged, render
from tests.deploy.kubernetes_names import settings_of

UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "m": 1e-3, "": 1}
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
# A common machine with four GPUs; of its disk of 200 GB the kubelet offers so much.
NODE = {"cpu": "64", "memory": "480Gi", "ephemeral-storage": "165Gi"}
FOUR_GPUS = {**NODE, GPU: 4}
# The same whose device plugin offers each GPU four times.
SHARED_GPUS = {**NODE, SHARED: 16}


def number(quantity: str | int) -> float:
    text = str(quantity)
    unit = next(unit for unit in UNITS if text.endswith(unit))
    return float(text.removesuffix(unit)) * UNITS[unit]


def request_of(pod: Pod) -> dict[str, float]:
    """What the scheduler counts: of containers and sidecars the sum, or one init container where that is more."""
    inits = pod.spec.get("initContainers", ())
    beside = [one for one in inits if one.get("restartPolicy") == "Always"]
    running: dict[str, float] = {}
    for container in (*pod.spec["containers"], *beside):
        for name, quantity in container["resources"]["requests"].items():
            running[name] = running.get(name, 0) + number(quantity)
    for container in inits:
        for name, quantity in container["resources"].get("requests", {}).items():
            running[name] = max(running.get(name, 0), number(quantity))
    return running


def num_pods(manifests: Manifests, pod: Pod) -> int:
    """The least number of pods of a workload, awake."""
    for scaled in manifests.of_kind("ScaledObject"):
        if scaled["spec"]["scaleTargetRef"]["name"] == pod.name:
            return max(1, int(scaled["spec"]["minReplicaCount"]))
    return int(pod.workload["spec"].get("replicas", 1))


def unplaced(manifests: Manifests, nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of the pods that no node has room for, the largest first, each onto the node with the most free GPUs."""
    free = [{name: number(quantity) for name, quantity in node.items()} for node in nodes]
    pods = [pod for pod in manifests.processes() for _ in range(num_pods(manifests, pod))]
    left = []
    for pod in sorted(pods, key=lambda pod: -request_of(pod)["memory"]):
        request = request_of(pod)
        fitting = [node for node in free if all(node.get(name, 0) >= quantity for name, quantity in request.items())]
        if not fitting:
            left.append(pod.name)
            continue
        node = max(fitting, key=lambda node: (node.get(GPU, 0), node.get("ephemeral-storage", 0)))
        for name, quantity in request.items():
            node[name] -= quantity
    return left


def test_two_nodes_with_four_gpus_each_place_every_pod_of_each_profile() -> None:
    assert unplaced(deployment("gpu"), [FOUR_GPUS, FOUR_GPUS]) == []
    for name in ("production", "production-canary", "cluster"):
        assert unplaced(deployment(name), [FOUR_GPUS, SHARED_GPUS]) == []


def test_no_gpu_of_a_node_is_stranded_by_its_disk() -> None:
    """Eight pods of a small model with a GPU each fit onto two such nodes."""
    replicas = {"services": {"score": {"replicas": {"min": 8, "max": 8}, "scaleToZero": False}}}
    manifests = render(("gpu",), SITE, replicas, {"models": [one for one in SITE["models"] if one["name"] == "score"]})
    assert [pod.name for pod in manifests.processes() if gpus_of(pod.container["resources"])] == ["score"]
    assert unplaced(manifests, [FOUR_GPUS, FOUR_GPUS]) == []


def test_an_idle_production_takes_two_whole_gpus() -> None:
    taken: dict[str, int] = {}
    manifests = deployment("production")
    for pod in manifests.processes():
        for container in (*pod.spec["containers"], *pod.spec.get("initContainers", ())):
            for name, count in gpus_of({"limits": container["resources"].get("limits", {})}).items():
                taken[name] = taken.get(name, 0) + count * num_pods(manifests, pod)
    # generate's vLLM; two of predict, embed and score and the collections share others.
    assert taken == {GPU: 2, SHARED: 7}


@pytest.mark.parametrize("share", [0.22, 0.45])
def test_pods_that_share_a_gpu_take_no_more_of_its_memory_than_there_is(share: float) -> None:
    manifests = render(("production",), SITE, {"defaults": {"gpu": {"memoryShare": share}}})
    shares = {
        one["name"]: one["value"]
        for pod in manifests.processes()
        for one in pod.container["env"]
        if one["name"].endswith("MEMORY_SHARE")
    }
    assert shares == {f"FOVEA_{name}_MEMORY_SHARE": str(share) for name in ("PREDICT", "EMBED", "SCORE")}
    if share == 0.22:
        # The four that a time-sliced GPU has.
        assert 4 * share <= 0.9


def test_pods_that_name_one_claim_share_its_gpu() -> None:
    small = {"gpu": {"count": 0, "claim": "small", "memoryShare": 0.05}}
    values: dict[str, Any] = {
        "gpuClaims": [{"name": "small", "deviceClass": "gpu.nvidia.com"}],
        "services": {"predict": small, "score": small, "embed": small},
    }
    manifests = render(("gpu",), SITE, values)
    (claim,) = manifests.of_kind("ResourceClaim")
    assert claim["metadata"]["name"] == "small"
    for name in ("predict", "score", "embed"):
        pod = manifests.pod(name)
        assert pod.spec["resourceClaims"] == [{"name": "gpu", "resourceClaimName": "small"}]
        assert pod.container["resources"]["claims"] == [{"name": "gpu"}]
        assert gpus_of(pod.container["resources"]) == {}
    # One of embed, up to eight of each of the others.
    values["services"] = {name: {"gpu": {**small["gpu"], "memoryShare": 0.1}} for name in ("predict", "score", "embed")}
    built = build(("gpu",), merged(SITE, values))
    assert "the pods that share small may take 1.70 of its memory" in built.stderr


def test_pods_that_share_verified_copies_ask_for_no_disk_of_their_own_for_them() -> None:
    manifests = render(("production",), SITE, {"modelCache": {"claim": True}})
    for pod in manifests.processes():
        if pod.program == "gateway":
            continue
        (volume,) = [one for one in pod.spec["volumes"] if one["name"] == "checkpoints"]
        assert volume["persistentVolumeClaim"] == {"claimName": "model-cache"}
        # Otherwise a pod would remove the copies of other models, of which it knows nothing.
        assert settings_of(manifests, pod).checkpoint_cache_max_bytes == 160 * 2**30
        assert (
            number(pod.container["resources"]["requests"]["ephemeral-storage"])
            == (3 if pod.name == "embed" else 2) * 2**30
        )
    claim = manifests.get("PersistentVolumeClaim", "model-cache")
    assert claim is not None
    assert claim["spec"]["resources"]["requests"] == {"storage": "200Gi"}
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
