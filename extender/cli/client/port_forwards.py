"""Reaches the Kerf of a cluster through kubectl: its kubeconfig, context and namespace, and a port-forward."""

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
    """Kerf was not found in the cluster, or kubectl failed; says why."""


class KerfPod(NamedTuple):
    """A pod that runs Kerf."""

    namespace: str
    name: str


class Cluster:
    """A cluster as kubectl sees it, queried lazily."""

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str | None) -> None:
        """`namespace` is where Kerf runs, None to search all namespaces."""
        self._flags = [
            f"--{name}={value}" for name, value in (("kubeconfig", kubeconfig), ("context", context)) if value
        ]
        self._namespace = namespace

    def namespace(self) -> str:
        """The context's namespace, the default for pods named without one."""
        try:
            return self._output("config", "view", "--minify", "-o", "jsonpath={..namespace}") or "default"
        except ClusterError:
            return "default"

    def told(self) -> str:
        """The cluster, context and user of kubectl, in words."""
        try:
            view = json.loads(self._output("config", "view", "--minify", "-o", "json"))
            server = view["clusters"][0]["cluster"]["server"]
            user = (view.get("users") or [{}])[0]
        except (ClusterError, ValueError, LookupError, TypeError):
            return "kubectl's current cluster"
        acting = f", acting as {impersonated}" if (impersonated := (user.get("user") or {}).get("as")) else ""
        return f"{server}, context {view.get('current-context')}, user {user.get('name')}{acting}"

    def command(self) -> str:
        """The port-forward command for the installed Kerf, with placeholders if that is not found."""
        try:
            pod = self.find()[0]
        except ClusterError:
            where = self._namespace or "NAMESPACE-OF-KERF"
            return " ".join(self._command("-n", where, "port-forward", "POD-OF-KERF", str(_PORT)))
        return " ".join(self._command("-n", pod.namespace, "port-forward", f"pod/{pod.name}", str(_PORT)))

    def find(self) -> list[KerfPod]:
        """Kerf's ready pods, at least one. Raises ClusterError."""
        where = ["-n", self._namespace] if self._namespace else ["--all-namespaces"]
        output = self._output("get", "pods", *where, "-l", _LABEL, "-o", "json", f"--request-timeout={_LOOK_S}s")
        pods = json.loads(output)["items"]
        if not pods:
            raise ClusterError(f"no Kerf pod in {self._namespace or 'the cluster'} (label {_LABEL})")
        namespaces = sorted({item["metadata"]["namespace"] for item in pods})
        if len(namespaces) > 1:  # anyone who may create pods can set the label
            raise ClusterError(f"Kerf pods are in {', '.join(namespaces)}: choose with --kerf-namespace")
        ready = [item for item in pods if _is_ready(item)]
        if not ready:
            raise ClusterError(f"no Kerf pod in {namespaces[0]} is ready: kubectl -n {namespaces[0]} get pods")
        return [KerfPod(item["metadata"]["namespace"], item["metadata"]["name"]) for item in ready]

    @contextmanager
    def forwarded(self, pod: KerfPod) -> Iterator[str]:
        """A host and port forwarded to a pod while the context lasts. Raises ClusterError."""
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

    def _output(self, *arguments: str) -> str:
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
