"""The kustomize base is the chart's rendering."""

import subprocess

from tests.deploy.kubernetes_manifests import deployment, kubectl, load
from tests.deploy.kustomize_base import BASE, FILE, base


def test_the_base_is_what_the_chart_renders_by_its_defaults() -> None:
    assert FILE.read_text() == base(), "write it anew: python -m tests.deploy.kustomize_base"


def test_kubectl_renders_the_objects_of_the_chart_in_their_namespace() -> None:
    done = subprocess.run([kubectl(), "kustomize", str(BASE)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    rendered = {(one["kind"], one["metadata"]["name"]): one for one in load(done.stdout).objects}
    assert (
        rendered.pop(("Namespace", "fovea"))["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    )
    assert {one["metadata"].pop("namespace") for one in rendered.values()} == {"fovea"}
    assert rendered == {(one["kind"], one["metadata"]["name"]): one for one in deployment("demo").objects}
