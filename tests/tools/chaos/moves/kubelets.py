"""The kubelets of a run: pods with a node run and get ready, and go when they are deleted."""

import threading
from collections.abc import Callable, Collection
from typing import Final

import urllib3

from tests.controlplane import ApiError
from tests.controlplane.api import Api
from tests.tools.chaos.holdings import Manifest, finished

_PODS: Final = "/api/v1/namespaces/default/pods"
_STATUS: Final = "application/strategic-merge-patch+json"
_EACH_S: Final = 0.1


class Kubelets:
    """All of a control plane, in a thread of their own from `start` to `stop`."""

    def __init__(self, api: Api, seen: Callable[[], Collection[Manifest]]) -> None:
        """`seen`: all pods, as they are."""
        self._api = api
        self._seen = seen
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelets", daemon=True)
        self.unready: set[str] = set()
        """Controllers whose pods run and don't get ready."""
        self.slow: set[str] = set()
        """Controllers whose pods take their time to end."""

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._api.close()

    def _run(self) -> None:
        while not self._ended.wait(_EACH_S):
            for pod in self._seen():
                try:
                    self._act(pod)
                except ApiError as error:
                    if error.status not in (404, 409, 422, 429) and error.status < 500:
                        raise
                except (urllib3.exceptions.HTTPError, OSError):
                    break  # the API server is not there

    def _act(self, pod: Manifest) -> None:
        metadata, spec = pod["metadata"], pod["spec"]
        path, owner = f"{_PODS}/{metadata['name']}", (metadata.get("labels") or {}).get("example.com/owner", "")
        if "deletionTimestamp" in metadata:
            if owner in self.slow:
                return
            if owner and spec.get("nodeName") and not finished(pod):
                self._report(pod, "Failed", ready=False)
            only = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
            self._api.request("DELETE", path, only)
        elif spec.get("nodeName") and not finished(pod):
            ready = owner not in self.unready
            known = {item["type"]: item["status"] for item in pod["status"].get("conditions") or ()}
            if pod["status"].get("phase") != "Running" or (known.get("Ready") == "True") != ready:
                self._report(pod, "Running", ready=ready)

    def _report(self, pod: Manifest, phase: str, *, ready: bool) -> None:
        """Of this pod: another one may have its name by now."""
        status = {"phase": phase, "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        self._api.request("PATCH", f"{_PODS}/{pod['metadata']['name']}/status", body, _STATUS)
