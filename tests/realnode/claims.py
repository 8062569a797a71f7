"""ResourceClaims, pods that name them, and an allocator that writes what a test says."""

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tests.controlplane.api import Object
from tests.controlplane.objects import pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.realnode.dra import API, DRIVER, DeviceKey
from tests.realnode.node import WITHIN_S

FINALIZER: Final = "resource.kubernetes.io/delete-protection"
GATE: Final = "kerf.dev/queue"
MERGE: Final = "application/merge-patch+json"
_CLAIMS: Final = f"{API}/namespaces/default/resourceclaims"
_PODS: Final = "/api/v1/namespaces/default/pods"

CLASSES: Final = tuple(
    {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {
            "selectors": [
                {
                    "cel": {
                        "expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
                    }
                }
            ]
        },
    }
    for name, kind in ((DRIVER, "gpu"), ("mig.nvidia.com", "mig"))
)
"""NVIDIA's classes of whole GPUs and of partitions."""


def request(name: str = "gpus", count: int = 1, profile: str = "", selectors: Sequence[str] = ()) -> Object:
    """A request of whole GPUs, or of partitions of a profile such as "1g.5gb"."""
    expressions = [f"device.attributes['{DRIVER}'].profile == '{profile}'"] if profile else []
    asked: Object = {"deviceClassName": "mig.nvidia.com" if profile else DRIVER, "count": count}
    if expressions or selectors:
        asked["selectors"] = [{"cel": {"expression": text}} for text in (*expressions, *selectors)]
    return {"name": name, "exactly": asked}


def claim(name: str, *requests: Object) -> Object:
    """A claim of the namespace `default`."""
    spec = {"devices": {"requests": list(requests or (request(),))}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def template(name: str, *requests: Object) -> Object:
    """A template of claims."""
    made = claim(name, *requests)
    return made | {"kind": "ResourceClaimTemplate", "spec": {"spec": made["spec"]}}


def claiming(name: str, claims: Iterable[str] = (), templates: Iterable[str] = (), **spec: Any) -> Object:
    """A gated pod whose container has all devices of claims, of its own by templates or named ones.

    `args` are the container's; all else is of the pod's spec.
    """
    args = spec.pop("args", [])
    named = [{"name": f"claim-{name}", "resourceClaimName": name} for name in claims]
    named += [{"name": f"template-{name}", "resourceClaimTemplateName": name} for name in templates]
    made = pod(
        name, **{"cpu": "10m", "memory": "16Mi", "schedulingGates": [{"name": GATE}], "resourceClaims": named, **spec}
    )
    (container,) = made["spec"]["containers"]
    container["resources"]["claims"] = [{"name": of["name"]} for of in named]
    container["args"] = list(args)
    return made


def seen_by(environment: Mapping[str, str]) -> dict[str, str]:
    """Devices in a container and their UUIDs; those in /dev must be the same as those of its variables."""
    prefix = "DRA_"
    told = {name.removeprefix(prefix): uuid for name, uuid in environment.items() if name.startswith(prefix)}
    nodes = [path.removeprefix("/dev/") for path in environment.get("DEVICES", "").split(",") if path]
    assert {name.replace("-", "_") for name in nodes} == set(told)
    return {name: told[name.replace("-", "_")] for name in nodes}


class Claims:
    """Claims of the namespace `default` on a control plane, and the pods that have them."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def create(self, *documents: Object) -> None:
        """Create claims, templates or pods."""
        for document in documents:
            kinds = {"Pod": _PODS, "ResourceClaim": _CLAIMS, "ResourceClaimTemplate": f"{_CLAIMS[:-1]}templates"}
            self._plane.request("POST", kinds[document["kind"]], document)

    def get(self, name: str) -> Object | None:
        """A claim; None where there is none."""
        path = f"{_CLAIMS}/{name}"
        found: Object | None = self._plane.request("GET", path) if self._plane.exists(path) else None
        return found

    def pod(self, name: str) -> Object:
        """A pod."""
        found: Object = self._plane.request("GET", f"{_PODS}/{name}")
        return found

    def delete(self, *names: str) -> None:
        """Delete claims."""
        for name in names:
            self._plane.request("DELETE", f"{_CLAIMS}/{name}")

    def of_pod(self, name: str) -> list[str]:
        """The names of a pod's claims, once all have been made."""

        def found() -> list[str]:
            of = self.pod(name)
            told = of["status"].get("resourceClaimStatuses", ())
            made = {item["name"]: item["resourceClaimName"] for item in told}
            names: list[Any] = [
                item.get("resourceClaimName") or made.get(item["name"]) for item in of["spec"]["resourceClaims"]
            ]
            return [] if None in names else names

        return wait_until(found, WITHIN_S, f"the claims of {name} are made")

    def allocated(self, name: str) -> set[DeviceKey]:
        """The devices that a claim has; none where it has none, or is gone."""
        status = (self.get(name) or {}).get("status", {})
        results = status.get("allocation", {}).get("devices", {}).get("results", ())
        return {(result["pool"], result["device"]) for result in results}

    def written(self, name: str) -> set[DeviceKey]:
        """The devices that all claims of a pod have."""
        return set().union(*(self.allocated(claim) for claim in self.of_pod(name)))

    def allocate(self, name: str, node: str, devices: Mapping[str, Sequence[str]]) -> None:
        """Write what a claim has on a node, devices by request: the finalizer first, as kube-scheduler does."""
        found = self.get(name)
        assert found is not None
        found["metadata"]["finalizers"] = [FINALIZER]
        found = self._plane.request("PUT", f"{_CLAIMS}/{name}", found)
        of_node = {"key": "metadata.name", "operator": "In", "values": [node]}
        results = [
            {"request": request, "driver": DRIVER, "pool": node, "device": device}
            for request, given in devices.items()
            for device in given
        ]
        allocation = {
            "devices": {"results": results},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [of_node]}]},
            "allocationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._plane.request("PUT", f"{_CLAIMS}/{name}/status", found | {"status": {"allocation": allocation}})

    def open(self, name: str, node: str) -> None:
        """Nominate a node for a pod, and take its gate away."""
        path = f"{_PODS}/{name}"
        self._plane.request("PATCH", f"{path}/status", {"status": {"nominatedNodeName": node}}, MERGE)
        self._plane.request("PATCH", path, {"spec": {"schedulingGates": None}}, MERGE)

    def delete_pod(self, name: str) -> None:
        """Delete a pod, if it is there; return at once."""
        if self._plane.exists(f"{_PODS}/{name}"):
            self._plane.request("DELETE", f"{_PODS}/{name}?gracePeriodSeconds=1")

    def end(self, name: str) -> None:
        """Delete a pod; return when its kubelet has ended it."""
        self.delete_pod(name)
        wait_until(lambda: not self._plane.exists(f"{_PODS}/{name}"), WITHIN_S, f"{name} has ended")

    def events(self, name: str, reason: str) -> list[str]:
        """Messages of a pod's events."""
        found = self._plane.request("GET", "/api/v1/namespaces/default/events")["items"]
        of_pod = [event for event in found if event["involvedObject"].get("name") == name]
        return [event["message"] for event in of_pod if event["reason"] == reason]

    def clean(self) -> None:
        """Delete all pods, at once, and all claims and templates; return when they are gone."""
        for path in (_PODS, _CLAIMS, f"{_CLAIMS[:-1]}templates"):
            self._plane.request("DELETE", f"{path}?gracePeriodSeconds=1" if path == _PODS else path)
            try:
                wait_until(functools.partial(self._is_empty, path), WITHIN_S, f"{path} is empty")
            except TimeoutError as error:
                error.add_note(f"left: {[item['metadata'] | item['spec'] for item in self._left(path)]}")
                raise

    def _is_empty(self, path: str) -> bool:
        return not self._left(path)

    def _left(self, path: str) -> list[Object]:
        left: list[Object] = self._plane.request("GET", path)["items"]
        return left
