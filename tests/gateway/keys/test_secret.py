"""`fovea keys --secret`: keys in a cluster, changed by several people from their own machines."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.access import KeyRing
from gateway.keys.cli import app
from gateway.settings import GatewaySettings
from tests.deploy.kubernetes_manifests import kubectl
from tests.gateway.keys.kubernetes_api import KubernetesApi, serving

pytestmark = pytest.mark.process


class Cluster:
    """A cluster as its operators and its gateway see it."""

    def __init__(self, api: KubernetesApi, folder: Path) -> None:
        self.api = api
        self._mounted = folder / "mounted.json"

    def keys(self, *arguments: str) -> Result:
        """The commands of an operator who has nothing but access to the cluster."""
        return CliRunner().invoke(app, [*arguments, "--secret", "fovea/fovea-keys"])

    def make(self, name: str) -> str:
        result = self.keys("create", "--name", name, "--scope", "embed")
        assert result.exit_code == 0, result.output
        return result.output.strip()

    def gateway(self) -> KeyRing:
        """A gateway that follows the Secret."""
        encoded = self.api.secrets["fovea-keys"]["data"]["keys.json"]
        self._mounted.write_bytes(base64.b64decode(encoded))
        return KeyRing(GatewaySettings(keys_file=self._mounted))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PATH", str(Path(kubectl()).parent), prepend=":")
    monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "kubectl"))
    api = KubernetesApi()
    with serving(api, tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        yield Cluster(api, tmp_path)


def test_a_key_made_on_one_machine_leaves_valid_what_was_made_on_others(cluster: Cluster) -> None:
    first = cluster.make("alices")
    cluster.api.secrets["fovea-keys"]["data"]["other"] = "eA=="
    second = cluster.make("bobs")
    gateway = cluster.gateway()
    assert [visitor and visitor.name for visitor in map(gateway.find, (first, second))] == ["alices", "bobs"]
    assert [line.split("\t")[0] for line in cluster.keys("list").output.splitlines()[1:]] == ["alices", "bobs"]
    assert cluster.keys("revoke", "alices").exit_code == 0
    gateway = cluster.gateway()
    assert gateway.find(first) is None
    assert gateway.find(second) is not None
    # What else somebody keeps in the Secret is theirs.
    assert cluster.api.secrets["fovea-keys"]["data"]["other"] == "eA=="


@pytest.mark.parametrize("has_secret", [True, False])
def test_a_change_that_another_has_overtaken_is_refused_and_loses_nobodys_key(
    cluster: Cluster, has_secret: bool
) -> None:
    made = [cluster.make("before")] if has_secret else []
    cluster.api.before_change = lambda: made.append(cluster.make("fasters"))
    result = cluster.keys("create", "--name", "slowers", "--scope", "embed")
    assert result.exit_code == 1
    assert "changed by somebody else meanwhile" in result.output
    assert "fovea-" not in result.output.replace("fovea/fovea-keys", "")  # no key that does not work is shown
    gateway = cluster.gateway()
    assert all(gateway.find(key) for key in made)
    again = cluster.make("slowers")
    assert cluster.gateway().find(again) is not None


def test_a_secret_with_no_keys_or_broken_ones_is_not_taken_for_one_to_replace(cluster: Cluster) -> None:
    cluster.api.keep({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "fovea-keys", "namespace": "fovea"}})
    key = cluster.make("first")
    assert cluster.gateway().find(key) is not None
    broken = base64.b64encode(json.dumps({"other": 1}).encode()).decode()
    cluster.api.secrets["fovea-keys"]["data"]["keys.json"] = broken
    result = cluster.keys("create", "--name", "x", "--scope", "embed")
    assert result.exit_code == 1
    assert "The Secret fovea/fovea-keys is not a keys file" in result.output
    assert cluster.api.secrets["fovea-keys"]["data"]["keys.json"] == broken


@pytest.mark.parametrize("reference", ["fovea-keys", "fovea/", "a/b/c"])
def test_a_secret_without_its_namespace_is_refused(reference: str) -> None:
    result = CliRunner().invoke(app, ["list", "--secret", reference])
    assert result.exit_code == 1
    assert "NAMESPACE/NAME" in result.output


def test_without_kubectl_or_a_cluster_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(Path(kubectl()).parent))
    unreached = CliRunner().invoke(app, ["list", "--secret", "fovea/fovea-keys"])
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = CliRunner().invoke(app, ["list", "--secret", "fovea/fovea-keys"])
    assert "kubectl, which is not on the path" in missing.output
    for result in (unreached, missing):
        assert result.exit_code == 1
        assert len(result.output.splitlines()) == 1
