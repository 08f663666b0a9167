"""Where pods have checkpoints from: images that are mounted, and a claim of copies that a job warms up."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.deploy import kubernetes_names as names
from tests.deploy.kubernetes_manifests import SITE, Manifests, Pod, find_all, merged, render
from tests.deploy.kubernetes_network import Network
from tests.deploy.test_chart_values import refusal, with_model
from tests.deploy.test_k8s_schemas import VERSIONS, check_schemas
from tests.deploy.test_kubernetes import CHECKS

SPAM = "registry.example.org/vision/spam:1"
READER = f"registry.example.org/vision/reader@sha256:{'0' * 64}"
# Two models from images, beside two that share a claim of copies.
MODELS: dict[str, Any] = {
    "models": [
        {"name": "predict", "service": "predict", "checkpoints": ["spam"], "source": f"oci://{SPAM}"},
        {"name": "generate", "service": "generate", "checkpoints": ["reader@stable"], "source": f"oci://{READER}"},
        {"name": "embed", "service": "embed", "checkpoints": ["eyes"]},
        {"name": "score", "service": "score", "checkpoints": ["judge@stable", "critic"], "canary": "candidate"},
    ],
    "modelCache": {"claim": True},
}


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return render(("gpu",), SITE, MODELS)


def jobs_of(manifests: Manifests, program: str) -> list[Pod]:
    return [pod for pod in manifests.pods() if pod.program == program]


def containers(pod: Pod) -> list[dict[str, Any]]:
    return [pod.container, *pod.spec.get("initContainers", ())]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_the_objects_name_exists(manifests: Manifests, check: Callable[[Manifests], list[str]]) -> None:
    assert check(manifests) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_objects_are_valid(manifests: Manifests, version: str) -> None:
    assert check_schemas(manifests, version) == []


@pytest.mark.parametrize(("name", "image"), [("predict", SPAM), ("generate", READER)])
def test_a_pod_mounts_its_models_image_in_place_of_the_store_and_copies_nothing(
    manifests: Manifests, name: str, image: str
) -> None:
    pod = manifests.pod(name)
    (volume,) = [one for one in pod.spec["volumes"] if "image" in one]
    assert volume["image"] == {"reference": image, "pullPolicy": "IfNotPresent"}
    for container in containers(pod):
        (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
        assert mount["readOnly"] is True
        assert "fovea-store" not in str(container.get("env"))
    settings = names.settings_of(manifests, pod)
    assert settings.store_url == f"file://{mount['mountPath']}"
    assert settings.checkpoint_cache_max_bytes == 0
    assert not {"checkpoints", "store"} & {one["name"] for one in pod.spec["volumes"]}


def test_vllm_reads_the_image_by_a_link_that_was_checked_and_asks_for_no_disk_of_the_weights(
    manifests: Manifests,
) -> None:
    pod = manifests.pod("generate")
    checkpoint, vllm = pod.spec["initContainers"]
    assert checkpoint["command"] == ["fovea", "store", "fetch", "reader@stable", "/models/checkpoint", "--link"]
    settings = names.settings_of(manifests, pod)
    assert {"name": "FOVEA_STORE_URL", "value": settings.store_url} in checkpoint["env"]
    assert "--model=/models/checkpoint" in vllm["args"]
    larger = render(("gpu",), SITE, MODELS, {"services": {"generate": {"weightsGiB": 140}}}).pod("generate")
    assert [one["resources"] for one in containers(larger)] == [one["resources"] for one in containers(pod)]


def test_what_is_in_an_image_is_not_imported_and_counts_for_no_claim(manifests: Manifests) -> None:
    assert jobs_of(manifests, "import") == []
    assert manifests.get("PersistentVolumeClaim", "model-cache") is not None
    large = merged(MODELS, {"services": {"generate": {"weightsGiB": 900}}})
    assert render(("gpu",), SITE, large).of_kind("Job") == manifests.of_kind("Job")


def test_where_images_have_every_model_there_is_no_store() -> None:
    alone = {"models": MODELS["models"][:2], "store": {"url": "", "egress": [], "secret": "", "writerSecret": ""}}
    for profiles in ((), ("gpu",)):
        manifests = render(profiles, SITE | {"monitoring": {"enabled": True, "release": "any"}}, alone)
        assert manifests.get("PersistentVolumeClaim", "store") is None
        assert manifests.get("NetworkPolicy", "to-store") is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (with_model(source="oci://spam"), "the source of predict is oci://spam: write the full name of an image"),
        (with_model(source=f"oci://{SPAM[:-2]}"), "such as oci://registry.example.org/you/tickets:1"),
        (with_model(source=f"oci://{SPAM}", checkpoints=[]), "has a GPU and names no checkpoints"),
    ],
)
def test_a_wrong_image_is_named_with_what_would_be_right(wrong: dict[str, Any], said: str) -> None:
    assert said in refusal(("gpu",), SITE, wrong)


def test_a_job_copies_each_checkpoint_of_the_claim_where_services_look_for_it(manifests: Manifests) -> None:
    pods = jobs_of(manifests, "warm-up")
    fetched = [pod.container["command"][3:] for pod in pods]
    assert fetched == [["eyes"], ["judge@stable"], ["critic"], ["judge@candidate"], ["critic@candidate"]]
    served = manifests.pod("score")
    for pod in pods:
        environment = manifests.environment(pod)
        for name in ("FOVEA_STORE_URL", "FOVEA_CHECKPOINT_CACHE_DIR", "FOVEA_CHECKPOINT_CACHE_MAX_BYTES"):
            assert environment[name] == manifests.environment(served)[name]
        (volume,) = [one for one in pod.spec["volumes"] if "persistentVolumeClaim" in one]
        assert volume in served.spec["volumes"]
        mounted = {one["name"]: one["mountPath"] for one in pod.container["volumeMounts"]}
        assert mounted[volume["name"]] == environment["FOVEA_CHECKPOINT_CACHE_DIR"]
        assert {one["name"] for one in find_all(pod.container, "secretKeyRef")} == {"fovea-store"}
    assert len({pod.name for pod in pods}) == len(pods)


def test_a_warm_up_reaches_the_store_and_nothing_of_the_release(manifests: Manifests) -> None:
    network = Network(manifests)
    for pod in jobs_of(manifests, "warm-up"):
        assert not any(network.may(pod, other, port) for other in manifests.pods() for port in other.ports.values())
    policy = manifests.get("NetworkPolicy", "to-store")
    assert policy is not None
    assert "warm-up" in policy["spec"]["podSelector"]["matchExpressions"][0]["values"]


def test_without_a_claim_there_is_nothing_to_warm_up_nor_where_one_pod_alone_may_have_it() -> None:
    for cache in ({"claim": False}, {"claim": True, "accessMode": "ReadWriteOncePod"}):
        assert jobs_of(render(("gpu",), SITE, {"modelCache": cache}), "warm-up") == []


@pytest.mark.parametrize(
    ("checkpoint", "alias"), [("spam", "latest"), ("spam@latest", "latest"), ("spam@stable", "stable")]
)
def test_an_import_moves_the_alias_that_the_pods_follow(checkpoint: str, alias: str) -> None:
    source = "hf://google/flan-t5-small"
    changed = with_model(source=source, checkpoints=[checkpoint])
    (pod,) = jobs_of(render(("gpu",), SITE, changed), "import")
    assert pod.container["command"][3] == source
    assert {"--name=spam", f"--alias={alias}"} <= set(pod.container["command"])


def test_another_alias_of_the_same_source_is_imported_too_and_a_version_can_not_be() -> None:
    def once(checkpoint: str) -> str:
        changed = with_model(source="hf://google/flan-t5-small", checkpoints=[checkpoint])
        (pod,) = jobs_of(render(("gpu",), SITE, changed), "import")
        return next(str(one) for one in pod.container["command"] if one.startswith("--once="))

    assert re.fullmatch("--once=source-[0-9a-f]{8}", once("spam@stable"))
    assert once("spam") == once("spam@latest") != once("spam@stable")
    version = with_model(source="hf://google/flan-t5-small", checkpoints=["spam@0123456789ab"])
    assert "name an alias, such as spam@stable" in refusal(("gpu",), SITE, version)
