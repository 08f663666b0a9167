"""Values of the chart: what only an operator can know has no default, and what is wrong or lacking is named."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from services.core.settings import SettingsError, read_settings
from tests.deploy import kubernetes_names as names
from tests.deploy.kubernetes_manifests import (
    CHART,
    DEPLOYMENTS,
    EVERYTHING,
    JOBS,
    ON_GPUS,
    README,
    SITE,
    Manifests,
    Pod,
    build,
    deployment,
    jobs,
    merged,
    render,
)
from tests.deploy.kubernetes_network import Network
from tests.deploy.test_k8s_schemas import VERSIONS, check_schemas
from tests.documentation.reference import CHART_SETTINGS, chart_settings

UNITS = {"Mi": 2**20, "Gi": 2**30}
TELEMETRY: dict[str, Any] = {
    "endpoint": "http://collector.observability.svc:4318",
    "egress": [
        {
            "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}],
            "ports": [{"port": 4318}],
        }
    ],
}
UNNAMED = [{"name": service, "service": service} for service in ("predict", "generate", "embed", "score")]


def refusal(profiles: tuple[str, ...], *values: dict[str, Any]) -> str:
    """What helm says of values that it does not take."""
    built = build(profiles, merged(*values))
    assert built.returncode != 0
    return built.stderr


@pytest.mark.parametrize(
    ("profiles", "lacking", "said"),
    [
        (("gpu",), {"images": {"gateway": "localhost/fovea-gateway:0.1.0"}}, "images.gateway is localhost/"),
        (("gpu",), {"images": {"service": "localhost/fovea-service:0.1.0"}}, "images.service is localhost/"),
        (("gpu",), {"images": {"service": ""}}, "images.service is empty"),
        (("gpu",), {"images": {"vllm": ""}}, "images.vllm is empty, and generate is served by vLLM"),
        (("gpu",), {"store": {"url": ""}}, "store.url is empty"),
        (("gpu",), {"store": {"egress": []}}, "store.egress is empty"),
        (("gpu",), {"models": UNNAMED}, "predict has a GPU and names no checkpoints"),
        (("production",), {"route": {"host": ""}}, "route.host is empty"),
        (("production",), {"route": {"gatewayClass": ""}}, "route.gatewayClass, or route.parentRefs, is empty"),
        (("production",), {"route": {"trustedProxies": []}}, "route.trustedProxies is empty"),
        (("production", "cluster"), {"collections": {"url": ""}}, "collections.url is empty"),
        (("production", "cluster"), {"collections": {"apiServerEgress": []}}, "collections.apiServerEgress is empty"),
        (("gpu",), {"telemetry": {"endpoint": "http://collector:4318"}}, "telemetry.egress is empty"),
        (("gpu",), {"redis": {"url": "rediss://redis.example.org"}}, "redis.egress is empty"),
        (("gpu",), {"redis": {"enabled": False, "urlSecret": "ours"}}, "redis.egress is empty"),
        (("cluster",), {}, "cluster.yaml goes on top of profiles/production.yaml"),
        (("gpu", "cluster"), {"gateway": {"keysSecret": ""}}, "gateway.keysSecret is empty"),
        ((), {}, "monitoring.release is set and monitoring.enabled is false: name a profile"),
        (("gpu",), {"monitoring": {"release": ""}}, "monitoring.release is empty"),
        (("gpu",), {"rayJobs": JOBS["rayJobs"]}, "images.ray is empty"),
        (("gpu",), {"trainings": JOBS["trainings"]}, "images.jobs is localhost/"),
    ],
)
def test_what_is_not_said_is_named(profiles: tuple[str, ...], lacking: dict[str, Any], said: str) -> None:
    assert said in refusal(profiles, SITE, lacking)


def with_model(**changed: Any) -> dict[str, Any]:
    """The site with fields of its first model changed."""
    return {"models": [{**SITE["models"][0], **changed}, *SITE["models"][1:]]}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (with_model(service="rank"), 'models.0.service must be one of the following: "predict"'),
        (with_model(name="Predict_1"), 'models.0.name is "Predict_1": write a name of at most 42 lower-case letters'),
        (with_model(gpus=2), "models.0: Additional property gpus is not allowed"),
        (with_model(replicas={"min": -1, "max": 2}), "models.0.replicas.min: Must be greater than or equal to 0"),
        (
            with_model(replicas={"min": 3, "max": 2}, scaleToZero=False),
            "models: predict has replicas.min 3, which is over replicas.max 2",
        ),
        (with_model(gpu={"memoryShare": 30}), "models.0.gpu.memoryShare: Must be less than or equal to 1"),
        (
            with_model(gpu={"count": 0, "claim": "small"}),
            "predict names the GPU claim small, which gpuClaims does not have",
        ),
        (with_model(gpu={"count": 1, "claim": "small"}), "has gpu.count 1 and gpu.claim small: set gpu.count to 0"),
        (with_model(gpu={"count": 5}), "gpu.count 5, and a process without vLLM uses one GPU: set gpu.count to 1"),
        *(
            (
                {"services": {"generate": {"gpu": {"count": 4, "resource": parts, "memoryShare": 0.2}}}},
                f"generate has gpu.count 4 of {parts}, which may be parts of one GPU",
            )
            for parts in ("nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb")
        ),
        (
            {"images": JOBS["images"], "trainings": [{**JOBS["trainings"][0], "gpuResource": "nvidia.com/gpu.shared"}]},
            "trainings: one-node has 8 gpus of nvidia.com/gpu.shared, which may be parts of one GPU",
        ),
        (
            {"defaults": {"gpu": {"resource": "nvidia.com/gpu.shared"}}},
            "predict has a share of a GPU (nvidia.com/gpu.shared) and gpu.memoryShare 0.9",
        ),
        (with_model(replicas={"min": 1, "max": 2}), "predict has replicas.min 1 and scaleToZero true"),
        ({"route": {"enabled": True, "parentRefs": [{"name": "shared"}]}}, "route.parentRefs names others: give one"),
        ({"route": {"parentRefs": [{"section": "https"}]}}, "route.parentRefs.0"),
        (with_model(name="gateway"), "the name gateway is taken"),
        (with_model(name="score"), "the name score is taken"),
        (
            {"models": [{**SITE["models"][0], "name": "students"}, {**SITE["models"][0], "checkpoints": ["rare"]}]},
            "predict is not the first of predict, and the gateway has that name for something else",
        ),
        (
            with_model(name="score-canary") | {"services": {"score": {"canary": "next"}}},
            "the name score-canary is taken",
        ),
        (
            {
                "models": [*SITE["models"], {"name": "rare", "service": "score", "checkpoints": ["rare"]}],
                "services": {"score": {"canary": "next"}},
            },
            "rare has a canary, which only the first model of score can have: write canary into the entry score",
        ),
        ({"trainings": JOBS["trainings"][:1] * 2, "images": JOBS["images"]}, "trainings: the name one-node is taken"),
        ({"gpuClaims": [{"name": "small", "deviceClass": "gpu.nvidia.com"}] * 2}, "gpuClaims: the name small is taken"),
        (with_model(canary="spam@candidate"), 'models.0.canary is "spam@candidate": write an alias alone'),
        (
            with_model(checkpoints=["spam", "tickets"], canary="latest"),
            "the canary of predict follows latest, as its other pods do",
        ),
        (with_model(checkpoints=["spam@stable"], canary="stable"), "the canary of predict follows stable"),
        (
            {"modelCache": {"claim": True, "sizeGiB": 64}},
            "pods fill four fifths of it, and two versions of all models have 52 GiB (weightsGiB), so it needs 65",
        ),
        (with_model(env={"max models": "2"}), "models.0.env"),
        (with_model(vllm={"enabled": True}, service="generate"), "vLLM serves one checkpoint, and predict names 2"),
        (
            {"images": {"gateway": "registry.example.org/gateway"}},
            '"registry.example.org/gateway": write a full name with a tag',
        ),
        ({"store": {"url": "ftp://example.org"}}, 'store.url is "ftp://example.org": write an address such as s3://'),
        ({"scaling": {"target": 70}}, "scaling.target: Must be less than or equal to 1"),
        ({"collections": {"placement": "both"}}, "collections.placement must be one of the following"),
        (
            {"route": {"trustedProxies": ["the proxy"]}},
            'route.trustedProxies.0 is "the proxy": write an address or a network',
        ),
        ({"storageClasses": {"models": "fast"}}, "Additional property models is not allowed"),
        ({"store": {"size": "10GB"}}, 'store.size is "10GB": write a size such as 200Gi'),
        ({"collections": {"size": 200}}, 'collections.size is "200": write a size such as 200Gi'),
        (
            with_model(resources={"memory": "8 GB"}),
            'models.0.resources.memory is "8 GB": write an amount',
        ),
        ({"route": {"trustedProxies": ["10.42.0.0/33"]}}, 'route.trustedProxies.0 is "10.42.0.0/33": write an address'),
        ({"route": {"trustedProxies": ["fd00::/129"]}}, 'route.trustedProxies.0 is "fd00::/129": write an address'),
        (
            {"store": {"egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/33"}}]}]}},
            'store.egress.0.to.0.ipBlock.cidr is "192.0.2.0/33": write a network',
        ),
        (
            {"jobs": {"egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0"]}}]}]}},
            'jobs.egress.0.to.0.ipBlock.except.0 is "10.1.0.0": write a network',
        ),
        ({"imagePullSecrets": ["corp-pull"]}, 'imagePullSecrets.0 is "corp-pull": write {name: corp-pull}'),
        (with_model(name="redis"), "models: the name redis is taken by Redis: choose another"),
        (
            {"services": {"predict": {"env": {"FOVEA_PREDICT_MODELS": "foo"}}}},
            "env of predict has FOVEA_PREDICT_MODELS, which the chart sets: write it as checkpoints",
        ),
        (
            {"gateway": {"env": {"FOVEA_GATEWAY_RATE_LIMIT": "9/minute"}}},
            "gateway.env has FOVEA_GATEWAY_RATE_LIMIT, which the chart sets: write it as gateway.rateLimit",
        ),
        (
            {"gateway": {"env": {"FOVEA_GATEWAY_EMBED_URLS": "http://there:1"}}},
            "gateway.env has FOVEA_GATEWAY_EMBED_URLS, which the chart sets: write it as models",
        ),
        ({"gateway": {"env": {"FOVEA_GATEWAY_PORT": 9090}}}, "FOVEA_GATEWAY_PORT, which the chart sets: leave it out"),
        (
            {"defaults": {"env": {"FOVEA_SIGNING_SECRET_FILE": "/tmp/secret"}}},
            "env of predict has FOVEA_SIGNING_SECRET_FILE, which the chart sets: write it as signingSecret",
        ),
        (
            {"jobs": {"env": {"FOVEA_STORE_URL": "s3://other"}}},
            "jobs.env has FOVEA_STORE_URL, which the chart sets: write it as store.url",
        ),
        (
            {"services": {"generate": {"env": {"FOVEA_GENERATE_VLLM_URL": "http://other:8000"}}}},
            "env of generate has FOVEA_GENERATE_VLLM_URL, which the chart sets: write it as vllm.enabled",
        ),
        *(
            ({"services": {"generate": {"vllm": {"args": [given]}}}}, f"vllm.args of generate has {said}")
            for given, said in (
                ("--port=9000", "--port, which the chart sets: leave it out"),
                ("--api_key", "--api_key, which the chart sets: write it as the key vllm of signingSecret"),
                ("--tensor-parallel-size=2", "--tensor-parallel-size, which the chart sets: write it as gpu.count"),
            )
        ),
        (
            with_model(resources={"memory": "3.5Gi", "memoryLimit": "3500Mi"}),
            "models: predict has resources.memory 3.5Gi, which is over memoryLimit 3500Mi: raise memoryLimit",
        ),
        ({"defaults": {"vllm": {"resources": {"memory": "65Gi"}}}}, "generate has vllm.resources.memory 65Gi, which"),
        ({"defaults": {"vllm": {"sharedMemory": "96Gi"}}}, "vllm.sharedMemory 96Gi, which counts as memory"),
        ({"gateway": {"resources": {"memory": "2G"}}}, "gateway has resources.memory 2G, which is over memoryLimit"),
        ({"redis": {"resources": {"memoryLimit": "1M"}}}, "redis has resources.memory 256Mi, which is over"),
        (
            {"images": JOBS["images"], "trainings": [{**JOBS["trainings"][0], "resources": {"memory": "1Ti"}}]},
            "trainings: one-node has resources.memory 1Ti, which is over memoryLimit 256Gi",
        ),
        ({"services": {"embed": {"vllm": {"enabled": True}}}}, "services.embed.vllm.enabled is true, and vLLM serves"),
        (with_model(vllm={"enabled": True}), "models: predict has vllm.enabled, and vLLM serves generate alone"),
        (
            {"models": [*SITE["models"], {"name": "rare", "service": "predict", "checkpoints": ["tickets@next"]}]},
            "models: predict and rare both serve tickets",
        ),
        ({"caBundle": "authorities"}, "caBundle: Invalid type"),
        ({"scalling": {}}, "Additional property scalling is not allowed"),
        ({"pods": {"serviceAccount": {"annotations": {"a": "b"}}}}, "annotations need a name of its own"),
        ({"scaling": {"enabled": False}}, "predict scales to zero, which needs scaling.enabled"),
        ({"services": {"embed": {"replicas": {"min": 1, "max": 2}}}}, "set collections.placement to apart or shared"),
        ({"gateway": {"replicas": {"min": 9}}}, "gateway.replicas.min is 9, which is over gateway.replicas.max 8"),
        # of bytes
        (with_model(resources={"memory": 8}), 'models.0.resources.memory is "8": write an amount of memory such as'),
        (with_model(resources={"cpu": "4 cores"}), 'models.0.resources.cpu is "4 cores": write a number of processors'),
        (with_model(source="lmsys/vicuna"), 'models.0.source is "lmsys/vicuna": write hf://owner/name'),
        (with_model(source="s3://fovea/vicuna"), 'models.0.source is "s3://fovea/vicuna": write hf://owner/name'),
        (with_model(checkpoints=["a b"]), 'models.0.checkpoints.0 is "a b": write the name of a checkpoint'),
        (with_model(checkpoints=["spam", "spam"]), "models.0.checkpoints: array items[0,1] must be unique"),
        (with_model(canary="next one"), 'models.0.canary is "next one": write an alias alone, such as candidate'),
        (with_model(gpu={"resource": "gpu"}), 'models.0.gpu.resource is "gpu": write a resource of the device plugin'),
        ({"gateway": {"rateLimit": "fast"}}, 'gateway.rateLimit is "fast": write a rate such as 600/minute'),
        ({"gateway": {"rateLimit": "0/minute"}}, 'gateway.rateLimit is "0/minute": write a rate such as 600/minute'),
        ({"gateway": {"keysSecret": "My_Keys"}}, 'gateway.keysSecret is "My_Keys": write the name of a Secret'),
        ({"redis": {"url": "redis:6379"}}, 'redis.url is "redis:6379": write an address such as rediss://'),
        ({"telemetry": {"endpoint": "collector:4318"}}, 'telemetry.endpoint is "collector:4318": write an address'),
        ({"route": {"host": "https://example.org"}}, 'route.host is "https://example.org": write the name of a host'),
        (
            {"collections": {"backup": {"schedule": "daily"}}},
            'collections.backup.schedule is "daily": write the five fields of a cron schedule',
        ),
        ({"caBundle": {"configMap": "Authorities"}}, 'caBundle.configMap is "Authorities": write the name of a'),
        ({"caBundle": {"key": "certs/all"}}, 'caBundle.key is "certs/all": write a key of the ConfigMap'),
        (
            {"rayJobs": [{**JOBS["rayJobs"][0], "images": "photos"}]},
            'rayJobs.0.images is "photos": write an address such as s3://',
        ),
        ({"jobs": {"egress": [{"to": [{"ipBlok": {}}]}]}}, "jobs.egress.0.to.0: Additional property ipBlok"),
        (
            {"jobs": {"egress": [{"to": [{"podSelector": {}}], "ports": [{"port": 70000}]}]}},
            "jobs.egress.0.ports.0.port: Must be less than or equal to 65535",
        ),
    ],
)
def test_what_is_wrong_is_named_with_what_would_be_right(wrong: dict[str, Any], said: str) -> None:
    assert said in refusal(("gpu",), SITE, wrong)


def sections(values: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the maps of the chart's own values that hold values of their own."""
    for name, inner in values.items():
        if isinstance(inner, dict) and (inner or path == ("services",)):
            yield (*path, name)
            yield from sections(inner, (*path, name))


SECTIONS = list(sections(yaml.safe_load((CHART / "values.yaml").read_text())))


@pytest.mark.parametrize("path", SECTIONS, ids=".".join)
def test_a_section_without_values_is_named(path: tuple[str, ...]) -> None:
    """Such as `route:` with everything below it commented out, which takes the defaults away."""
    emptied: Any = None
    for name in reversed(path):
        emptied = {name: emptied}
    *parents, name = path
    assert f"{'.'.join(parents) or '(root)'}: {name} is required" in refusal((), emptied)


def test_a_training_keeps_the_defaults_of_the_resources_that_it_does_not_name() -> None:
    training = {**JOBS["trainings"][0], "resources": {"cpu": 8}}
    (job,) = render(("gpu",), SITE, {"images": JOBS["images"], "trainings": [training]}).of_kind("Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    requests, limits = container["resources"]["requests"], container["resources"]["limits"]
    assert (requests["cpu"], requests["memory"], limits["memory"]) == ("8", "128Gi", "256Gi")


def test_numbers_of_processors_need_no_quotes() -> None:
    for cpu, written in ((4, "4"), (0.5, "0.5"), ("500m", "500m")):
        manifests = render(("gpu",), SITE, {"services": {"embed": {"resources": {"cpu": cpu}}}})
        assert manifests.pod("embed").container["resources"]["requests"]["cpu"] == written


@pytest.mark.parametrize(
    ("process", "wrong", "right"),
    [
        ("predict", "FOVEA_PREDICT_MAX_BATCHSIZE", "FOVEA_PREDICT_MAX_BATCH_SIZE"),
        ("score", "FOVEA_LOG_LEVLE", "FOVEA_LOG_LEVEL"),
        ("embed", "FOVEA_IMAGE_URLS", "FOVEA_EMBED_IMAGE_URLS"),
        ("gateway", "FOVEA_GATEWAY_MAXKEYS_FILE", "FOVEA_GATEWAY_KEYS_FILE"),
    ],
)
def test_a_misspelt_setting_is_refused_by_the_chart_as_by_the_process_with_the_nearest_name(
    process: str, wrong: str, right: str
) -> None:
    env = {"env": {wrong: "1"}}
    said = refusal(("gpu",), SITE, {"gateway": env} if process == "gateway" else {"services": {process: env}})
    assert f"env has {wrong}, which is not a setting of {process}; did you mean {right}?" in said
    with names.only_environment({wrong: "1"}), pytest.raises(SettingsError, match=f"{wrong} .* mean {right}"):
        read_settings(names.SETTINGS[process])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            with_model(env={"FOVEA_EMBED_DTYPE": "float16"}),
            "env of predict has FOVEA_EMBED_DTYPE, which",
        ),
        ({"defaults": {"env": {"FOVEA_EMBED_DTYP": "float16"}}}, "defaults.env has FOVEA_EMBED_DTYP, which is not"),
        ({"jobs": {"env": {"FOVEA_STOR_URL": "s3://a"}}}, "jobs.env has FOVEA_STOR_URL, which is not a setting"),
        (with_model(env={"FOVEA_": "1"}), "env of predict has FOVEA_, which is not a setting of predict"),
    ],
)
def test_a_setting_that_nobody_reads_there_is_refused(values: dict[str, Any], said: str) -> None:
    assert said in refusal(("gpu",), SITE, values)


def test_settings_of_one_service_may_stand_among_those_of_all_and_libraries_have_variables_of_their_own() -> None:
    env = {"FOVEA_EMBED_DTYPE": "float16", "FOVEA_LOG_FORMAT": "json", "OMP_NUM_THREADS": 2}
    manifests = render(("gpu",), SITE, {"defaults": {"env": env}, "jobs": {"env": {"FOVEA_AUDIT_LOG": "/tmp/audit"}}})
    assert names.settings_of(manifests, manifests.pod("embed")).dtype == "float16"
    assert names.check_settings(manifests) == []


def test_the_number_of_collections_holds_where_they_are_and_nowhere_else() -> None:
    env = {"env": {"FOVEA_EMBED_MAX_COLLECTIONS": 7}}
    manifests = render(("production",), SITE, {"services": {"embed": env}})
    for name, allowed in (("collections", 7), ("embed", 0)):
        assert names.settings_of(manifests, manifests.pod(name)).max_collections == allowed


def test_the_chart_knows_the_settings_that_processes_have() -> None:
    assert CHART_SETTINGS.read_text() == chart_settings(), "write them anew: python -m tests.documentation"


def test_labels_may_be_called_like_values_and_networks_may_be_of_both_versions() -> None:
    labels = {"size": "large", "memory": "high"}
    render(
        ("production",),
        SITE,
        {
            "pods": {"nodeSelector": labels},
            "route": {"trustedProxies": ["10.42.0.7", "fd00::/128", "::1"]},
            "network": {"egress": [{"to": [{"podSelector": {"matchLabels": labels}}, {"ipBlock": {"cidr": "::/0"}}]}]},
        },
    )


@pytest.mark.parametrize("name", ON_GPUS)
def test_as_it_is_in_the_repository_nothing_can_be_applied_to_a_cluster_by_accident(name: str) -> None:
    assert build(DEPLOYMENTS[name][0], {}).returncode != 0


def test_the_demonstration_needs_nothing_said_and_runs_images_that_are_on_the_node_or_nowhere() -> None:
    for pod in deployment("demo").processes():
        assert pod.container["image"].startswith("localhost/")
        assert pod.container["imagePullPolicy"] == "Never"


def test_two_releases_in_one_cluster_have_nothing_in_common() -> None:
    for profiles in (("production",), ("production", "cluster")):
        first, second = (render(profiles, SITE, namespace=namespace) for namespace in ("one", "two"))
        for manifests, own, other in ((first, "one", "two"), (second, "two", "one")):
            text = str(manifests.objects)
            assert f"'{other}'" not in text
            assert f'namespace="{other}"' not in text
            assert f'namespace="{own}"' in text
            assert {one["metadata"].get("namespace", own) for one in manifests.objects} == {own}


def test_what_a_cluster_asks_of_pods_is_on_every_pod() -> None:
    pods = {
        "serviceAccount": {"name": "fovea", "annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/f"}},
        "priorityClass": "serving",
        "nodeSelector": {"pool": "models"},
        "tolerations": [{"key": "models", "operator": "Exists"}],
        "gpuRuntimeClass": "nvidia",
    }
    asked = {"pods": pods, "imagePullSecrets": [{"name": "registry"}], "storageClass": "fast", "store": {"secret": ""}}
    manifests = render(("gpu",), SITE, JOBS, asked)
    for pod in manifests.pods():
        assert pod.spec["serviceAccountName"] == "fovea"
        assert pod.spec["priorityClassName"] == "serving"
        assert pod.spec["nodeSelector"] == {"pool": "models"}
        assert {"key": "models", "operator": "Exists"} in pod.spec["tolerations"]
        assert pod.spec["imagePullSecrets"] == [{"name": "registry"}]
        has_gpu = any("nvidia.com/gpu" in str(one) for one in pod.spec["tolerations"])
        assert pod.spec.get("runtimeClassName") == ("nvidia" if has_gpu else None)
    (account,) = manifests.of_kind("ServiceAccount")
    assert account["metadata"]["annotations"] == pods["serviceAccount"]["annotations"]  # type: ignore[index]
    # Its identity opens the store, and no key does.
    assert not any("AWS_" in str(pod.spec) for pod in manifests.processes())
    assert {one["spec"]["storageClassName"] for one in manifests.of_kind("PersistentVolumeClaim")} == {"fast"}


def test_what_operators_make_runs_where_the_cluster_asks_for_it_from_the_registry_that_it_names() -> None:
    pods = {
        "priorityClass": "serving",
        "nodeSelector": {"pool": "models"},
        "tolerations": [{"key": "models", "operator": "Exists"}],
    }
    asked = {"pods": pods, "imagePullSecrets": [{"name": "registry"}]}
    (postgres,) = render(("production", "cluster"), SITE, asked).of_kind("Cluster")
    affinity = postgres["spec"]["affinity"]
    assert (affinity["nodeSelector"], affinity["tolerations"]) == (pods["nodeSelector"], pods["tolerations"])
    assert (postgres["spec"]["priorityClassName"], postgres["spec"]["imagePullSecrets"]) == (
        "serving",
        [{"name": "registry"}],
    )


@pytest.mark.parametrize("values", [{}, {"storageClass": "disks", "storageClasses": {"postgres": "fast"}}])
def test_what_operators_make_has_a_disk_of_the_class_that_is_named_and_else_the_cluster_s(
    values: dict[str, Any],
) -> None:
    (postgres,) = render(("production", "cluster"), SITE, values).of_kind("Cluster")
    disks = [postgres["spec"][name] for name in ("storage", "walStorage")]
    assert [disk.get("storageClass") for disk in disks] == (["fast"] * 2 if values else [None] * 2)


def test_a_claim_can_have_a_storage_class_of_its_own() -> None:
    """Several pods write some of them, which few classes allow."""
    classes = {"model-cache": "files", "vllm-cache": "files", "runs": "files", "embeddings": ""}
    asked = {"storageClass": "disks", "storageClasses": classes, "modelCache": {"claim": True}}
    claims = render(("gpu",), SITE, JOBS, asked).of_kind("PersistentVolumeClaim")
    found = {one["metadata"]["name"]: one["spec"]["storageClassName"] for one in claims}
    expected = dict.fromkeys(("model-cache", "vllm-cache", "runs"), "files")
    assert found == expected | dict.fromkeys(("embed-collections", "embeddings"), "disks")


def test_a_large_number_is_a_setting_as_it_is_written() -> None:
    env = {"FOVEA_EMBED_INDEX_DEVICE_BYTES": 8589934592, "FOVEA_EMBED_BURST_S": 0.25, "FOVEA_TELEMETRY": False}
    manifests = render(("gpu",), SITE, {"services": {"embed": {"env": env}}})
    found = {one["name"]: one.get("value") for one in manifests.pod("embed").container["env"]}
    assert [found[name] for name in env] == ["8589934592", "0.25", "false"]


def test_where_a_namespace_has_users_of_its_own_no_pod_names_one() -> None:
    for pod in render(("gpu",), SITE, JOBS, {"pods": {"setUser": False}}).pods():
        context = pod.spec["securityContext"]
        assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_what_only_gateways_read_leaves_the_other_pods_as_they_are() -> None:
    before, after = (
        render(("production",), SITE, {"gateway": {"rateLimit": rate}, "route": {"trustedProxies": [proxies]}})
        for rate, proxies in (("5/minute", "10.42.0.0/16"), ("6/minute", "10.43.0.0/16"))
    )
    changed = {
        pod.name
        for pod in before.pods()
        if pod.spec != after.pod(pod.name).spec or pod.labels != after.pod(pod.name).labels
    }
    assert changed == {"gateway", "gateway-collections"}
    annotations = [
        [pod.workload["spec"]["template"]["metadata"].get("annotations") for pod in one.pods()]
        for one in (before, after)
    ]
    assert annotations[0] == annotations[1]


def test_keda_asks_the_prometheus_of_the_monitorings_namespace() -> None:
    manifests = render(("gpu",), SITE, {"monitoring": {"namespace": "observability"}})
    text = str(manifests.of_kind("ScaledObject"))
    assert set(re.findall(r"'serverAddress': '([^']+)'", text)) == {"http://prometheus-operated.observability.svc:9090"}


def test_every_image_can_come_from_another_registry() -> None:
    there = "mirror.example.org/"
    names = ("gateway", "service", "jobs", "vllm", "ray", "redis", "postgres")
    images = {name: f"{there}{name}:1" for name in names}
    for profiles, values in ((("gpu",), JOBS), (("production", "cluster"), {})):
        text = str(render(profiles, SITE, values, {"images": images}).objects)
        assert all(found.startswith(there) for found in re.findall(r"'(?:image|imageName)': '([^']+)'", text))


@pytest.mark.parametrize("name", ["gpu", "production", "production-canary"])
def test_a_gpu_computes_what_the_operator_named_and_no_starter_unasked(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.processes():
        settings = names.settings_of(manifests, pod)
        if pod.program != "gateway":
            (named,) = [one["checkpoints"] for one in SITE["models"] if one["service"] == pod.program]
            assert list(settings.models) == named


@pytest.mark.parametrize(
    ("service", "checkpoints"), [("predict", ["spam", "tickets@stable"]), ("generate", ["a@stable"])]
)
def test_a_canary_serves_its_alias_of_every_checkpoint_also_where_the_stable_pods_name_another(
    service: str, checkpoints: list[str]
) -> None:
    entry = {"name": service, "service": service, "checkpoints": checkpoints, "canary": "candidate"}
    manifests = render(("gpu",), SITE, {"models": [entry]})
    stable, canary = (names.settings_of(manifests, manifests.pod(name)) for name in (service, f"{service}-canary"))
    assert list(stable.models) == checkpoints
    assert list(canary.models) == [one.partition("@")[0] for one in checkpoints]
    assert canary.alias == "candidate"


def test_a_release_without_embed_has_neither_collections_nor_an_address_of_them() -> None:
    without = {"models": [one for one in SITE["models"] if one["service"] != "embed"]}
    manifests = render(("production",), SITE, without)
    (gateway,) = [pod for pod in manifests.processes() if pod.program == "gateway"]
    assert names.settings_of(manifests, gateway).collections_urls == ()
    assert names.check_addresses(manifests) == []
    # PostgreSQL and a nightly backup would run for nobody.
    said = "collections.placement is shared, and no model is of the service embed"
    assert said in refusal(("production", "cluster"), SITE, without)


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
    claims = {name: claim_of_collections(deployment(name)) for name in DEPLOYMENTS if name != "cluster"}
    assert {claim["metadata"]["name"] for claim in claims.values()} == {"embed-collections"}
    # A claim that has more than is asked for refuses the whole object.
    assert claims["gpu"] == claims["production"] == claims["production-canary"]


@pytest.mark.parametrize("name", ["gpu", "production"])
def test_prometheus_of_kube_prometheus_stack_selects_every_monitor_and_rule(name: str) -> None:
    selected = deployment(name).of_kind("PodMonitor", "PrometheusRule")
    assert len(selected) == 3
    for one in selected:
        assert one["metadata"]["labels"]["release"] == SITE["monitoring"]["release"]


def test_traces_reach_the_collector_that_the_operator_names() -> None:
    manifests = render(("production",), SITE, {"telemetry": TELEMETRY})
    network = Network(manifests)
    (rule,) = TELEMETRY["egress"]
    for pod in manifests.pods():
        leads_there = {"ports": rule["ports"], "to": rule["to"][0]} in network.ways_out(pod)
        assert leads_there == (pod.program in names.SETTINGS), pod.name
    for pod in manifests.processes():
        assert names.settings_of(manifests, pod).telemetry
        assert manifests.environment(pod)["OTEL_EXPORTER_OTLP_ENDPOINT"] == TELEMETRY["endpoint"]


@pytest.mark.parametrize("address", [{"url": "rediss://redis.example.org"}, {"enabled": False, "urlSecret": "ours"}])
def test_every_process_and_no_job_reaches_the_redis_that_the_operator_names(address: dict[str, Any]) -> None:
    rule: dict[str, Any] = {"to": [{"ipBlock": {"cidr": "203.0.113.9/32"}}], "ports": [{"port": 6380}]}
    manifests = render(("gpu",), SITE, {"redis": {**address, "egress": [rule]}})
    network = Network(manifests)
    for pod in manifests.pods():
        leads_there = {"ports": rule["ports"], "to": rule["to"][0]} in network.ways_out(pod)
        assert leads_there == (pod.program in names.SETTINGS), pod.name
    assert not [pod for pod in manifests.pods() if pod.name == "redis"]


def test_behind_a_route_of_the_operators_own_the_gateway_believes_the_proxies_that_are_named() -> None:
    manifests = render(("production",), SITE, {"route": {"enabled": False, "host": "", "gatewayClass": ""}})
    assert not manifests.of_kind("Gateway", "HTTPRoute")
    gateways = [pod for pod in manifests.processes() if pod.program == "gateway"]
    assert len(gateways) == 2
    for pod in gateways:
        assert names.settings_of(manifests, pod).trusted_proxies == tuple(SITE["route"]["trustedProxies"])


def test_a_route_attaches_to_the_gateways_and_sections_that_are_named_and_makes_none() -> None:
    parents = [
        {"name": "shared", "namespace": "infra", "sectionName": "https"},
        {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "inner", "port": 8443},
    ]
    manifests = render(("production",), SITE, {"route": {"gatewayClass": "", "parentRefs": parents}})
    (route,) = manifests.of_kind("HTTPRoute")
    assert manifests.of_kind("Gateway") == []
    assert route["spec"]["parentRefs"] == parents
    own = deployment("production").get("HTTPRoute", "fovea")
    assert own is not None
    assert own["spec"]["parentRefs"] == [{"name": "fovea", "sectionName": "https"}]
    assert {**own["spec"], "parentRefs": parents} == route["spec"]
    for version in VERSIONS:
        assert check_schemas(manifests, version) == []


def num_bytes(quantity: str) -> int:
    return int(quantity[:-2]) * UNITS[quantity[-2:]]


def disks(pod: Pod) -> dict[str, int]:
    """The size limit of each volume on the node's disk."""
    volumes = [one for one in pod.spec.get("volumes", ()) if one.get("emptyDir", {}).get("medium", "") == ""]
    return {one["name"]: num_bytes(one["emptyDir"]["sizeLimit"]) for one in volumes if "emptyDir" in one}


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_pod_asks_for_the_disk_that_its_volumes_may_take_and_its_copies_of_checkpoints_stay_within(name: str) -> None:
    manifests = deployment(name)
    for pod in manifests.pods():
        # A container that does not stay may use what is free meanwhile.
        beside = [one for one in pod.spec.get("initContainers", ()) if one.get("restartPolicy") == "Always"]
        parts, taken = [one["resources"] for one in (pod.container, *beside)], sum(disks(pod).values())
        asked, limit = (
            sum(num_bytes(one[kind]["ephemeral-storage"]) for one in parts) for kind in ("requests", "limits")
        )
        assert limit >= asked
        assert limit >= taken, pod.name
        assert asked >= taken, pod.name
        if "checkpoints" in disks(pod):
            kept = names.settings_of(manifests, pod).checkpoint_cache_max_bytes
            # Beside the files there are manifests, and blocks that are not full.
            assert kept <= 0.95 * disks(pod)["checkpoints"], pod.name


def secrets_of_the_store(pod: Pod) -> set[str]:
    sources = [one.get("valueFrom", {}).get("secretKeyRef", {}) for one in pod.container.get("env", ())]
    return {one["name"] for one in sources if one.get("key", "").startswith("AWS_")}


def test_services_read_the_store_with_credentials_of_their_own_and_jobs_write_with_others() -> None:
    for pod in deployment("production-canary").processes():
        assert secrets_of_the_store(pod) == (set() if pod.program == "gateway" else {"fovea-store"}), pod.name
    for pod in jobs().pods():
        if pod.program in ("import", "train"):
            assert secrets_of_the_store(pod) == {"fovea-store-writer"}, pod.name


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_metrics_server_is_named_as_needed_where_something_scales_by_cpu(name: str) -> None:
    scaled = deployment(name).of_kind("ScaledObject")
    assert ("metrics-server" in needs(name)) == (
        "cpu" in [t["type"] for one in scaled for t in one["spec"]["triggers"]]
    )


def needs(name: str) -> str:
    """The needs of a deployment by the guide, with those of the one that it names."""
    profile = DEPLOYMENTS[name][0][-1:]
    row = re.search(rf"^\| `{profile[0] if profile else name}` \|.*\|(.*)\|$", README.read_text(), re.MULTILINE)
    assert row is not None
    same = re.search(r"what `([\w-]+)` needs", row[1])
    return row[1] + (needs(same[1]) if same else "")


def test_a_job_of_a_new_image_imports_the_same_source_once_and_one_of_another_source_again() -> None:
    def imports(**changed: Any) -> tuple[str, str]:
        """The alias that marks the import as done, and the name of its job."""
        (entry,) = [one for one in JOBS["models"] if "source" in one]
        images = {**SITE["images"], "service": changed.pop("service", SITE["images"]["service"])}
        (job,) = render(("gpu",), SITE, {"models": [{**entry, **changed}], "images": images}).of_kind("Job")
        (container,) = job["spec"]["template"]["spec"]["containers"]
        (once,) = [one for one in container["command"] if one.startswith("--once=")]
        return once, job["metadata"]["name"]

    mark, name = imports()
    for changed in ({"weightsGiB": 15}, {"service": "registry.example.org/vision/fovea-service:0.2.0-cuda"}):
        again, other_job = imports(**changed)
        assert again == mark
        assert other_job != name
    assert imports(source="hf://lmsys/vicuna-7b-v1.5@main")[0] != mark


def test_a_job_that_is_applied_again_is_the_same_and_one_that_changes_is_another() -> None:
    def named(**changed: Any) -> set[str]:
        training = {**JOBS["trainings"][0], **changed}
        objects = render(("gpu",), SITE, JOBS, {"trainings": [training]}).of_kind("Job", "RayJob")
        assert not any("suspend" in one["spec"] for one in objects)
        return {one["metadata"]["name"] for one in objects}

    assert named() == named()
    # Kubernetes changes no job's pods, so whatever they are made of names another one.
    images = {**JOBS["images"], "service": "registry.example.org/vision/fovea-service:0.2.0-cuda"}
    later = {one["metadata"]["name"] for one in render(("gpu",), SITE, JOBS, {"images": images}).of_kind("Job")}
    assert not later & {one["metadata"]["name"] for one in jobs().of_kind("Job")}
    (left,), (new,) = named() - named(gpus=4), named(gpus=4) - named()
    assert left.startswith("train-one-node-")
    assert new.startswith("train-one-node-")
    assert left != new
