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
    SITE,
    Manifests,
    Object,
    deployment,
    find_all,
    render,
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


def dashboards(namespace: str) -> dict[str, Any]:
    config: Object | None = render(("production",), SITE, namespace=namespace).get("ConfigMap", "fovea-dashboards")
    assert config is not None
    return {name: json.loads(text) for name, text in config["data"].items()}


def test_the_dashboards_of_the_cluster_are_all_that_there_are_with_the_queries_of_the_own_namespace() -> None:
    kept = {path.name: json.loads(path.read_text()) for path in (CHART / "dashboards").glob("*.json")}
    found = dashboards("one")
    assert found.keys() == {name.replace(".json", "-one.json") for name in kept}
    for name, dashboard in kept.items():
        own = found[name.replace(".json", "-one.json")]
        asked = [*find_all(own, "expr"), *(one for one in find_all(own, "query") if one != "prometheus")]
        for query in asked:
            selected = re.findall(r'\b(?:fovea_|process_|up\b)\w*(\{namespace="one")?', query)
            assert selected
            assert all(selected), query
        bare = re.sub(r'\{namespace=\\"one\\"(?:, |(\}))', lambda it: "" if it[1] else "{", json.dumps(own))
        assert json.loads(bare) == {**dashboard, "title": own["title"], "uid": own["uid"]}


def test_grafana_can_have_the_dashboards_of_two_releases_side_by_side() -> None:
    """Grafana keeps the files of all namespaces in one folder, and takes no two dashboards with one `uid`."""
    one, two = dashboards("one"), dashboards("two" * 20)
    assert not one.keys() & two.keys()
    for field in ("uid", "title"):
        values = [dashboard[field] for dashboard in (*one.values(), *two.values())]
        assert len(set(values)) == len(values)
    assert all(re.fullmatch(r"[\w-]{1,40}", dashboard["uid"]) for dashboard in (*one.values(), *two.values()))


def test_folders_and_files_that_the_readme_names_exist() -> None:
    folders = set(re.findall(r"(?<![\w/])((?:charts|k8s)/[\w/.-]+)", README.read_text()))
    assert len(folders) >= 4
    for folder in folders:
        assert (ROOT / folder.rstrip(".")).exists(), folder
