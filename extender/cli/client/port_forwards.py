"""The Kerf of a cluster, reached as kubectl reaches it: its kubeconfig, context and namespace, and a port-forward."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_LABEL = "app.kubernetes.io/name=kerf"
_PORT = 8888
_LOOK_S, _FORWARD_S = 5, 20


class ClusterError(Exception):
    """The cluster has no Kerf to ask, or kubectl can't say: says why."""


class KerfPod(NamedTuple):
    """A pod in which Kerf serves."""

    namespace: str
    name: str


class Cluster:
    """What kubectl says of a cluster; nothing is asked before it is needed."""

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        """`namespace` is where Kerf runs, None to look everywhere."""
        self._flags = [
            f"--{name}={value}" for name, value in (("kubeconfig", kubeconfig), ("context", context)) if value
        ]
        self._namespace = namespace

    def namespace(self) -> str:
        """Of pods that are named without one."""
        try:
            return self._said("config", "view", "--minify", "-o", "jsonpath={..namespace}") or "default"
        except ClusterError:
            return "default"

    def told(self) -> str:
        """Which cluster it is, and as whom kubectl asks it, in words."""
        try:
            view = json.loads(self._said("config", "view", "--minify", "-o", "json"))
            server = view["clusters"][0]["cluster"]["server"]
            user = (view.get("users") or [{}])[0]
        except (ClusterError, ValueError, LookupError, TypeError):
            return "the cluster that kubectl asks"
        acting = f", acting as {impersonated}" if (impersonated := (user.get("user") or {}).get("as")) else ""
        return f"{server}, context {view.get('current-context')}, user {user.get('name')}{acting}"

    def command(self) -> str:
        """What a person types to reach the Kerf that is installed; where that isn't known, with words to fill in."""
        try:
            pod = self.find()[0]
        except ClusterError:
            where = self._namespace or "NAMESPACE-OF-KERF"
            return " ".join(self._command("-n", where, "port-forward", "POD-OF-KERF", str(_PORT)))
        return " ".join(self._command("-n", pod.namespace, "port-forward", f"pod/{pod.name}", str(_PORT)))

    def find(self) -> list[KerfPod]:
        """Kerf's ready pods, one at least. Raises ClusterError."""
        where = ["-n", self._namespace] if self._namespace else ["--all-namespaces"]
        told = self._said("get", "pods", *where, "-l", _LABEL, "-o", "json", f"--request-timeout={_LOOK_S}s")
        pods = json.loads(told)["items"]
        if not pods:
            raise ClusterError(f"no Kerf pod in {self._namespace or 'the cluster'} (label {_LABEL})")
        namespaces = sorted({item["metadata"]["namespace"] for item in pods})
        if len(namespaces) > 1:  # whoever may create pods may label them so
            raise ClusterError(f"Kerf pods are in {', '.join(namespaces)}: choose with --kerf-namespace")
        ready = [item for item in pods if _is_ready(item)]
        if not ready:
            raise ClusterError(f"no Kerf pod in {namespaces[0]} is ready: kubectl -n {namespaces[0]} get pods")
        return [KerfPod(item["metadata"]["namespace"], item["metadata"]["name"]) for item in ready]

    @contextmanager
    def forwarded(self, pod: KerfPod) -> Iterator[str]:
        """Host and port that lead to a pod, for as long as the context lasts. Raises ClusterError."""
        command = self._command("-n", pod.namespace, "port-forward", f"pod/{pod.name}", f":{_PORT}")
        with subprocess.Popen(  # noqa: S603 - kubectl, and names without a shell
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                found = re.search(r"127\.0\.0\.1:(\d+)", line)
                if found is None:
                    process.terminate()
                    raise ClusterError(
                        f"{' '.join(command)}: {process.communicate(timeout=_FORWARD_S)[1].strip() or line}"
                    )
                yield found[0]
            finally:
                process.terminate()

    def _command(self, *arguments: str) -> list[str]:
        return ["kubectl", *self._flags, *arguments]

    def _said(self, *arguments: str) -> str:
        command = self._command(*arguments)
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_FORWARD_S)  # noqa: S603
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ClusterError(f"kubectl can't be run: {error}") from None
        if done.returncode != 0:
            raise ClusterError(f"{' '.join(command)}: {_last_line(done.stderr)}")
        return done.stdout.strip()


def _is_ready(pod: Any) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]
