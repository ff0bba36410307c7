"""The chart, and the manifest that is made of it: `python -m tests.deploy.manifests` writes it (`make manifests`)."""

import hashlib
import subprocess
from typing import Final

from tests.processes import ROOT

CHART: Final = ROOT / "deploy" / "helm" / "tarry"
AT: Final = ("--kube-version", "1.34")
"""Helm, built from its source, takes Kubernetes 1.20 for granted."""
FILE: Final = ROOT / "deploy" / "kubernetes" / "tarry.yaml"
_HEAD: Final = """\
# Tarry on Kubernetes: one server, its volume, a Service and a network policy. Made from deploy/helm/tarry by `make manifests`.
#
#   kubectl create secret generic tarry-tokens --from-literal=operations=$(openssl rand -hex 32)
#   kubectl apply -f deploy/kubernetes/tarry.yaml
#
# Change the image to the one in your registry; docs/operations/kubernetes.md says more.
# Chart: {digest}
"""


def chart_digest() -> str:
    """One line that stands for the content of the chart."""
    files = sorted(path for path in CHART.rglob("*") if path.is_file())
    parts = [f"{path.relative_to(CHART)}\n".encode() + path.read_bytes() for path in files]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def rendered(helm: str) -> str:
    """The chart with its default values."""
    done = subprocess.run(
        [helm, "template", "tarry", CHART, *AT], capture_output=True, text=True, timeout=60, check=True
    )
    return _HEAD.format(digest=chart_digest()) + done.stdout


if __name__ == "__main__":
    FILE.write_text(rendered(str(ROOT / ".cache" / "linters" / "bin" / "helm")))
