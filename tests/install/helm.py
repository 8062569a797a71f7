"""Helm, and the chart as it renders and installs."""

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.binaries import BuildError, cached, go_command

CHART = Path(__file__).parents[2] / "manifests" / "helm" / "kerf"

_VERSION = "v3.19.2"


class HelmError(Exception):
    """helm has failed; says what it printed."""


def find_helm() -> Path:
    """Helm 3, installed or built once from its Go module. Raises BuildError."""
    installed = shutil.which("helm")
    if installed and run([installed, "version", "--short"]).startswith("v3."):
        return Path(installed)
    return cached(f"helm-{_VERSION}", _build) / "helm"


def _build(into: Path) -> None:
    command = [go_command(), "install", "-trimpath", f"helm.sh/helm/v3/cmd/helm@{_VERSION}"]
    environment = os.environ | {"CGO_ENABLED": "0", "GOBIN": str(into)}
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if result.returncode != 0:
        raise BuildError(f"go install of helm failed:\n{result.stderr[-4000:]}")


def run(command: list[str], **environment: str) -> str:
    """What a command prints. Raises HelmError."""
    result = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | environment)
    if result.returncode != 0:
        raise HelmError(f"{' '.join(command[1:4])}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


class Helm:
    """Helm on the chart, with a kubeconfig where it needs a cluster."""

    def __init__(self, home: Path, kubeconfig: Path | None = None) -> None:
        self._path = str(find_helm())
        # Neither the configuration nor the plugins of whoever runs the tests.
        self._environment = {f"HELM_{name}_HOME": str(home / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        if kubeconfig is not None:
            self._environment["KUBECONFIG"] = str(kubeconfig)

    def __call__(self, *arguments: str) -> str:
        """What `helm ...` prints; of the chart with the image `kerf`, unless another is named. Raises HelmError."""
        named = str(CHART) not in arguments or any(re.search(r"(^|,)image\.repository=", each) for each in arguments)
        image = () if named or arguments[0] == "lint" else ("--set", "image.repository=kerf")
        return run([self._path, *arguments, *image], **self._environment)

    def render(
        self, *values: str, release: str = "kerf", namespace: str = "kube-system", options: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The objects that the chart makes of some values, each `key=value`; further options of helm may be added.
        Raises HelmError."""
        settings = [part for value in values for part in ("--set", value)]
        text = self(
            "template", release, str(CHART), "--namespace", namespace, "--kube-version", "v1.36.1", *settings, *options
        )
        return [document for document in yaml.safe_load_all(text) if document]


def only(objects: list[dict[str, Any]], kind: str, name: str = "") -> dict[str, Any]:
    """The one object of a kind, or the one of that name."""
    (found,) = (item for item in objects if item["kind"] == kind and name in ("", item["metadata"]["name"]))
    return found


MATRIX = [
    (),
    ("mode=service",),
    ("replicas=2",),
    ("mode=service", "replicas=3", "networkPolicy.enabled=true", "networkPolicy.from[0].podSelector.matchLabels.a=b"),
    ("mode=service", "serviceMonitor.enabled=true", "prometheusRule.enabled=true", "service.port=80"),
    ("mode=service", "replicas=2", "tls.secretName=kerf-tls", "serviceMonitor.enabled=true"),
    ("mode=service", "tls.selfSigned=true", "tls.addresses[0]=10.0.0.7", "serviceMonitor.enabled=true"),
    ("mode=service", "tls.issuer.name=ca", "tls.issuer.kind=ClusterIssuer", "access.tokensSecret=readers"),
    ("access.tokensSecret=readers", "access.operatorsSecret=operators", "dashboard.enabled=true"),
    ("model.volume.configMap.name=rank", "config.model.mode=canary"),
    ("history.enabled=true",),
    (
        "history.enabled=true",
        "history.volume.emptyDir=null",
        "history.volume.persistentVolumeClaim.claimName=history",
        "learning.enabled=true",
        "learning.image.repository=registry/kerf-fit",
    ),
    ("queue.enabled=true",),
    ("queue.enabled=true", "queue.pipelines=true", "queue.mlflows=true"),
    ("queue.enabled=true", "defrag.enabled=true"),
    ("queue.enabled=true", "replicas=2", "mode=service", "inject.enabled=true"),
    ("mode=planner", "queue.enabled=true", "replicas=2", "networkPolicy.enabled=true"),
    ("mode=planner", "queue.enabled=true", "dra.enabled=true"),
    ("rbac.create=false", "serviceAccount.name=other", "priorityClassName=", "nodeSelector.gpu=no"),
    ("config.decisions.policy=spread", "config.server.port=8888", "env[0].name=KERF_LOG__FORMAT", "env[0].value=json"),
]
