"""Pods as manifests."""

import itertools
from typing import Any

Pod = dict[str, Any]
GPU = "nvidia.com/gpu"
_uids = itertools.count()


def container(name: str, gpus: int = 0, resource: str = GPU, **more: Any) -> dict[str, Any]:
    """One that asks for so many devices."""
    return {"name": name, "resources": {"limits": {resource: str(gpus)}} if gpus else {}, **more}


def gpu_pod(name: str, gpus: int = 1, assigned: str = "", node: str = "n", **more: Any) -> Pod:
    """A pod that is bound; `assigned` are UUIDs. `containers` and `init` instead of one container."""
    resource = more.get("resource", GPU)
    annotations = {"kerf.dev/assigned-uuids": assigned} if assigned else {}
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": more.get("namespace", "default"),
            "uid": f"uid-{name}-{next(_uids)}",
            "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
            "annotations": {**annotations, **more.get("annotations", {})},
        },
        "spec": {
            "nodeName": node,
            "containers": more.get("containers", [container("main", gpus, resource)]),
            "initContainers": more.get("init", []),
        },
        "status": {"phase": "Pending"},
    }


def containers(pod: Pod) -> list[dict[str, Any]]:
    """Those that are no init containers."""
    return list(pod["spec"]["containers"])


def init_containers(pod: Pod) -> list[dict[str, Any]]:
    """The others, sidecars too."""
    return list(pod["spec"]["initContainers"])


def asked(container: dict[str, Any]) -> dict[str, int]:
    """Devices by resource."""
    return {name: int(number) for name, number in container["resources"].get("limits", {}).items() if "/" in name}


def key(pod: Pod) -> tuple[str, str]:
    """Namespace and name."""
    return pod["metadata"]["namespace"], pod["metadata"]["name"]
