"""Devices that pods ask for by ResourceClaims (DRA): what publishes them, who gives them out, and whether rightly.

A driver of the bench's own publishes whole GPUs as NVIDIA's does, a pool for each node. Nothing prepares them, as no
kubelet runs: what is measured ends with the binding.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.controlplane import ControlPlane
from tests.controlplane.kerf import ROOT
from tests.tools.bench import servers
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

DRIVER: Final = "gpu.bench.kerf.dev"
"""The driver's name, and that of its device class."""
OWNED: Final = "kerf.dev/owned=kerf:NoSchedule"
"""The taint of pools of which kube-scheduler allocates nothing."""
CONTROLLER: Final = "resourceclaim-controller"
"""What makes claims from templates."""
_DRA_RBAC: Final = ROOT / "manifests" / "dra"


def publish(plane: ControlPlane, num_nodes: int, *, owned: bool) -> None:
    """Nodes whose GPUs are in ResourceSlices alone, and the class that asks for them. Raises BenchError."""
    servers.load(plane, "nodes", f"-count={num_nodes}", "-gpus=0")
    taint = [f"-taint={OWNED}"] if owned else []
    servers.load(plane, "slices", f"-count={num_nodes}", f"-driver={DRIVER}", f"-devices={GPUS_PER_NODE}", *taint)


def pod_flags(num_gpus: int, *, templates: bool) -> tuple[str, ...]:
    """Flags of the load generator for pods that ask for so many devices by a claim of their own each."""
    claims = (f"-claim={DRIVER}", f"-claim-count={num_gpus}")
    return ("-pod-gpus=0", *claims, *(["-claim-template"] if templates else []))


def rights() -> list[Path]:
    """What gives Kerf the rights to write allocations, besides those of its queue."""
    return sorted(_DRA_RBAC.glob("*rbac*.yaml"))


def judge(plane: ControlPlane, num_gpus: int) -> None:
    """Each bound pod has the devices that it asked for, on its node, and no device two claims. Raises BenchError."""
    pods = plane.request("GET", "/api/v1/pods")["items"]
    claims = plane.request("GET", "/apis/resource.k8s.io/v1/resourceclaims")["items"]
    if faults := broken(pods, claims, num_gpus):
        raise BenchError(f"{len(faults)} claims are not as they must be; the first: {faults[0]}")


def broken(pods: Sequence[dict[str, Any]], claims: Sequence[dict[str, Any]], num_gpus: int) -> list[str]:
    """What is wrong with the claims of bound pods, in words."""
    by_name = {_key(claim): claim for claim in claims}
    holder: dict[tuple[str, str], str] = {}
    faults: list[str] = []
    for pod in pods:
        node, name = pod["spec"].get("nodeName"), _key(pod)
        if not node:
            continue
        found = [by_name.get(f"{pod['metadata']['namespace']}/{claim}") for claim in _claims_of(pod)]
        results = [
            result
            for claim in found
            if claim
            for result in claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        ]
        if len(results) != num_gpus:
            faults.append(f"{name} has {len(results)} devices and asked for {num_gpus}")
        for result in results:
            device = (result["pool"], result["device"])
            if result["driver"] != DRIVER or result["pool"] != node:
                faults.append(f"{name} on {node} has {'/'.join((result['driver'], *device))}")
            if device in holder:
                faults.append(f"{name} and {holder[device]} both have {'/'.join(device)}")
            holder[device] = name
    return faults


def _claims_of(pod: dict[str, Any]) -> list[str]:
    """Names of a pod's claims: of its own spec, or as the controller has made them."""
    listed = [*pod["spec"].get("resourceClaims", ()), *pod.get("status", {}).get("resourceClaimStatuses", ())]
    return [claim["resourceClaimName"] for claim in listed if claim.get("resourceClaimName")]


def _key(item: dict[str, Any]) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"
