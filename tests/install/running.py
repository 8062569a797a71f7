"""What a kubelet makes of the installed chart: Kerf and the kube-scheduler beside it, and the webhook, as processes."""

import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import urllib3
import yaml

from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import free_port, start_process
from tests.e2e.clusters import KerfCluster, KerfProcess

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


@dataclass(frozen=True)
class Release:
    """What was installed, and under which name."""

    plane: ControlPlane
    namespace: str
    name: str = "kerf"

    @property
    def webhook(self) -> str:
        """Name of the webhook's objects."""
        return f"{self.name}-webhook"

    @property
    def webhook_host(self) -> str:
        """By which the API server calls it."""
        return f"{self.webhook}.{self.namespace}.svc"

    def object(self, api: str, kind: str, name: str) -> dict[str, Any]:
        """One of its objects."""
        found: dict[str, Any] = self.plane.request("GET", f"{api}/namespaces/{self.namespace}/{kind}/{name}")
        return found


def start_installed(release: Release, mounted: Path, running: ExitStack, port: int = 0) -> KerfCluster:
    """Start both with the files of the installed ConfigMap, written where they are "mounted", until `running` ends.

    As a sidecar: Kerf has synced before kube-scheduler starts, and decides once that one leads.
    """
    plane = release.plane
    for name, text in release.object("/api/v1", "configmaps", release.name)["data"].items():
        (mounted / name).write_text(text)
    settings, config = mounted / "kerf.yaml", mounted / "scheduler.yaml"
    arguments = ("--config", str(settings), "--set", "server.metrics_port=0")  # a pod has its ports for itself
    kerf = KerfProcess(plane, "kerf", *arguments, ready_path="/syncz", port=port)
    running.callback(kerf.stop)
    election = yaml.safe_load(config.read_text())["leaderElection"]
    running.callback(plane.start_scheduler(config, extender_url=kerf.url, leader_election=election).stop)
    return KerfCluster(plane, kerf)


def serve_webhook(
    release: Release, running: ExitStack, folder: Path, name: str = "kerf-webhook", host: str = ""
) -> int:
    """Run Kerf as the webhook's container does, with its variables, and the rights of the user `webhook`.

    Returns its port, once it is ready. `folder` is its volume, `host` what its certificate is for if not the Service.
    """
    found = release.object("/apis/apps/v1", "deployments", release.webhook)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["serve", "--host=0.0.0.0", "--port=8443"]
    port = free_port()
    plane, host = release.plane, host or release.webhook_host
    command = [sys.executable, "-m", "extender", "serve", "--port", str(port)]
    command += ["--kubeconfig", str(plane.kubeconfig("webhook"))]
    on_pod_ip = {"KERF_SERVER__METRICS_HOST": "127.0.0.1", "KERF_SERVER__METRICS_PORT": str(free_port())}
    said = {item["name"]: item["value"] for item in container["env"] if "value" in item} | on_pod_ip
    given = {name: value.replace("/etc/kerf-webhook", str(folder)) for name, value in said.items()}
    process = start_process(name, command, plane.directory / f"{name}.log", env=os.environ | given)
    running.callback(process.stop)

    def ready() -> bool:
        if not (folder / "ca.crt").exists():
            return False
        options: dict[str, Any] = {"ca_certs": str(folder / "ca.crt"), "retries": False}
        with urllib3.HTTPSConnectionPool(
            "127.0.0.1", port, server_hostname=host, assert_hostname=host, **options
        ) as pool:
            try:
                return bool(pool.request("GET", "/syncz").status == 200)
            except (urllib3.exceptions.NewConnectionError, urllib3.exceptions.ProtocolError):
                return False  # a certificate that does not fit is another error, and no reason to wait

    process.wait_ready(ready)
    return port


def lead_to(release: Release, port: int, *configurations: str) -> Callable[[], None]:
    """Have the API server call this machine where it would call the Service; whatever is wrong is said.

    Returns what makes the Service as it was: what is installed again can't be applied to one of this kind.
    """
    plane = release.plane
    service = f"/api/v1/namespaces/{release.namespace}/services/{release.webhook}"

    def replace(spec: dict[str, Any]) -> None:
        patch = [{"op": "replace", "path": "/spec", "value": spec}]
        plane.request("PATCH", service, patch, "application/json-patch+json")

    before = plane.request("GET", service)["spec"]
    replace({"type": "ExternalName", "externalName": "localhost"})
    for name in configurations:
        configuration = plane.request("GET", f"{HOOKS}/{name}")
        for hook in configuration["webhooks"]:
            hook["clientConfig"]["service"]["port"] = port
            hook["failurePolicy"] = "Fail"
            hook["timeoutSeconds"] = 10
        plane.request("PUT", f"{HOOKS}/{name}", configuration)
    return partial(replace, before)
