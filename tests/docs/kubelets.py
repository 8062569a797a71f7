"""What a kubelet does for the chart, played: it runs what was installed, and ends pods that are deleted."""

import contextlib
from contextlib import ExitStack
from typing import Any

from tests.controlplane.api import ApiError
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import free_port
from tests.install.loops import Loop
from tests.install.running import Release, start_installed

_MERGE_PATCH = "application/merge-patch+json"
_PODS = "/api/v1/pods"


class Kubelet(Loop):
    """Starts Kerf and kube-scheduler as the chart's Deployment says, once there is one, and calls them ready."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace
        self._port = free_port()
        self._processes = ExitStack()
        self._started = False

    @property
    def url(self) -> str:
        """Where Kerf will listen."""
        return f"http://127.0.0.1:{self._port}"

    def turn(self) -> None:
        """Start what is installed, once; end what is deleted."""
        if not self._started and (deployment := self._deployment()) is not None:
            self._started = True
            release = Release(self._plane, self._namespace)
            start_installed(release, self._plane.directory, self._processes, self._port)
            self._call_ready(deployment)
        self._end_deleted_pods()

    def finish(self) -> None:
        """End what was started."""
        self._processes.close()

    def _deployment(self) -> dict[str, Any] | None:
        with contextlib.suppress(ApiError):
            found: dict[str, Any] = self._plane.request(
                "GET", f"/apis/apps/v1/namespaces/{self._namespace}/deployments/kerf"
            )
            return found
        return None

    def _call_ready(self, deployment: dict[str, Any]) -> None:
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), 1)
        status = {"observedGeneration": deployment["metadata"]["generation"], **counts}
        path = f"/apis/apps/v1/namespaces/{self._namespace}/deployments/kerf/status"
        self._plane.request("PATCH", path, {"status": status}, _MERGE_PATCH)

    def _end_deleted_pods(self) -> None:
        for pod in self._plane.request("GET", _PODS)["items"]:
            if pod["metadata"].get("deletionTimestamp"):
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                with contextlib.suppress(ApiError):
                    self._plane.request("DELETE", path, {"gracePeriodSeconds": 0})
