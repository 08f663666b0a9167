"""vLLM beside generate in its pods, in every deployment that has GPUs."""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.store import app
from services.core.store.store import Store
from tests.core.tiny_checkpoints import INFO, write_checkpoint
from tests.deploy import kubernetes_names as names
from tests.deploy.kubernetes_manifests import ON_GPUS, ROOT, SITE, Manifests, Pod, deployment
from tests.deploy.kubernetes_network import Network
from tests.deploy.test_kubernetes import CHECKS, check_scaling_queries, check_targets
from tests.vllm_plugin.engine import ENVIRONMENT, vllm_python

GPU = "nvidia.com/gpu"
(MODEL,) = next(one["checkpoints"] for one in SITE["models"] if one["service"] == "generate")
PARSE = (
    "import json, sys\n"
    "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "for given in json.loads(sys.argv[1]):\n"
    "    options = make_arg_parser(FlexibleArgumentParser()).parse_args(given)\n"
    "    print(json.dumps([options.model, options.port, options.tensor_parallel_size]))\n"
)


@pytest.fixture(params=ON_GPUS)
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return deployment(request.param)


def beside(pod: Pod, name: str) -> Any:
    """The init container of this name."""
    return next(one for one in pod.spec["initContainers"] if one["name"] == name)


def arguments(pod: Pod) -> Sequence[str]:
    """The arguments with which vLLM is started."""
    return list(beside(pod, "vllm")["args"])


@pytest.mark.parametrize("check", [*CHECKS, check_scaling_queries, check_targets], ids=lambda check: check.__name__)
def test_what_it_names_exists(manifests: Manifests, check: Callable[[Manifests], list[str]]) -> None:
    assert check(manifests) == []


def test_the_service_asks_the_vllm_beside_it_which_serves_the_same_model(manifests: Manifests) -> None:
    pod = manifests.pod("generate")
    settings = names.settings_of(manifests, pod)
    vllm = beside(pod, "vllm")
    assert settings.engine == "vllm"
    assert settings.vllm_url == f"http://127.0.0.1:{vllm['ports'][0]['containerPort']}"
    assert f"--port={vllm['ports'][0]['containerPort']}" in arguments(pod)
    # not the name in the store, which may have an alias
    assert f"--served-model-name={settings.vllm_model}" in arguments(pod)
    assert settings.models == (MODEL,)


def test_vllm_is_up_before_the_service_and_outlives_it(manifests: Manifests) -> None:
    """A sidecar: an init container that is restarted."""
    pod = manifests.pod("generate")
    assert [one["name"] for one in pod.spec["initContainers"]] == ["checkpoint", "vllm"]
    assert beside(pod, "vllm")["restartPolicy"] == "Always"
    assert beside(pod, "vllm")["startupProbe"]["httpGet"] == {"path": "/health", "port": "vllm"}
    assert "restartPolicy" not in beside(pod, "checkpoint")


def test_all_gpus_of_the_pod_are_vllms_and_it_uses_each(manifests: Manifests) -> None:
    pod = manifests.pod("generate")
    resources = beside(pod, "vllm")["resources"]
    assert resources["requests"][GPU] == resources["limits"][GPU]
    assert f"--tensor-parallel-size={resources['limits'][GPU]}" in arguments(pod)
    assert not any(GPU in part for part in pod.container["resources"].values())


def test_the_images_are_those_that_the_site_names(manifests: Manifests) -> None:
    pod = manifests.pod("generate")
    assert beside(pod, "vllm")["image"] == SITE["images"]["vllm"]
    assert beside(pod, "checkpoint")["image"] == pod.container["image"] == SITE["images"]["service"]


def test_what_stands_beside_the_service_may_do_as_little(manifests: Manifests) -> None:
    pod = manifests.pod("generate")
    for container in pod.spec["initContainers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        volumes = {volume["name"] for volume in pod.spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
    network = Network(manifests)
    (port,) = (one["containerPort"] for one in beside(pod, "vllm")["ports"])
    assert not any(network.may(other, pod, port) for other in manifests.pods() if other.name != "generate")


def test_vllm_asks_for_a_key_that_the_service_beside_it_has(manifests: Manifests) -> None:
    pod = manifests.pod("generate")
    keys = {
        one["name"]: one["valueFrom"]["secretKeyRef"]
        for container in (pod.container, beside(pod, "vllm"))
        for one in container["env"]
        if one["name"] in ("FOVEA_GENERATE_VLLM_KEY", "VLLM_API_KEY")
    }
    secret = {"name": "fovea-signing", "key": "vllm"}
    assert keys == {"FOVEA_GENERATE_VLLM_KEY": secret, "VLLM_API_KEY": secret}


def test_what_vllm_compiles_outlives_the_pod(manifests: Manifests) -> None:
    pod = manifests.pod("generate")
    mounts = {one["mountPath"]: one["name"] for one in beside(pod, "vllm")["volumeMounts"]}
    (volume,) = [one for one in pod.spec["volumes"] if one["name"] == mounts["/var/cache/vllm"]]
    claim = manifests.get("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
    assert claim is not None
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]  # several pods use it


def test_the_checkpoint_is_fetched_to_where_vllm_reads_it(
    manifests: Manifests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = manifests.pod("generate")
    store = Store.open((tmp_path / "store").as_uri())
    store.publish(MODEL, write_checkpoint(tmp_path / "published"), INFO)
    monkeypatch.setenv("FOVEA_STORE_URL", store.label)
    program, group, *given, folder = beside(pod, "checkpoint")["command"]
    assert (program, group) == ("fovea", "store")

    done = CliRunner().invoke(app, [*given, str(tmp_path / "fetched")])

    assert done.exit_code == 0, done.output
    assert (tmp_path / "fetched" / "config.json").exists()
    assert f"--model={folder}" in arguments(pod)
    volumes = [
        mount["name"]
        for name in ("checkpoint", "vllm")
        for mount in beside(pod, name)["volumeMounts"]
        if folder.startswith(mount["mountPath"])
    ]
    assert len(volumes) == 2
    assert len(set(volumes)) == 1


@pytest.mark.slow
def test_vllm_takes_the_arguments() -> None:
    given = [arguments(deployment(name).pod("generate")) for name in ("gpu", "production")]
    parsed = subprocess.run(
        [vllm_python(), "-c", PARSE, json.dumps(given)], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT
    )
    assert parsed.returncode == 0, parsed.stderr
    expected = ["/models/checkpoint", 8000, 1]
    assert [json.loads(line) for line in parsed.stdout.splitlines()[-2:]] == [expected, expected]
