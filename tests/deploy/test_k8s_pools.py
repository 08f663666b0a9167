"""A second model of generate behind the same gateway: one more entry of `models`."""

import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath

import pytest

from gateway.routing.destinations import Pool, PoolFile, destinations
from tests.deploy import kubernetes_names as names
from tests.deploy.kubernetes_manifests import SITE, Manifests, Pod, deployment, render
from tests.deploy.kubernetes_network import Network
from tests.deploy.test_k8s_lifecycle import starting_s, stopping_s
from tests.deploy.test_kubernetes import CHECKS, check_scaling_queries, check_targets

MODEL = {"name": "generate-vicuna", "service": "generate", "checkpoints": ["vicuna"], "weightsGiB": 14}


@pytest.fixture(scope="module", params=["gpu", "production"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return render((request.param,), SITE, {"models": [*SITE["models"], MODEL]})


def pools_of(manifests: Manifests, gateway: Pod) -> tuple[Pool, ...]:
    """The pools in the file that a gateway reads, as its volumes have it."""
    file = names.settings_of(manifests, gateway).pools
    if file is None:
        return ()
    (mount,) = [one for one in gateway.container["volumeMounts"] if one["mountPath"] == str(PurePosixPath(file).parent)]
    # What is mounted by subPath never changes.
    assert "subPath" not in mount
    (volume,) = [one for one in gateway.spec["volumes"] if one["name"] == mount["name"]]
    config = manifests.get("ConfigMap", volume["configMap"]["name"])
    assert config is not None
    return PoolFile.model_validate_json(config["data"][file.name]).pools


def models_of(manifests: Manifests, pod: Pod) -> tuple[str, ...]:
    """Names of the models that a service serves, without aliases."""
    return tuple(one.partition("@")[0] for one in names.settings_of(manifests, pod).models)


def gateways(manifests: Manifests) -> list[Pod]:
    return [pod for pod in manifests.processes() if pod.program == "gateway"]


@pytest.mark.parametrize("check", [*CHECKS, check_scaling_queries, check_targets], ids=lambda check: check.__name__)
def test_what_it_names_exists(manifests: Manifests, check: Callable[[Manifests], list[str]]) -> None:
    assert check(manifests) == []


def test_a_pool_leads_to_pods_of_its_service_that_serve_the_models_that_it_claims(manifests: Manifests) -> None:
    (gateway,) = [pod for pod in gateways(manifests) if pools_of(manifests, pod)]
    assert gateway.name == "gateway"
    for pool in pools_of(manifests, gateway):
        pod = manifests.pod(pool.name)
        assert pod.program == pool.service
        assert pool.urls == (f"http://{pod.labels['pool']}:{pod.ports['http']}",)
        assert pool.models == models_of(manifests, pod)
        # The others of its service do not serve it as well, or answers would depend on the way.
        for other in manifests.processes():
            if other.program == pool.service and other.name != pool.name:
                assert not set(models_of(manifests, other)) & set(pool.models)


def test_a_pool_is_reached_by_the_gateway_alone(manifests: Manifests) -> None:
    network = Network(manifests)
    pool, service = manifests.pod("generate-vicuna"), manifests.pod("generate")
    assert network.may(manifests.pod("gateway"), pool, pool.ports["http"])
    assert not network.may(service, pool, pool.ports["http"])
    assert pool.spec["terminationGracePeriodSeconds"] >= stopping_s(manifests, pool)


def test_a_pool_scales_as_its_service_does_by_its_own_requests(manifests: Manifests) -> None:
    pool, service = (manifests.get("ScaledObject", name) for name in ("generate-vicuna", "generate"))
    assert pool is not None
    assert service is not None
    assert pool["spec"]["initialCooldownPeriod"] > starting_s(manifests.pod("generate-vicuna"))
    assert 'service="generate-vicuna"' in pool["spec"]["triggers"][0]["metadata"]["query"]
    text, expected = (json.dumps(one["spec"]["triggers"]) for one in (pool, service))
    assert text.replace("generate-vicuna", "generate") == expected


def test_a_model_scales_by_the_requests_that_the_gateway_counts_under_its_own_name_for_it() -> None:
    """The gateway calls the first model of a service by the service, whatever its Deployment is named."""
    first = {"name": "students", "service": "predict", "checkpoints": ["spam"], "canary": "candidate"}
    further = {"name": "students-rare", "service": "predict", "checkpoints": ["rare"]}
    manifests = render(("gpu",), SITE, {"models": [first, further, *SITE["models"][1:]]})
    (gateway,) = gateways(manifests)
    called = {
        url: one.name
        for one in destinations(names.settings_of(manifests, gateway), pools_of(manifests, gateway))
        for url in one.urls
    }
    for name in ("students", "students-rare"):
        scaled, pod = manifests.get("ScaledObject", name), manifests.pod(name)
        assert scaled is not None
        own = called[f"http://{name}:{pod.ports['http']}"]
        asked = re.findall(r'service="([\w-]+)"', json.dumps(scaled["spec"]["triggers"]).replace("\\", ""))
        assert len(asked) >= 8
        assert set(asked) == {own}
    assert called["http://students-canary:8101"] == "predict-canary"


def test_a_changed_file_of_pools_needs_no_new_pods(manifests: Manifests) -> None:
    assert manifests.get("ConfigMap", "fovea-pools") is not None


def test_deployments_of_one_model_a_service_have_no_pools() -> None:
    for name in ("gpu", "production"):
        assert not any(pools_of(deployment(name), pod) for pod in gateways(deployment(name)))
