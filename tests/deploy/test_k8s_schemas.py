"""Every object of the chart is what a cluster of the stated versions takes, with no field that it does not know."""

import copy
import functools
import json
import re
from typing import Any

import pytest

from tests.deploy.kubernetes_crds import SCHEMAS
from tests.deploy.kubernetes_manifests import (
    CHART,
    EVERYTHING,
    KUBERNETES,
    README,
    ROOT,
    Manifests,
    Object,
    deployment,
)

# Both of the package kubernetes-validate, the second beneath it.
kubernetes_validate: Any = pytest.importorskip("kubernetes_validate")
jsonschema: Any = pytest.importorskip("jsonschema")

# The README promises the first and says that the second was checked.
VERSIONS = (KUBERNETES, "1.37")


def check_schemas(manifests: Manifests, version: str) -> list[str]:
    """Return the errors of each object by its kind's schema; custom resources are the same for all versions."""
    refusals = ((one, refusal_of(json.dumps(one, sort_keys=True), version)) for one in manifests.objects)
    return [f"{one['kind']} {one['metadata']['name']} {refusal}" for one, refusal in refusals if refusal]


@functools.cache
def refusal_of(text: str, version: str) -> str | None:
    """Kept, since deployments have most objects in common and their schemas are large."""
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
@pytest.mark.parametrize("name", EVERYTHING)
def test_a_deployment_is_valid(name: str, version: str) -> None:
    assert check_schemas(deployment(name), version) == []


def test_the_readme_states_the_versions_that_are_checked() -> None:
    assert f"Kubernetes {VERSIONS[0]} or later, checked against the schemas of {VERSIONS[1]}" in (README).read_text()


def broken(kind: str, name: str, path: tuple[str | int, ...], value: Any) -> Manifests:
    """Production with one field of one object set to something else."""
    objects = copy.deepcopy(deployment("production").objects)
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
    kept = {path.name: path.read_text() for path in (CHART / "dashboards").glob("*.json")}
    config: Object | None = deployment("production").get("ConfigMap", "fovea-dashboards")
    assert config is not None
    assert config["data"] == kept


def test_folders_and_files_that_the_readme_names_exist() -> None:
    folders = set(re.findall(r"(?<![\w/])((?:charts|k8s)/[\w/.-]+)", README.read_text()))
    assert len(folders) >= 4
    for folder in folders:
        assert (ROOT / folder.rstrip(".")).exists(), folder
