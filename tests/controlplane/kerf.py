"""Kerf on a control plane: the rights that its manifests give it, and its process."""

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, clean_environment, start_process

ROOT = Path(__file__).parents[2]
"""The checkout."""
RBAC = ROOT / "manifests" / "rbac.yaml"
QUEUE_RBAC = ROOT / "manifests" / "queue" / "rbac.yaml"
DRA_RBAC = ROOT / "manifests" / "dra" / "rbac.yaml"
SCHEDULER_CONFIG = ROOT / "scheduler-config"
SERVICE_ACCOUNT = "system:serviceaccount:kube-system:kerf"
"""The user whom manifests/rbac.yaml gives its rights: all of Kerf's tests run with those and no others."""


def start_kerf(
    plane: ControlPlane,
    name: str,
    url: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    credentials: bool = True,
    module: str = "extender",
) -> Process:
    """Start `kerf serve` at a URL of loopback as its user starts it, and return at once.

    It is told of the kubeconfig of user `kerf`; without `credentials` of none: then `env` says where the API server is.
    """
    kubeconfig = ["--kubeconfig", str(plane.kubeconfig("kerf"))] if credentials else []
    command = [sys.executable, "-m", module, "serve", "--port", url.rpartition(":")[2], *kubeconfig, *arguments]
    return start_process(name, command, plane.directory / f"{name}.log", url, clean_environment(**(env or {})))
