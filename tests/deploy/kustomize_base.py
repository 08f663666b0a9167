"""Write k8s/base/fovea.yaml: what helm renders of the chart by its defaults, for those without Helm.

python -m tests.deploy.kustomize_base
"""

from tests.deploy.kubernetes_manifests import ROOT, deployment_text

BASE = ROOT / "k8s" / "base"
FILE = BASE / "fovea.yaml"
HEAD = "# Rendered from charts/fovea by `python -m tests.deploy.kustomize_base`: change the chart.\n"


def base() -> str:
    return HEAD + deployment_text("demo")


if __name__ == "__main__":
    FILE.write_text(base())
