"""Every manifest is what a cluster of the stated versions takes, with no field that it does not know."""

import copy
import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes_crds import SCHEMAS
from tests.deploy.kubernetes_manifests import (
    JOBS,
    K8S,
    OVERLAYS,
    ROOT,
    Manifests,
    Object,
    overlay,
    raw_files,
    render,
    with_plain_autoscalers,
)

# Both of the package kubernetes-validate, the second beneath it.
kubernetes_validate: Any = pytest.importorskip("kubernetes_validate")
jsonschema: Any = pytest.importorskip("jsonschema")

# The README promises the first and says that the second was checked.
VERSIONS = ("1.34", "1.37")


def check_schemas(manifests: Manifests, version: str) -> list[str]:
    """Return the errors of each object by its kind's schema; custom resources are the same for all versions."""
    refusals = ((one, refusal_of(json.dumps(one, sort_keys=True), version)) for one in manifests.objects)
    return [f"{one['kind']} {one['metadata']['name']} {refusal}" for one, refusal in refusals if refusal]


@functools.cache
def refusal_of(text: str, version: str) -> str | None:
    """Kept, since overlays have most objects in common and their schemas are large."""
    one = json.loads(text)
    try:
        if one["kind"] in SCHEMAS:
            jsonschema.Draft202012Validator(SCHEMAS[one["kind"]]).validate(one)
        else:
            kubernetes_validate.validate(one, version, strict=True)
    except jsonschema.ValidationError as refused:
        return f"at {refused.json_path}: {refused.message}"
    return None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", [*OVERLAYS, *JOBS, "hpa"])
def test_an_overlay_is_valid(name: str, version: str, tmp_path: Path) -> None:
    if name == "hpa":
        manifests = with_plain_autoscalers(tmp_path)
    else:
        manifests = render(K8S / name) if name in JOBS else overlay(name)
    assert check_schemas(manifests, version) == []


@pytest.mark.parametrize("file", raw_files(), ids=lambda file: file.relative_to(K8S).as_posix())
def test_a_file_is_valid_by_itself(file: Path) -> None:
    objects = tuple(one for one in yaml.safe_load_all(file.read_text()) if one is not None)
    assert objects
    assert check_schemas(Manifests(objects), VERSIONS[-1]) == []


def test_every_file_of_the_folder_is_in_some_kustomization() -> None:
    named = set()
    for kustomization in K8S.rglob("kustomization.yaml"):
        content = yaml.safe_load(kustomization.read_text())
        files = [*content.get("resources", ()), *(patch.get("path") for patch in content.get("patches", ()))]
        files += [env for generator in content.get("configMapGenerator", ()) for env in generator.get("envs", ())]
        named |= {(kustomization.parent / file).resolve() for file in files if file}
        named |= {(kustomization.parent / folder).resolve() for folder in content.get("components", ())}
    kept = {file for file in K8S.rglob("*") if file.suffix in (".yaml", ".env") and file.name != "kustomization.yaml"}
    assert kept <= named, sorted(kept - named)


def test_the_readme_states_the_versions_that_are_checked() -> None:
    assert (
        f"Kubernetes {VERSIONS[0]} or later, checked against the schemas of {VERSIONS[1]}"
        in (K8S / "README.md").read_text()
    )


def broken(kind: str, name: str, path: tuple[str | int, ...], value: Any) -> Manifests:
    """Production with one field of one object set to something else."""
    objects = copy.deepcopy(overlay("production").objects)
    (found,) = [one for one in objects if one["kind"] == kind and one["metadata"]["name"] == name]
    inner: Any = found
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return Manifests(objects)


POD = ("spec", "template", "spec")


@pytest.mark.parametrize(
    ("kind", "name", "path", "value"),
    [
        ("Deployment", "embed", (*POD, "terminationGracePeriod"), 75),
        ("Deployment", "embed", (*POD, "containers", 0, "livenessProbe", "periodSeconds"), "10"),
        ("Deployment", "gateway", (*POD, "containers", 0, "lifecycle", "preStop", "sleep"), {"second": 5}),
        ("Service", "embed", ("spec", "ports", 0, "port"), "http"),
        ("NetworkPolicy", "services", ("spec", "ingres"), []),
        ("PodDisruptionBudget", "gateway", ("spec", "minAvailable"), 0.5),
        ("ScaledObject", "embed", ("spec", "cooldown"), 1200),
        ("ScaledObject", "embed", ("spec", "triggers", 0, "metadata", "ignoreNullValues"), False),
        ("ScaledObject", "embed", ("spec", "fallback", "behaviour"), "static"),
        ("PodMonitor", "services", ("spec", "podMetricsEndpoints", 0, "interval"), "15 seconds"),
        ("PrometheusRule", "fovea", ("spec", "groups", 0, "rules", 0, "expression"), "up"),
        ("HTTPRoute", "fovea", ("spec", "rules", 0, "timeouts", "request"), "10 minutes"),
        ("Gateway", "fovea", ("spec", "listeners", 0, "tls", "certificates"), []),
    ],
)
def test_a_broken_field_is_found(kind: str, name: str, path: tuple[str | int, ...], value: Any) -> None:
    (problem,) = check_schemas(broken(kind, name, path, value), VERSIONS[-1])
    assert problem.startswith(f"{kind} {name} ")


def test_the_dashboards_of_the_cluster_are_all_that_there_are() -> None:
    kustomization = yaml.safe_load((ROOT / "monitoring" / "kustomization.yaml").read_text())
    (dashboards,) = kustomization["configMapGenerator"]
    kept = sorted(path.name for path in (ROOT / "monitoring" / "dashboards").glob("*.json"))
    assert sorted(dashboards["files"]) == [f"dashboards/{name}" for name in kept]
    config: Object | None = overlay("production").get("ConfigMap", dashboards["name"])
    assert config is not None
    assert sorted(config.get("data", ())) == kept


def test_the_rules_of_the_cluster_are_the_alerts_that_prometheus_reads() -> None:
    rule = overlay("production").get("PrometheusRule", "fovea")
    assert rule is not None
    alerts = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())
    assert rule["spec"] == alerts, "write it anew: python k8s/components/monitoring/prometheus_rule.py"


def test_folders_and_workloads_that_the_readme_names_exist() -> None:
    text = (K8S / "README.md").read_text()
    folders = set(re.findall(r"(?<![\w/])(k8s/[\w/.-]+|monitoring/[\w.]+)", text))
    assert len(folders) >= 5
    for folder in folders:
        assert (ROOT / folder.rstrip(".")).exists(), folder
    named = set(re.findall(r"(?:patch job|delete deployment|port-forward service/)\s*(\S+)", text))
    jobs = [one for name in JOBS for one in render(K8S / name).objects]
    manifests = (*overlay("production-canary").objects, *jobs)
    assert named
    assert named <= {one["metadata"]["name"] for one in manifests}
    assert set(re.findall(r"^\| `([\w-]+)` \|", text, re.MULTILINE)) == set(OVERLAYS)
