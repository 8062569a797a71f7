"""The node agent beside a real node's kubelet, as the manifests let it run: with its account, role and policy."""

import os
import re
import sys
from pathlib import Path

import yaml

from tests.controlplane.commands import Command
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, clean_environment, start_process
from tests.realnode.node import Node

MANIFEST = ROOT / "manifests" / "agent.yaml"
NAMESPACE = "/api/v1/namespaces/kube-system"
_ANSWER = re.compile(r"\(in ([0-9.]+) ms\)")


def install(plane: ControlPlane) -> None:
    """All of the manifest but the DaemonSet."""
    plane.apply(*(item for item in yaml.safe_load_all(MANIFEST.read_text()) if item["kind"] != "DaemonSet"))


class NodeAgent:
    """`kerf node-agent` as a process of the machine, with the token of a pod of its DaemonSet."""

    def __init__(self, plane: ControlPlane, node: Node, *arguments: str) -> None:
        self._plane = plane
        self._node = node
        self._arguments = arguments
        self._account: Path | None = None
        self.process: Process | None = None

    @property
    def socket(self) -> Path:
        """Where plugins register, if it steers."""
        return self._node.plugin_folder / "kerf.sock"

    @property
    def log(self) -> Path:
        return self._node.folder / "agent.log"

    def start(self) -> None:
        """Return at once."""
        if self._account is None:
            self._account = self._make_account()
        folders: list[str | Path] = [
            *("--device-plugins", self._node.plugin_folder, "--pod-resources", self._node.pod_resources_socket),
            *("--service-account-dir", self._account),
        ]
        host, _, port = self._plane.url.removeprefix("https://").rpartition(":")
        environment = clean_environment(KUBERNETES_SERVICE_HOST=host, KUBERNETES_SERVICE_PORT=port)
        named = ["node-agent", "--node", self._node.name, "--health-port", "0", *self._arguments]
        command: Command = [sys.executable, "-m", "extender", *named, *folders]
        self.process = start_process("agent", command, self.log, env=environment)

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """SIGTERM; return when it is gone."""
        if self.process is not None:
            self.process.stop(grace_s=5.0)
            print(self.log.read_text())

    def rss_mib(self) -> float:
        """Its memory, shared libraries included."""
        assert self.process is not None
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGESIZE") / 2**20

    def answers_ms(self) -> list[float]:
        """How long each of its own answers took."""
        return [float(found) for found in _ANSWER.findall(self.log.read_text())]

    def _make_account(self) -> Path:
        """A token that says for which node it is, as the kubelet gets one for the agent's pod there; good for as long
        as that pod is there."""
        stand_in = pod("kerf-agent-stand-in", namespace="kube-system")
        stand_in["spec"] |= {"nodeName": self._node.name, "serviceAccountName": "kerf-agent"}
        created = self._plane.request("POST", f"{NAMESPACE}/pods", stand_in)
        bound = {"kind": "Pod", "apiVersion": "v1", "name": "kerf-agent-stand-in", "uid": created["metadata"]["uid"]}
        asked = {"spec": {"audiences": None, "boundObjectRef": bound, "expirationSeconds": 3600}}
        answer = self._plane.request("POST", f"{NAMESPACE}/serviceaccounts/kerf-agent/token", asked)
        account = self._node.folder / "agent-account"
        account.mkdir(exist_ok=True)
        (account / "token").write_text(answer["status"]["token"] + "\n")
        (account / "ca.crt").write_bytes(self._plane.certificate.read_bytes())
        return account
