"""What a kubelet does for the chart, played: it runs what was installed, and ends pods that are deleted."""

import contextlib
import threading
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from tests.controlplane.api import ApiError
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import free_port
from tests.install.running import start_installed

_MERGE_PATCH = "application/merge-patch+json"
_PODS = "/api/v1/pods"


class Kubelet:
    """Starts Kerf and kube-scheduler as the chart's Deployment says, once there is one, and calls them ready."""

    def __init__(self, plane: ControlPlane, namespace: str) -> None:
        self._plane = plane
        self._namespace = namespace
        self._port = free_port()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.failure: BaseException | None = None

    @property
    def url(self) -> str:
        """Where Kerf will listen."""
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if self.failure is not None and error is None:
            raise self.failure

    def _run(self) -> None:
        # Children die with the thread that started them, so it stays until all is over.
        with ExitStack() as processes:
            try:
                deployment = None
                while not self._stopped.wait(0.1):
                    if deployment is None and (deployment := self._deployment()) is not None:
                        start_installed(self._plane, self._namespace, self._plane.directory, processes, self._port)
                        self._call_ready(deployment)
                    self._end_deleted_pods()
            except BaseException as error:
                self.failure = error

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
