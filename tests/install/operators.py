"""The kinds of cert-manager and the Prometheus operator: their definitions, as the Go modules of both carry them."""

import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.controlplane.binaries import cached, module_folder
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until

_SOURCES = (
    (
        "github.com/cert-manager/cert-manager@v1.21.2",
        "deploy/crds",
        ("cert-manager.io/certificates", "cert-manager.io/issuers", "cert-manager.io/clusterissuers"),
    ),
    (
        "github.com/prometheus-operator/prometheus-operator@v0.85.0",
        "example/prometheus-operator-crd",
        ("monitoring.coreos.com/servicemonitors", "monitoring.coreos.com/prometheusrules"),
    ),
)
"""Module with its version, the folder of its definitions, and those taken, as group and plural."""


def install_definitions(plane: ControlPlane) -> None:
    """Have a control plane know those kinds; fetches the modules once. Raises BuildError."""
    for module, folder, kinds in _SOURCES:
        files = [f"{kind.replace('/', '_')}.yaml" for kind in kinds]
        kept = cached(f"definitions-{module.rpartition('/')[2]}", partial(_fetch, module, folder, files))
        plane.apply(*(kept / name for name in files))
        for kind in kinds:
            path = f"/apis/{kind.replace('/', '/v1/')}"
            wait_until(partial(plane.exists, path), 30.0, f"{path} is served")


def _fetch(module: str, folder: str, files: Sequence[str], into: Path) -> None:
    sources = module_folder(module) / folder
    for name in files:
        shutil.copyfile(sources / name, into / name)
