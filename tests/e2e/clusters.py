"""A real control plane with Kerf behind its kube-scheduler, in the words that end-to-end tests think in."""

import json
import re
import ssl
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.controlplane.kerf import start_kerf
from tests.controlplane.objects import pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import answers, free_port, wait_until

WITHIN_S = 20.0
"""How long a test waits for what should take well under a second."""

Manifest = dict[str, Any]


class KerfProcess:
    """`kerf serve` as its user starts it."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        ready_path: str = "/readyz",
        certificate: Path | None = None,
        port: int = 0,
        module: str = "extender",
    ) -> None:
        """With a `certificate`, that of its CA, it is spoken to by HTTPS.

        Without a learned rank, where no settings are given: it begins to rank at a moment that other tests don't see.
        """
        self.port = port or free_port()
        self.url = f"http{'s' if certificate else ''}://127.0.0.1:{self.port}"
        self._tls: ssl.SSLContext | None = None
        environment = ({} if "--config" in arguments else {"KERF_MODEL__MODE": "off"}) | dict(env or {})
        self.process = start_kerf(
            plane, name, self.url, *arguments, env=environment, credentials=not env, module=module
        )
        self.log = self.process.log
        self.process.wait_ready(lambda: answers(self.url + ready_path, certificate))
        if certificate is not None:  # which Kerf may have made itself, meanwhile
            self._tls = ssl.create_default_context(cafile=str(certificate))

    def get(self, path: str) -> Any:
        """JSON, or text where it is none."""
        with urllib.request.urlopen(self.url + path, timeout=10, context=self._tls) as response:
            content = response.read()
        return json.loads(content) if "json" in response.headers["content-type"] else content.decode()

    def post(self, verb: str, body: object) -> Any:
        """A call as kube-scheduler makes it."""
        request = urllib.request.Request(f"{self.url}/{verb}", json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=10, context=self._tls) as response:
            return json.loads(response.read())

    def metric(self, name: str) -> float:
        """The value of a metric without labels."""
        match = re.search(rf"^{name} (\S+)$", self.get("/metrics"), re.MULTILINE)
        if match is None:
            raise AssertionError(f"no metric {name}")
        return float(match[1])

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        self.process.stop(grace_s=5.0)


class KerfCluster:
    """A control plane, Kerf, and the kube-scheduler that calls it."""

    def __init__(self, plane: ControlPlane, kerf: KerfProcess) -> None:
        self.plane = plane
        self.kerf = kerf
        self._nodes: list[str] = []

    def add_nodes(self, *nodes: Mapping[str, Any]) -> None:
        """Create nodes and wait until Kerf knows them."""
        self.plane.apply(*nodes)
        self._nodes += [node["metadata"]["name"] for node in nodes]
        wait_until(lambda: self.kerf.metric("kerf_nodes") == len(self._nodes), WITHIN_S, "Kerf knows the nodes")

    def remove_node(self, name: str) -> None:
        """Delete a node and wait until Kerf has seen it."""
        self.plane.request("DELETE", f"/api/v1/nodes/{name}")
        self._nodes.remove(name)
        wait_until(lambda: self.kerf.metric("kerf_nodes") == len(self._nodes), WITHIN_S, "Kerf knows that it is gone")

    def submit(self, name: str, gpus: int = 0, **options: Any) -> None:
        """Create a pod."""
        self.create(pod(name, gpus, **options))

    def create(self, manifest: Mapping[str, Any]) -> None:
        """Create a pod from its manifest."""
        namespace = manifest["metadata"].get("namespace", "default")
        self.plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", manifest)

    def pod(self, name: str) -> Manifest:
        """A pod as the API server has it."""
        found: Manifest = self.plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")
        return found

    def pods(self) -> list[Manifest]:
        """All pods."""
        items: list[Manifest] = self.plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
        return items

    def bound(self, name: str) -> Manifest:
        """Wait until a pod has a node, and return it."""

        def placed() -> Manifest | None:
            found = self.pod(name)
            return found if found["spec"].get("nodeName") else None

        found = wait_until(placed, WITHIN_S, f"pod {name} is bound; it is {self.pending_message(name)!r}")
        assert found is not None
        return found

    def node_of(self, name: str) -> str:
        """Wait until a pod has a node, and return its name."""
        return str(self.bound(name)["spec"]["nodeName"])

    def pending_message(self, name: str) -> str:
        """What kube-scheduler says of a pending pod, "" when it has not said anything yet."""
        for condition in self.pod(name).get("status", {}).get("conditions", []):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return str(condition.get("message", ""))
        return ""

    def pending(self, name: str, containing: str = "") -> str:
        """Wait until kube-scheduler has given a pod up for now, with a message that contains a text."""

        def told() -> str:
            message = self.pending_message(name)
            return message if containing in message else ""

        message = wait_until(told, WITHIN_S, f"pod {name} is pending because of {containing!r}")
        assert "nodeName" not in self.pod(name)["spec"]
        return message

    def events(self, name: str, reason: str) -> list[str]:
        """Messages of a pod's events with that reason; both event APIs are one store."""
        uid = self.pod(name)["metadata"]["uid"]
        events = self.plane.request("GET", "/api/v1/namespaces/default/events")["items"]
        return [
            event["message"]
            for event in events
            if event["involvedObject"].get("uid") == uid and event["reason"] == reason
        ]

    def event(self, name: str, reason: str) -> str:
        """Wait for an event and return its message."""
        return wait_until(lambda: self.events(name, reason), WITHIN_S, f"event {reason} of {name}")[0]

    def delete_pod(self, name: str, grace_s: int = 0) -> None:
        """Delete a pod; with 0 at once, as a kubelet would end by doing."""
        self.plane.request("DELETE", f"/api/v1/namespaces/default/pods/{name}?gracePeriodSeconds={grace_s}")

    def set_phase(self, name: str, phase: str) -> None:
        """What a kubelet reports."""
        self.plane.request(
            "PATCH",
            f"/api/v1/namespaces/default/pods/{name}/status",
            {"status": {"phase": phase}},
            "application/merge-patch+json",
        )

    def clean(self) -> None:
        """Delete all pods and nodes, and wait until Kerf has seen it."""
        for found in self.pods():
            self.delete_pod(found["metadata"]["name"])
        for name in self._nodes:
            self.plane.request("DELETE", f"/api/v1/nodes/{name}")
        self._nodes.clear()
        wait_until(lambda: self.kerf.metric("kerf_nodes") == 0, WITHIN_S, "Kerf has seen that all nodes are gone")
        wait_until(lambda: not self.pods(), WITHIN_S, "all pods are gone")


def assigned_gpus(found: Manifest) -> list[int]:
    """GPU indices that Kerf wrote on a pod."""
    text = found["metadata"]["annotations"]["kerf.dev/assigned-gpus"]
    return [int(index) for index in text.split(",")] if text else []


def scheduler_name(config: Path) -> str:
    """The scheduler name that a KubeSchedulerConfiguration file serves."""
    return str(yaml.safe_load(config.read_text())["profiles"][0]["schedulerName"])
