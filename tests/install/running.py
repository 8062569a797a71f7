"""What a kubelet makes of the installed chart: Kerf and the kube-scheduler beside it, as processes."""

from contextlib import ExitStack
from pathlib import Path

import yaml

from tests.controlplane.plane import ControlPlane
from tests.e2e.clusters import KerfCluster, KerfProcess


def start_installed(
    plane: ControlPlane, namespace: str, mounted: Path, running: ExitStack, port: int = 0
) -> KerfCluster:
    """Start both with the files of the installed ConfigMap, written where they are "mounted", until `running` ends.

    As a sidecar: Kerf has synced before kube-scheduler starts, and decides once that one leads.
    """
    path = f"/api/v1/namespaces/{namespace}/configmaps/kerf"
    for name, text in plane.request("GET", path)["data"].items():
        (mounted / name).write_text(text)
    settings, config = mounted / "kerf.yaml", mounted / "scheduler.yaml"
    arguments = ("--config", str(settings), "--set", "server.metrics_port=0")  # a pod has its ports for itself
    kerf = KerfProcess(plane, "kerf", *arguments, ready_path="/syncz", port=port)
    running.callback(kerf.stop)
    election = yaml.safe_load(config.read_text())["leaderElection"]
    running.callback(plane.start_scheduler(config, extender_url=kerf.url, leader_election=election).stop)
    return KerfCluster(plane, kerf)
