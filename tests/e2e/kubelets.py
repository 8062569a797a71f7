"""The kubelets of a cluster whose nodes are plain objects."""

import threading
from collections.abc import Callable

from tests.controlplane.api import ApiError
from tests.controlplane.plane import ControlPlane
from tests.e2e.clusters import Manifest


class Kubelet:
    """What kubelets report and do: pods with a node run, end when a test says so, and go when they are deleted."""

    def __init__(self, plane: ControlPlane, namespace: str = "default") -> None:
        self._plane = plane
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet")
        self.ends: Callable[[Manifest], str] = lambda pod: ""
        """Phase in which a running pod ends, "" to let it run."""
        self.holds = False
        """Whether pods that are deleted go on running."""

    def __enter__(self) -> "Kubelet":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(0.05):
            for pod in self._plane.request("GET", self._pods)["items"]:
                try:
                    self._act(pod)
                except ApiError as error:
                    if error.status not in (404, 409, 422):
                        raise

    def _act(self, pod: Manifest) -> None:
        path = f"{self._pods}/{pod['metadata']['name']}"
        phase = pod.get("status", {}).get("phase")
        if "deletionTimestamp" in pod["metadata"]:
            if self.holds:
                return
            if phase not in ("Succeeded", "Failed"):
                self._report(path, "Failed")
            self._plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        elif pod["spec"].get("nodeName") and phase not in ("Succeeded", "Failed"):
            if phase != "Running":
                self._report(path, "Running")
            elif end := self.ends(pod):
                self._report(path, end)

    def _report(self, path: str, phase: str) -> None:
        self._plane.request("PATCH", f"{path}/status", {"status": {"phase": phase}}, "application/merge-patch+json")
