"""Writes manifests/install.yaml and manifests/rbac.yaml from the chart: `make manifests`."""

import tempfile
from pathlib import Path

from tests.install.helm import CHART, Helm

MANIFESTS = CHART.parents[1]

_INSTALL = """\
# A second kube-scheduler with Kerf as its sidecar, all in one file: kubectl apply -f manifests/install.yaml
# Pods with `schedulerName: kerf-scheduler` are placed by it; see manifests/samples/.
#
# Written from the chart in manifests/helm/kerf by `make manifests`; with Helm, use the chart. The image is built from
# the Dockerfile: push it where the cluster's nodes can pull it and name it below.
"""
_RBAC = """\
# What Kerf may do where it runs beside the cluster's own kube-scheduler. manifests/install.yaml brings its own service
# account and does not need this file. Written from the chart in manifests/helm/kerf by `make manifests`.
#
# For another namespace change it wherever kube-system stands.
"""


def render_manifests(helm: Helm) -> dict[Path, str]:
    """The text of each file."""
    template = ("template", "--namespace", "kube-system", "--kube-version", "v1.36.1", str(CHART))
    install = helm(*template, "--name-template", "kerf-scheduler")
    parts = [f"--show-only=templates/{name}.yaml" for name in ("serviceaccount", "rbac")]
    rbac = helm(*template, "--name-template", "kerf", "--set", "mode=service", *parts)
    return {MANIFESTS / "install.yaml": _INSTALL + _plain(install), MANIFESTS / "rbac.yaml": _RBAC + _plain(rbac)}


def main() -> None:
    """Write the files."""
    with tempfile.TemporaryDirectory(prefix="kerf-helm-") as home:
        for path, text in render_manifests(Helm(Path(home))).items():
            path.write_text(text)


def _plain(rendered: str) -> str:
    """Rendered text without what only Helm needs."""
    dropped = ("# Source:", "    helm.sh/chart:", "        helm.sh/chart:")
    kept = [line for line in rendered.splitlines() if not line.startswith(dropped)]
    return "\n".join(line.replace("managed-by: Helm", "managed-by: kubectl") for line in kept).strip() + "\n"


if __name__ == "__main__":
    main()
