"""The pods of an installed chart as processes: what a kubelet does with them, beside the real controllers."""

import json
import signal
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Self

from tests.controlplane.api import ApiError
from tests.controlplane.objects import cpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, answers, clean_environment, free_port, start_process
from tests.install.loops import Loop

CONTROLLERS = ("deployment-controller", "replicaset-controller", "disruption-controller", "endpointslice-controller")
_MERGE_PATCH = "application/merge-patch+json"
_NODE = "host"
_SELECTOR = "app.kubernetes.io%2Fname%3Dkerf"


@dataclass
class RunningPod:
    """A pod's process, and the address by which it is known."""

    process: Process
    address: str
    url: str
    probes: str
    ready: bool = False
    ending: bool = False


@dataclass
class Kubelet(Loop):
    """Starts pods that controllers make, tells when they are ready, and ends those that are deleted.

    All from one thread, which processes die with, from entry to exit.
    """

    plane: ControlPlane
    namespace: str
    pods: dict[str, RunningPod] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.plane.apply(cpu_node(_NODE))
        return super().__enter__()

    @property
    def num_broken(self) -> int:
        """Pods whose process has ended though nobody wanted that."""
        return sum(not pod.process.running and not pod.ending for pod in self.pods.values())

    def finish(self) -> None:
        """End all pods."""
        for pod in self.pods.values():
            pod.process.stop(grace_s=3)

    def turn(self) -> None:
        """Start pods that are new, end those that are deleted, tell which are ready."""
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        found = {item["metadata"]["name"]: item for item in self._list(f"{path}?labelSelector={_SELECTOR}")}
        for name, item in found.items():
            if name not in self.pods and "deletionTimestamp" not in item["metadata"]:
                self.pods[name] = self._start(name, item)
            pod = self.pods.get(name)
            if "deletionTimestamp" in item["metadata"]:
                self._end(name, pod)
            elif pod is not None and not pod.ready and answers(f"{pod.probes}/syncz"):
                pod.ready = True
                self._say(name, pod, "True")

    def _start(self, name: str, item: dict[str, Any]) -> RunningPod:
        binding = {"target": {"kind": "Node", "name": _NODE}, "metadata": {"name": name}}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/binding"
        self.plane.request("POST", path, {"apiVersion": "v1", "kind": "Binding", **binding})
        (container,) = item["spec"]["containers"]
        (volume,) = (one for one in item["spec"]["volumes"] if one["name"] == "config")
        files = f"/api/v1/namespaces/{self.namespace}/configmaps/{volume['configMap']['name']}"
        folder = self.plane.directory / name
        folder.mkdir()
        for file, text in self.plane.request("GET", files)["data"].items():
            (folder / file).write_text(text)
        given = {one["name"]: one.get("value", "").replace("$(POD_NAME)", name) for one in container["env"]}
        given |= {"POD_NAME": name, "KERF_SERVER__METRICS_HOST": "127.0.0.1", "KERF_SERVER__HOST": "127.0.0.1"}
        port, probes = free_port(), free_port()
        arguments = [one.replace("/etc/kerf", str(folder)) for one in container["args"]]
        ports = [f"--port={port}", f"--set=server.metrics_port={probes}", "--set=model.mode=off"]
        credentials = ["--kubeconfig", str(self.plane.kubeconfig("kerf"))]
        command: list[str | Path] = [sys.executable, "-m", "extender", *arguments, *ports, *credentials]
        log = self.plane.directory / f"{name}.log"
        process = start_process(name, command, log, env=clean_environment(**given))
        pod = RunningPod(
            process, f"10.1.0.{len(self.pods) + 1}", f"http://127.0.0.1:{port}", f"http://127.0.0.1:{probes}"
        )
        self._say(name, pod, "False")
        return pod

    def _say(self, name: str, pod: RunningPod, ready: str) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        conditions = [
            {"type": kind, "status": ready, "lastTransitionTime": now} for kind in ("Ready", "ContainersReady")
        ]
        status = {"phase": "Running", "podIP": pod.address, "podIPs": [{"ip": pod.address}], "conditions": conditions}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/status"
        self.plane.request("PATCH", path, {"status": status}, _MERGE_PATCH)

    def _end(self, name: str, pod: RunningPod | None) -> None:
        if pod is not None and pod.process.running:
            if not pod.ending:
                pod.ending = True
                pod.process.signal(signal.SIGTERM)
            return
        try:
            path = f"/api/v1/namespaces/{self.namespace}/pods/{name}"
            self.plane.request("DELETE", path, {"gracePeriodSeconds": 0})
        except ApiError as error:
            if error.status != 404:
                raise

    def _list(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.plane.request("GET", path)["items"]
        return items


@dataclass
class Caller(Loop):
    """kube-scheduler behind kube-proxy: calls whoever the Service leads to, again and again, and notes what came."""

    kubelet: Kubelet
    service: str
    body: bytes
    decided: list[float] = field(default_factory=list)
    """When a call was decided."""
    undecided: list[str] = field(default_factory=list)
    """What the others were answered, or why they were not."""
    interval_s: ClassVar[float] = 0.03

    @property
    def longest_gap_s(self) -> float:
        """Between two decisions, the time from the last one until now included."""
        times = [*self.decided, time.monotonic()]
        return max(after - before for before, after in pairwise(times))

    def turn(self) -> None:
        """Call once."""
        url = self._target()
        if url is None:
            self.undecided.append("nobody to call")
            return
        try:
            request = urllib.request.Request(f"{url}/filter", self.body, method="POST")
            with urllib.request.urlopen(request, timeout=5) as response:
                error = json.loads(response.read())["Error"]
        except (OSError, urllib.error.URLError) as fault:
            error = f"no answer: {fault}"
        if error:
            self.undecided.append(error)
        else:
            self.decided.append(time.monotonic())

    def _target(self) -> str | None:
        """As kube-proxy: who is ready; where nobody is, who ends and serves still."""
        label = f"kubernetes.io%2Fservice-name%3D{self.service}"
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.kubelet.namespace}/endpointslices?labelSelector={label}"
        slices = self.kubelet.plane.request("GET", path)["items"]
        endpoints = [endpoint for item in slices for endpoint in item.get("endpoints") or ()]
        ready = [one for one in endpoints if one["conditions"].get("ready")]
        serving = [one for one in endpoints if one["conditions"].get("serving")]
        urls = {pod.address: pod.url for pod in self.kubelet.pods.values()}
        return next((urls[one["addresses"][0]] for one in ready or serving), None)
