"""The RayJob: KubeRay takes it, its command exists, and its pods may do as little as others."""

import json
import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from services.embed.bulk.command import app
from tests.deploy.kubernetes_manifests import JOBS, ROOT, SITE, Manifests, Object, deployment, gpus_of, jobs, selects
from tests.deploy.test_k8s_schemas import VERSIONS, check_schemas, refusal_of


@pytest.fixture(scope="module")
def manifests() -> Manifests:
    return jobs()


@pytest.fixture
def job(manifests: Manifests) -> Object:
    (job,) = manifests.of_kind("RayJob")
    return job


def templates(job: Object) -> dict[str, Object]:
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    return {
        "head": cluster["headGroupSpec"]["template"],
        "worker": workers["template"],
        "submitter": spec["submitterPodTemplate"],
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_the_job_and_each_of_its_pods_are_valid(manifests: Manifests, job: Object, version: str) -> None:
    assert check_schemas(Manifests((job,)), version) == []
    for name, template in templates(job).items():
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": name, **template["metadata"]}}
        assert refusal_of(json.dumps(pod), version) is None, name


def test_a_field_that_kuberay_does_not_know_is_found(manifests: Manifests) -> None:
    (job,) = manifests.of_kind("RayJob")
    broken = {**job, "spec": {**job["spec"], "shutdownAfterJob": True}}
    (problem,) = check_schemas(Manifests((broken,)), VERSIONS[-1])
    assert "shutdownAfterJob" in problem


def test_its_command_has_the_options_that_it_is_given(job: Object) -> None:
    program, command, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert (program, command) == ("fovea", "embed-bulk")
    known: Any = get_command(app)
    options = {option for parameter in known.params for option in parameter.opts}
    assert {one.partition("=")[0] for one in arguments if one.startswith("--")} <= options
    (workers,) = (one.partition("=")[2] for one in arguments if one.startswith("--workers="))
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == int(workers)
    # each replica is one worker's: its cores as Ray knows them, and its GPU
    requests = group["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert group["rayStartParams"] == {"num-cpus": requests["cpu"], "num-gpus": str(requests["nvidia.com/gpu"])}
    # a shell reads it: what is special to one is quoted
    special = {one for one in arguments if set(one) & set("&?")}
    assert special <= set(re.findall("'(.*?)'", job["spec"]["entrypoint"]))


def test_what_the_job_writes_is_on_the_claim_and_only_the_head_has_it(manifests: Manifests, job: Object) -> None:
    (output,) = re.findall(r"--output=(\S+)", job["spec"]["entrypoint"])
    claim = manifests.get("PersistentVolumeClaim", "embeddings")
    assert claim is not None
    mounts = {
        name: [
            mount["mountPath"]
            for mount in template["spec"]["containers"][0]["volumeMounts"]
            for volume in template["spec"]["volumes"]
            if volume["name"] == mount["name"]
            and volume.get("persistentVolumeClaim") == {"claimName": claim["metadata"]["name"]}
        ]
        for name, template in templates(job).items()
    }
    assert mounts == {"head": [output.rpartition("/")[0]], "worker": [], "submitter": []}


def test_its_pods_run_the_sites_image_with_the_ray_that_was_tested(job: Object) -> None:
    images = {one["image"] for template in templates(job).values() for one in template["spec"]["containers"]}
    assert images == {JOBS["images"]["ray"]}
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert job["spec"]["rayClusterSpec"]["rayVersion"] == pinned["ray"]


def test_its_pods_run_as_nobody_in_particular_and_may_do_nothing(job: Object) -> None:
    for name, template in templates(job).items():
        spec, (container,) = template["spec"], template["spec"]["containers"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        has_gpu = bool(gpus_of(container["resources"]))
        assert has_gpu == (name == "worker")
        assert container["securityContext"]["readOnlyRootFilesystem"] is not has_gpu
        secrets = {one["valueFrom"]["secretKeyRef"]["name"] for one in container["env"] if "valueFrom" in one}
        assert secrets == {"fovea-store"}, "it reads the store, and publishes nothing"


def test_its_pods_reach_each_other_and_the_store_and_only_the_operator_reaches_them(
    manifests: Manifests, job: Object
) -> None:
    labels = [template["metadata"]["labels"] for template in templates(job).values()]
    policies = {one["metadata"]["name"]: one["spec"] for one in manifests.of_kind("NetworkPolicy")}
    assert all(selects(policies[name]["podSelector"], one) for name in ("ray", "to-store", "dns") for one in labels)
    assert policies["to-store"]["egress"] == SITE["store"]["egress"]
    own, operator = policies["ray"]["ingress"]
    assert own == {"from": policies["ray"]["egress"][0]["to"]}
    assert operator["ports"] == [{"port": 8265}]
    others = [*manifests.pods(), *deployment("production").pods()]
    assert not any(selects(policies["ray"]["podSelector"], pod.labels) for pod in others)


def test_its_environment_has_the_store(job: Object) -> None:
    for template in templates(job).values():
        (container,) = template["spec"]["containers"]
        environment = {one["name"]: one.get("value") for one in container["env"]}
        assert environment["FOVEA_STORE_URL"] == SITE["store"]["url"]
        assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
